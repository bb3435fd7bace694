"""Processes under a prefix of the user's choice."""

from __future__ import annotations

from gpuledger.catalog.dialects import Choices, families_of
from gpuledger.model import Device, Driver, Facts, Owner, ProcessUse, Resident, Sample, Tick
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer


def test_a_process_and_one_that_exited() -> None:
    """Energy in joules, in one series and by its origin; an exited process keeps its energy and is not active."""
    owner = Owner("main", "a" * 64, "ml", "train", "uid-1")
    energy = (("exclusive", 1500), ("parked", 200), ("sm_time", 300))
    gpu, facts = Device(0, "GPU-1"), Facts(7, 1, 1_700_000_000_500, "python3")
    running = ProcessUse(gpu, Resident(7, "compute", 4096), facts, Sample(7, 0, 40, 10), None, owner, energy_mj=energy)
    exited = ProcessUse(gpu, Resident(8, "compute"), active=False, energy_mj=(("edge", 7),))
    tick = Tick(1, Driver(up=True), processes=(running, exited))

    body = b"".join(
        Renderer(families_of(["process"], Choices(prefix="my_gpu_process"))).chunks(tick, Format.TEXT)
    ).decode()

    one = f'pid="7",gpu="0",uuid="GPU-1",process_name="python3",pod="train",namespace="ml",container="main",pod_uid="uid-1",container_id="{"a" * 64}"'  # noqa: E501
    two = 'pid="8",gpu="0",uuid="GPU-1",process_name="",pod="",namespace="",container="",pod_uid="",container_id=""'
    energies = [
        f'{{{one},energy_estimated="false"}} 1.5',
        f'{{{one},energy_estimated="true"}} 0.5',
        f'{{{two},energy_estimated="true"}} 0.007',
    ]
    assert [line for line in body.splitlines() if not line.startswith("#")] == [
        f"my_gpu_process_energy_joules{{{one}}} 2.0",
        f"my_gpu_process_energy_joules{{{two}}} 0.007",
        *(f"my_gpu_process_energy_joules_total{line}" for line in energies),
        f"my_gpu_process_sm_utilization_ratio{{{one}}} 0.4",
        f"my_gpu_process_memory_utilization_ratio{{{one}}} 0.1",
        f"my_gpu_process_memory_used_bytes{{{one}}} 4096",
        f"my_gpu_process_start_time_seconds{{{one}}} 1700000000.5",
        f"my_gpu_process_active{{{one}}} 1",
        f"my_gpu_process_active{{{two}}} 0",
    ]
