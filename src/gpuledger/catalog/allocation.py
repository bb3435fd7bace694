"""Metrics of allocations: the idle ledger."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.catalog.family import C, Family, G, Series, at, named
from gpuledger.catalog.gpu import LEDGER
from gpuledger.catalog.kinds import ALLOCATION, CURRENT_ALLOCATION
from gpuledger.model import BUSY, IDLE_REASONS, UNKNOWN_STATE, AllocationUse

BOOKS = "the idle ledger"
REQUESTS = "kubelet, annotations of schedulers, container runtimes, NVML"


def _idle_energy(use: AllocationUse) -> Series:
    return [((reason,), mj / 1000) for reason, mj in use.energy_mj if reason in IDLE_REASONS]


def _energy_while(state: str) -> Callable[[AllocationUse], float | None]:
    return lambda use: next((mj / 1000 for name, mj in use.energy_mj if name == state), None)


def _asked(name: str) -> Callable[[AllocationUse], Series]:
    """The value of an entitlement by its source."""
    read = at(f"entitlement.{name}")

    def series(use: AllocationUse) -> Series:
        value = read(use)
        return () if value is None or use.entitlement is None else (((use.entitlement.source,), value),)

    return series


def _period(path: str, scale: float) -> Callable[[AllocationUse], float | None]:
    read = at(path, scale)
    return lambda use: None if use.idle_since_ns is None else read(use)


ALLOCATIONS: tuple[Family, ...] = (
    Family("gpu_allocation_seconds_total", C, ALLOCATION,
           "Time in which the device was allocated to the owner: busy, idle and unknown seconds add up to it.",
           BOOKS, at("allocated_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_busy_seconds_total", C, ALLOCATION,
           "Allocated time in which the owner's utilization of the device was at least --allocation.low.",
           BOOKS, at("busy_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_idle_seconds_total", C, ALLOCATION,
           "Allocated time in which the owner did not use the device: no_process (none on the device), parked (a "
           "process without work) or low (utilization below --allocation.low).",
           BOOKS, series=named("idle_ns", 1e9), labels=("reason",), unit="seconds"),
    Family("gpu_allocation_unknown_seconds_total", C, ALLOCATION,
           "Allocated time in which it is not known whether the owner used the device.",
           BOOKS, at("unknown_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_idle_gpu_seconds_total", C, ALLOCATION,
           "Idle time as a part of the whole GPU: a MIG instance counts by its slices, and a device that is allocated "
           "several times is divided equally.",
           BOOKS, at("idle_gpu_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_busy_energy_joules_total", C, ALLOCATION,
           "Energy of the owner's processes on the device while it was busy.",
           LEDGER, _energy_while(BUSY), unit="joules"),
    Family("gpu_allocation_idle_energy_joules_total", C, ALLOCATION,
           "Energy while the allocation was idle, by reason: of the owner's processes, and its part of the energy that "
           "the GPU used without any process.",
           LEDGER, series=_idle_energy, labels=("reason",), unit="joules"),
    Family("gpu_allocation_unknown_energy_joules_total", C, ALLOCATION,
           "Energy of the owner's processes while it is not known whether they worked.",
           LEDGER, _energy_while(UNKNOWN_STATE), unit="joules"),
    Family("gpu_allocation_start_timestamp_seconds", G, CURRENT_ALLOCATION,
           "Unix time at which gpuledger first saw the allocation.",
           BOOKS, at("started_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_last_busy_timestamp_seconds", G, CURRENT_ALLOCATION,
           "Unix time at which the allocation was last busy; absent if it never was.",
           BOOKS, at("last_busy_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_idle_since_timestamp_seconds", G, CURRENT_ALLOCATION,
           "Unix time at which the present idle period of the allocation began; absent while it is busy.",
           BOOKS, at("idle_since_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_idle_period_gpu_seconds", G, CURRENT_ALLOCATION,
           "Idle time in the present idle period, as a part of the whole GPU; absent while it is busy.",
           BOOKS, _period("period_gpu_ns", 1e9), unit="seconds"),
    Family("gpu_allocation_idle_period_energy_joules", G, CURRENT_ALLOCATION,
           "Energy of the allocation in the present idle period; absent while it is busy.",
           LEDGER, _period("period_mj", 1000), unit="joules"),
    Family("gpu_allocation_state", G, CURRENT_ALLOCATION,
           "1 for the present state of the allocation: busy, no_process, parked, low or unknown.",
           BOOKS, series=lambda use: (((use.state,), 1),), labels=("state",)),
    Family("gpu_allocation_shared_by", G, CURRENT_ALLOCATION, "Number of allocations of the device.",
           BOOKS, at("shared_by")),
    Family("gpu_entitlement_compute_ratio", G, CURRENT_ALLOCATION,
           "Compute that the owner asked for, as a part of the whole GPU: a sum is a number of GPUs. By source: device "
           "or mig (all of it), replica (of time-slicing or MPS), kai, hami, volcano, dra. Absent if the device was "
           "given to several owners without parts.",
           REQUESTS, series=_asked("compute_ratio"), labels=("source",)),
    Family("gpu_entitlement_memory_bytes", G, CURRENT_ALLOCATION,
           "Memory of the device that the owner asked for, by source as in gpu_entitlement_compute_ratio.",
           REQUESTS, series=_asked("memory_bytes"), labels=("source",), unit="bytes"),
    Family("gpu_entitlement_compute_used_ratio", G, CURRENT_ALLOCATION,
           "Utilization of the GPU by the owner, over gpu_entitlement_compute_ratio.",
           BOOKS, at("compute_used_ratio")),
    Family("gpu_entitlement_memory_used_ratio", G, CURRENT_ALLOCATION,
           "Memory of the device that the owner holds, inferred memory included, over gpu_entitlement_memory_bytes.",
           BOOKS, at("memory_used_ratio")),
)  # fmt: skip
