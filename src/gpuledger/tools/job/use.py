"""What a job used of each of its devices, from the snapshot of an exporter or from a journal. Pure.

Time and energy are those of the idle ledger, which has every device that a prolog recorded for the job. Without a
prolog, energy and memory are those of the job's processes, and the allocated time is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.ledger.state import State
from gpuledger.model import BUSY, IDLE_REASONS, UNKNOWN_STATE, job_id
from gpuledger.tools.prices import Prices
from gpuledger.tools.text import JOULES_PER_KWH
from gpuledger.web.snapshot.schema import Snapshot

NO_ALLOCATION = "the job has no allocation: it ended, or no prolog recorded it; energy is that of its processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What the job used of one GPU or MIG instance. None is unknown."""

    node: str = ""
    gpu: str = ""
    uuid: str = ""
    start: float | None = None
    """Unix time at which the allocation was first seen."""
    end: float
    """Unix time up to which the values count."""
    busy_s: float | None = None
    idle_s: float | None = None
    unknown_s: float | None = None
    """Allocated time in which it is not known whether the job used the device."""
    joules: float | None = None
    memory_bytes: int | None = None
    """Memory of the job's processes: the peak, or that of `end`."""
    idle_since: float | None = None
    """Unix time since which the device is idle until `end`; None if it is busy or unknown."""

    @property
    def allocated_s(self) -> float | None:
        """Allocated time; busy, idle and unknown time add up to it."""
        parts = (self.busy_s, self.idle_s, self.unknown_s)
        return None if None in parts else sum(part for part in parts if part is not None)

    @property
    def tail_s(self) -> float | None:
        """How long the device was idle at the end; None if the allocation is unknown."""
        if self.allocated_s is None:
            return None
        return 0.0 if self.idle_since is None else max(0.0, self.end - self.idle_since)


@dataclass(frozen=True, slots=True)
class JobUse:
    """What the job used of all its devices."""

    job: str
    source: str
    """`exporter`, `journal` or `prometheus`."""
    devices: tuple[DeviceUse, ...]
    has_peak: bool = False
    """Whether `memory_bytes` is the peak, and not the memory at the end."""
    notes: tuple[str, ...] = ()

    def hours(self, name: str) -> float | None:
        """The sum over all devices of a field of DeviceUse in seconds; each device counts in full, as in sacct."""
        total = _total(getattr(device, name) for device in self.devices)
        return None if total is None else total / 3600

    @property
    def gpu_hours(self) -> float | None:
        """Allocated hours."""
        return self.hours("allocated_s")

    @property
    def busy_share(self) -> float | None:
        """Busy time over busy and idle time, from 0 to 1; None if neither was observed."""
        busy, idle = self.hours("busy_s"), self.hours("idle_s")
        return None if busy is None or idle is None or busy + idle <= 0 else busy / (busy + idle)

    @property
    def kwh(self) -> float | None:
        """Energy; None if a device reports none."""
        joules = _total(device.joules for device in self.devices)
        return None if joules is None else joules / JOULES_PER_KWH

    @property
    def memory_bytes(self) -> int | None:
        """The largest memory of the job on one device."""
        return max((d.memory_bytes for d in self.devices if d.memory_bytes is not None), default=None)

    @property
    def tail_s(self) -> float | None:
        """How long all devices together were idle at the end."""
        tails = [device.tail_s for device in self.devices]
        return None if None in tails else min((tail for tail in tails if tail is not None), default=None)

    def cost(self, prices: Prices) -> float | None:
        """The cost of the allocated hours and the energy; None without prices, or if a priced value is unknown."""
        if self.gpu_hours is None and prices.gpu_hour is not None:
            return None
        return prices.cost(self.gpu_hours or 0.0, self.kwh)

    def cost_if_always_busy(self, prices: Prices) -> float | None:
        """The cost times the busy share: what the same work costs on GPUs that are busy all the time."""
        cost, share = self.cost(prices), self.busy_share
        return None if cost is None or share is None else cost * share


class _Process(NamedTuple):
    """A process of the job on one device."""

    uuid: str
    gpu: str
    joules: float | None
    memory_bytes: int | None
    is_present: bool


def of_snapshot(snapshot: Snapshot, job: str) -> JobUse | None:
    """The job on the node of an exporter; None if it has neither an allocation nor a process there."""
    processes = [
        _Process(row.uuid, str(row.gpu), _total(row.joules.values()), row.memory_bytes, row.active is not False)
        for row in snapshot.processes
        if job_id(row.job) == job
    ]
    devices = [
        DeviceUse(
            node=snapshot.node,
            gpu=str(row.gpu),
            uuid=row.uuid,
            start=row.start_time,
            end=snapshot.time,
            busy_s=row.busy_seconds,
            idle_s=sum(row.idle_seconds.values()),
            unknown_s=row.unknown_seconds,
            joules=_total(row.joules.values()),
            memory_bytes=_memory(row.uuid, processes),
            idle_since=row.idle_since if row.state in IDLE_REASONS else None,
        )
        for row in snapshot.allocations
        if row.job == job
    ]
    if devices:
        return JobUse(job, "exporter", tuple(devices))
    return _of_processes(job, "exporter", processes, snapshot.node, snapshot.time)


def of_journal(state: State, job: str, node: str) -> JobUse | None:
    """The job on the node of a journal, up to its last tick; also for some minutes after the job has ended."""
    processes = []
    for row in state.rows:
        if job_id(row.owner.job) == job:
            joules = sum(mj for _, mj in row.energy_mj) / 1000
            memory, is_present = row.resident.memory_bytes, row.active is not False
            processes.append(_Process(row.device.uuid, str(row.device.index), joules, memory, is_present))
    devices = [
        DeviceUse(
            node=node,
            gpu=str(entry.device.index),
            uuid=entry.device.uuid,
            start=entry.started_ns / 1e9,
            end=(state.time_ns - entry.missing_ns) / 1e9,
            busy_s=dict(entry.times_ns).get(BUSY, 0) / 1e9,
            idle_s=sum(ns for reason, ns in entry.times_ns if reason in IDLE_REASONS) / 1e9,
            unknown_s=dict(entry.times_ns).get(UNKNOWN_STATE, 0) / 1e9,
            joules=sum(mj for _, mj in entry.energy_mj) / 1000 if entry.energy_mj else None,
            memory_bytes=_memory(entry.device.uuid, processes),
            idle_since=None if entry.idle_since_ns is None else entry.idle_since_ns / 1e9,
        )
        for entry in state.allocations
        if entry.owner.job == job
    ]
    if devices:
        return JobUse(job, "journal", tuple(devices))
    return _of_processes(job, "journal", processes, node, state.time_ns / 1e9)


def _of_processes(job: str, source: str, processes: Sequence[_Process], node: str, end: float) -> JobUse | None:
    """The energy and memory of the job's processes on each device; None if there is no process."""
    gpus = {process.uuid: process.gpu for process in processes}
    devices = [
        DeviceUse(
            node=node,
            gpu=gpu,
            uuid=uuid,
            end=end,
            joules=_total(process.joules for process in processes if process.uuid == uuid),
            memory_bytes=_memory(uuid, processes),
        )
        for uuid, gpu in gpus.items()
    ]
    return JobUse(job, source, tuple(devices), notes=(NO_ALLOCATION,)) if devices else None


def _memory(uuid: str, processes: Iterable[_Process]) -> int | None:
    """Memory of the processes on a device; None if one of them is unknown, or if there is none."""
    total = _total(process.memory_bytes for process in processes if process.uuid == uuid and process.is_present)
    return None if total is None else round(total)


def _total(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)
