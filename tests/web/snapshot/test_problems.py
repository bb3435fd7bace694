"""What is wrong in a tick, and what to do about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.books import Books
from gpuledger.model import (
    Account,
    Allocation,
    AllocationUse,
    DcgmHealth,
    Device,
    Driver,
    Entitlement,
    Health,
    JournalHealth,
    MemoryAccount,
    Owner,
    Owners,
    ProviderHealth,
    Reading,
    Stage,
    Tick,
    Upstream,
)
from gpuledger.model.problem import SEVERITIES
from gpuledger.model.problem import Problem as Cause
from gpuledger.web.snapshot.problems import problems
from tests.builders import World

GPU = Device(3, "GPU-3")
MIG = Device(3, "MIG-1", parent_uuid="GPU-3", mig_profile="1g.18gb")
WELL = Tick(1, Driver(up=True), (Reading(GPU),))


def reading(device: Device = GPU, **numbers: object) -> Tick:
    """A tick of one GPU that says this."""
    return replace(WELL, readings=(Reading(device, **numbers),))  # type: ignore[arg-type]


def owners(**known: object) -> Tick:
    """A tick in which this is known of names."""
    return replace(WELL, owners=Owners(**known))  # type: ignore[arg-type]


def provider(reason: str = "", fetches: int = 1, name: str = "docker") -> ProviderHealth:
    """Up unless there is a reason."""
    return ProviderHealth(name, not reason, Cause(reason) if reason else None, 0, 0, fetches, 0)


def health(**numbers: object) -> Tick:
    """A tick of an exporter that is so."""
    return replace(WELL, health=Health(**numbers))  # type: ignore[arg-type]


def entitled(pod: str, compute: float = 0.6) -> AllocationUse:
    """A pod that asked for this part of the GPU."""
    tick = Books().book(replace(WELL, owners=Owners(allocations=(Allocation(GPU, Owner(namespace="ml", pod=pod)),))))
    return replace(tick.allocations[0], entitlement=Entitlement("kai", compute))


WRONG = {
    "driver down": (Tick(1, Driver(up=False, problem=Cause("Driver Not Loaded", "`sudo modprobe nvidia`"))),
                    "problem", "driver", "modprobe nvidia"),
    "no gpu": (Tick(1, Driver(up=True)), "problem", "driver", "nvidia-smi -L"),
    "gpu down": (reading(up=False, problem=Cause("GPU is lost", "reset it")), "problem", "GPU 3", "reset it"),
    "mig down": (reading(MIG, up=False, problem=Cause("odd")), "problem", "GPU 3 1g.18gb", "nvidia-smi"),
    "heat": (reading(clock_events=(("hw_thermal_slowdown", 1),), temperatures_c=(("gpu", 91),)), "warning", "GPU 3",
             "airflow"),
    "power brake": (reading(clock_events=(("hw_slowdown", 1),)), "warning", "GPU 3", "power supply"),
    "xid": (reading(xids=(("79", 1),)), "warning", "GPU 3", "dmesg"),
    "ecc": (reading(ecc_errors=(("uncorrected", 2),)), "warning", "GPU 3", "ECC"),
    "remap pending": (reading(row_remap_pending=True), "warning", "GPU 3", "--gpu-reset -i 3"),
    "remap failed": (reading(row_remap_failed=True), "problem", "GPU 3", "replace the GPU"),
    "recovery": (reading(recovery_actions=(("gpu_reset", 1), ("node_reboot", 0))), "problem", "GPU 3",
                 "--gpu-reset -i 3"),
    "odd recovery": (reading(recovery_actions=(("bus_reset", 1),)), "problem", "GPU 3", "nvidia-smi"),
    "unrepairable": (reading(memory_unrepairable=True), "problem", "GPU 3", "replace the GPU"),
    "on-chip memory": (reading(sram_threshold_exceeded=True), "problem", "GPU 3", "replace the GPU"),
    "fabric failed": (reading(fabric_failed=True), "problem", "GPU 3", "fabricmanager"),
    "fabric limited": (reading(fabric_failed=False, fabric_conditions=(("degraded_bandwidth", 1),)), "warning",
                       "GPU 3", "fabricmanager"),
    "unknown memory": (replace(reading(), memory={GPU.uuid: MemoryAccount(0, 1 << 30, 0, 1 << 30, 2)}), "warning",
                       "GPU 3", "fuser"),
    "residual": (replace(reading(), accounts={GPU.uuid: Account(residual_mj=1)}), "problem", "GPU 3", "report"),
    "counter": (replace(reading(), accounts={GPU.uuid: Account(source="power", counter_stuck=True)}), "warning",
                "GPU 3", "reset the GPU"),
    "own namespace": (owners(host_pid_namespace=False), "problem", "PID namespace", "--pid=host"),
    "hidden processes": (owners(readable=(("cgroup", 0), ("maps", 1))), "problem", "processes", "hidepid="),
    "provider down": (owners(providers=(provider("cannot open /x: No such file"),)), "problem", "docker", "log"),
    "unresolved": (owners(unresolved=(("container has no name", 2),)), "warning", "owners", "gpuledger explain"),
    "device ids": (owners(unknown_device_ids=1), "warning", "device ids", "--device-id"),
    "annotations": (owners(malformed=(Cause("x", "correct it", severity="warning", about="pod a/b"),)),
                    "warning", "pod a/b", "correct it"),
    "oversold": (replace(WELL, allocations=(entitled("a"), entitled("b"))), "warning", "GPU 3",
                 "gpu_entitlement_compute_ratio"),
    "dropped": (replace(WELL, dropped_processes=5), "note", "processes", "--process.max"),
    "stage": (health(stages=(Stage("book", 1, success=False),)), "problem", "exporter", "report"),
    "slow": (health(interval_ns=10**9, duration_ns=2 * 10**9), "warning", "exporter", "--tick.interval"),
    "driver call": (health(driver_problems=(Cause("nvmlX failed", "reset", "", "warning", "driver"),)), "warning",
                    "driver", "reset"),
    "upstream": (health(upstream=Upstream(False, Cause("no answer", "start it"), 0, 0, 0, 0, 0)), "problem",
                 "dcgm-exporter", "start it"),
    "dcgm": (replace(WELL, dcgm=DcgmHealth(up=False, problem=Cause("no library", "install it"))), "problem", "DCGM",
             "install"),
    "journal": (replace(WELL, journal=JournalHealth(failures=1)), "warning", "journal", "log"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_each_problem_has_a_fix(case: str) -> None:
    """One line, about what it is, with what to do."""
    tick, level, about, fix = WRONG[case]

    (found,) = problems(tick)
    assert (found.severity, found.about) == (level, about)
    assert fix in found.fix


@pytest.mark.parametrize(
    "tick",
    [
        WELL,
        reading(
            clock_events=(("sw_power_cap", 1), ("gpu_idle", 1), ("hw_slowdown", 0)), ecc_errors=(("corrected", 9),)
        ),
        replace(reading(), memory={GPU.uuid: MemoryAccount(5, 0, 1)}, accounts={GPU.uuid: Account()}),
        owners(host_pid_namespace=True, providers=(provider(),)),
        owners(unresolved=(("process is gone", 1),), readable=(("cgroup", 1), ("maps", 0))),
        owners(providers=(provider("not polled yet", fetches=0),)),
        health(interval_ns=10**9, duration_ns=10**8, stages=(Stage("read", 1, success=False),)),
        replace(WELL, journal=JournalHealth(), dcgm=DcgmHealth(up=True)),
        replace(WELL, allocations=tuple(entitled(pod, 1 / 7) for pod in "abcdefg")),
    ],
)
def test_what_is_no_problem(tick: Tick) -> None:
    """A power cap is how a GPU works; a provider that was not polled yet is not down."""
    assert problems(tick) == []


def test_processes_that_are_not_shown_are_counted_as_they_are_now() -> None:
    """Not once a tick: that sum says nothing."""
    world, books = World(), Books(1)
    tick = [books.book(world.tick(7, 8, 9)) for _ in range(20)][-1]

    assert tick.dropped_processes == 40
    assert [one.what for one in problems(tick)] == ["2 of 3 processes have no row of their own"]


def test_worst_first_and_no_consequences() -> None:
    """While a name provider is down, missing names are not reported."""
    tick = replace(
        owners(providers=(provider("down; up"),), unresolved=(("container has no name", 1),)), dropped_processes=1
    )
    tick = replace(tick, readings=(Reading(GPU, xids=(("79", 2),)),))

    found = problems(tick)
    assert [one.severity for one in found] == list(SEVERITIES)
    assert (found[1].severity, found[1].about, found[1].what) == ("warning", "GPU 3", "reported XID 79, 2 times")
