"""Devices and their jobs under the names that jobstats reads."""

from __future__ import annotations

from gpuledger.catalog.dialects import Choices, families_of
from gpuledger.model import (
    Activity,
    Allocation,
    Device,
    Driver,
    Facts,
    Owner,
    Owners,
    ProcessUse,
    Reading,
    Resident,
    Sample,
    Tick,
)
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

GPUS = [Device(n, f"GPU-{n}", "H200", minor=3 - n) for n in range(4)]
MIG = Device(3, "MIG-1", "H200 MIG", parent_uuid="GPU-3", gpu_instance_id=5)


def reading(device: Device, *residents: Resident) -> Reading:
    """A GPU at 50 %, or its instance at 70 %."""
    if device.parent_uuid:
        return Reading(device, memory_used_bytes=9, activity=Activity(graphics_pct=70.0), residents=residents)
    return Reading(device, memory_used_bytes=100, memory_total_bytes=1000, utilization_pct=50, power_mw=7000,
                   temperatures_c=(("gpu", 40), ("memory", 50)), residents=residents)  # fmt: skip


def use(device: Device, pid: int, job: str, sm_pct: int | None, *, active: bool = True) -> ProcessUse:
    """A process of a job with 10 bytes for each of its pids."""
    sample = None if sm_pct is None else Sample(pid, 0, sm_pct, 0)
    facts = Facts(pid, 1, 1, uid=1000 + pid)
    resident = Resident(pid, "compute", pid * 10)
    return ProcessUse(device, resident, facts, sample, owner=Owner(job=job), active=active)


def lines(tick: Tick, name: str) -> dict[tuple[str, str], float]:
    """The values of a family by uuid and `jobid:userid`."""
    body = b"".join(Renderer(families_of(["jobstats"], Choices())).chunks(tick, Format.TEXT)).decode()
    values = {}
    for line in body.splitlines():
        if line.startswith(f"{name}{{"):
            labels = dict(part.split("=") for part in line[line.index("{") + 1 : line.index("}")].split(","))
            text = {label: value.strip('"') for label, value in labels.items()}
            values[text["uuid"], f"{text['jobid']}:{text['userid']}"] = float(line.split()[-1])
    return values


def node(**owners: object) -> Tick:
    """GPU 0 without a job, GPU 1 with job 211, GPU 2 shared by 211 and 212, an instance of GPU 3 with 213."""
    processes = (
        use(GPUS[1], 1, "slurm/211", 30),
        use(GPUS[2], 2, "slurm/211", 20),
        use(GPUS[2], 3, "slurm/212", 15),
        use(GPUS[2], 4, "slurm/212", 5),
        use(GPUS[0], 5, "slurm/210", None, active=False),
        use(MIG, 6, "slurm/213", None),
    )
    residents = {n: [p.resident for p in processes if p.device == GPUS[n]] for n in range(4)}
    readings = [reading(gpu, *residents[gpu.index]) for gpu in GPUS]
    return Tick(
        1, Driver(up=True), (*readings, reading(MIG, processes[-1].resident)), processes=processes,
        owners=Owners(**owners),  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_job_has_the_values_of_its_device() -> None:
    """Also without a prolog: then job and user come from the processes. An exited process counts for nothing."""
    assert lines(node(), "nvidia_gpu_memory_used_bytes") == {
        ("GPU-0", ":"): 100, ("GPU-1", "211:1001"): 100, ("GPU-2", "211:1002"): 20, ("GPU-2", "212:1003"): 70,
        ("GPU-3", ":"): 100, ("MIG-1", "213:1006"): 9,
    }  # fmt: skip
    assert lines(node(), "nvidia_gpu_jobId") == {
        ("GPU-1", "211:1001"): 211, ("GPU-2", "211:1002"): 211, ("GPU-2", "212:1003"): 212, ("MIG-1", "213:1006"): 213,
    }  # fmt: skip


def test_jobs_that_share_a_gpu_have_their_own_memory_and_duty_cycle() -> None:
    """Power and total memory are those of the GPU, for each job."""
    tick = node()
    shared = [("GPU-2", "211:1002"), ("GPU-2", "212:1003")]

    assert [lines(tick, "nvidia_gpu_duty_cycle")[key] for key in shared] == [20, 20]
    assert [lines(tick, "nvidia_gpu_power_usage_milliwatts")[key] for key in shared] == [7000, 7000]
    assert [lines(tick, "nvidia_gpu_memory_total_bytes")[key] for key in shared] == [1000, 1000]


def test_an_instance_has_the_minor_number_and_power_of_its_gpu() -> None:
    """Its activity is what jobstats reads instead of the duty cycle."""
    tick = node()
    key = ("MIG-1", "213:1006")

    assert lines(tick, "nvidia_gpu_graphics_util_percent")[key] == 0.7
    assert lines(tick, "nvidia_gpu_power_usage_milliwatts")[key] == 7000
    assert key not in lines(tick, "nvidia_gpu_duty_cycle")
    body = b"".join(Renderer(families_of(["jobstats"], Choices())).chunks(tick, Format.TEXT)).decode()
    assert 'ordinal="3",minor_number="0",uuid="MIG-1",name="H200 MIG",GPU_I_ID="5",jobid="213",userid="1006"' in body


def test_the_labels_of_an_allocation_do_not_depend_on_its_processes() -> None:
    """The user comes from the prolog before, while and after a process runs; without one, it stays empty."""
    granted = tuple(Allocation(GPUS[n], Owner(job=job)) for n, job in ((0, "209"), (1, "211"), (2, "211"), (2, "212")))
    tick = node(allocations=granted, job_uids={"209": "2000", "211": "2001"})

    assert set(lines(tick, "nvidia_gpu_duty_cycle")) == {
        ("GPU-0", "209:2000"), ("GPU-1", "211:2001"), ("GPU-2", "211:2001"), ("GPU-2", "212:"), ("GPU-3", ":"),
    }  # fmt: skip


def test_a_part_that_is_not_known_is_absent() -> None:
    """On a shared GPU without samples of a process there is no duty cycle; a job without a process has 0."""
    processes = (use(GPUS[0], 1, "slurm/211", None), use(GPUS[0], 2, "slurm/212", 7))
    granted = tuple(Allocation(GPUS[0], Owner(job=job)) for job in ("211", "212", "213"))
    tick = Tick(1, Driver(up=True), (reading(GPUS[0], *(p.resident for p in processes)),), processes=processes,
                owners=Owners(allocations=granted))  # fmt: skip

    assert lines(tick, "nvidia_gpu_duty_cycle") == {("GPU-0", "212:"): 7, ("GPU-0", "213:"): 0}
    assert lines(tick, "nvidia_gpu_jobUid") == {}
