"""What each allocation does in a tick: its state (busy, idle for a reason, or unknown) and what it uses.

A state is idle only if the tick proves it. If work on the device may belong to the allocation, the state is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.allocations.inforce import Allocations, is_unclear
from gpuledger.ledger.memory import Memory
from gpuledger.ledger.rows import ProcessLists, Work
from gpuledger.model import (
    BUSY,
    LOW,
    MPS_OF_ROOT,
    NO_PROCESS,
    PARKED,
    UNKNOWN_STATE,
    AllocationKey,
    ProcessUse,
    Reading,
    Tick,
)

FRESH_NS = 400_000_000
"""A sample is used for this time or for the whole tick, whichever is longer. The driver sends one every 0.2 s."""
NOISE_PCT = 0.1
"""UseNow of a MIG instance below this is not work; the alert GpuAllocatedIdle uses the same limit."""


@dataclass(slots=True)
class _Device:
    """The processes on a device, by the allocation they belong to."""

    busy_pct: float | None
    """Utilization of the device by all processes; None if it is not reported."""
    processes: int = 0
    own: dict[AllocationKey, list[float | None]] = field(default_factory=dict)
    """Utilization by each process of an allocation; None if it is not reported."""
    unclear_work: bool = False
    """Whether a process that may belong to any allocation works, or may work."""
    server_pct: float = 0.0
    """Utilization by MPS servers of root, whose clients have no samples. Any tenant can start another server."""
    has_workers: bool = False
    """Whether a listed process works."""


@dataclass(frozen=True, slots=True)
class UseNow:
    """What the owner of an allocation does on the device."""

    state: str
    used_pct: float | None = None
    """Utilization; None if it cannot be told from that of others."""
    memory_bytes: int | None = None
    """Memory of its processes, inferred memory included; None if it is not reported."""


class Idleness:
    """Finds the states. Work below `low_pct` percent of a device is not busy."""

    def __init__(self, low_pct: float) -> None:
        self._low_pct = low_pct

    def states(
        self,
        tick: Tick,
        allocations: Allocations,
        *,
        listed: Iterable[ProcessUse],
        work: Mapping[str, Work],
        memory: Memory,
        lists: ProcessLists,
        elapsed_ns: int,
    ) -> dict[AllocationKey, UseNow]:
        """What every allocation does. `work` includes processes that came and went between two ticks."""
        readings = {reading.device.uuid: reading for reading in tick.readings}
        devices = {
            uuid: _Device(_busy_pct(readings[uuid], readings.values()))
            for uuid in allocations.by_device
            if uuid in readings and readings[uuid].up and lists.are_known(readings[uuid].device)
        }
        oldest_us = (tick.time_ns - max(elapsed_ns, FRESH_NS)) // 1000
        holding: Counter[AllocationKey | None] = Counter()
        unmeasured: set[AllocationKey | None] = set()
        for use in listed:
            key = allocations.of(use.device, use.owner)
            holding[key] += use.resident.memory_bytes or 0
            if use.resident.memory_bytes is None:
                unmeasured.add(key)
            for uuid in dict.fromkeys((use.device.uuid, use.device.gpu_uuid)):
                if uuid in devices:
                    _add(devices[uuid], use, key, oldest_us)
        brief = _brief_work(allocations, work, elapsed_ns)
        inferred: Counter[AllocationKey | None] = Counter()
        for part in memory.inferred:
            inferred[allocations.of(part.device, part.owner)] += part.memory_bytes
        found = {}
        for key, allocation in allocations.by_key.items():
            device = devices.get(allocation.device.uuid)
            if device is None:
                found[key] = UseNow(UNKNOWN_STATE)
                continue
            own = device.own.get(key)
            pct = _pct(device, own) if own else 0.0
            pct = None if pct is None else max(pct, brief.get(key, 0.0))
            hidden = allocation.device.gpu_uuid in memory.hidden
            state = self._state(device, pct, holds=bool(own) or key in inferred, hidden=hidden)
            found[key] = UseNow(state, pct, None if key in unmeasured else holding[key] + inferred[key])
        return found

    def _state(self, device: _Device, pct: float | None, *, holds: bool, hidden: bool) -> str:
        """The state of one allocation, which `holds` memory or processes; a `hidden` process is on its GPU."""
        if pct is None:
            return UNKNOWN_STATE
        if pct and pct >= self._low_pct:
            return BUSY
        if device.unclear_work or _has_hidden_work(device, hidden=hidden):
            return UNKNOWN_STATE
        if pct:
            return LOW
        return PARKED if holds else NO_PROCESS


def _has_hidden_work(device: _Device, *, hidden: bool) -> bool:
    """Whether the device works or may work, and no listed process explains it."""
    if device.busy_pct == 0 or device.has_workers:
        return False
    return hidden or bool(device.busy_pct and not device.processes)


def _add(device: _Device, use: ProcessUse, key: AllocationKey | None, oldest_us: int) -> None:
    pct = _sample_pct(use, oldest_us)
    device.processes += 1
    device.has_workers |= bool(pct)
    if key is not None:
        device.own.setdefault(key, []).append(pct)
    elif use.facts is not None and use.facts.mps_server == MPS_OF_ROOT:
        device.server_pct = max(device.server_pct, pct or 0.0)
    elif is_unclear(use.owner) and pct != 0 and device.busy_pct != 0:
        device.unclear_work = True


def _pct(device: _Device, own: Sequence[float | None]) -> float | None:
    """Utilization by an allocation's own processes; None if it cannot be told from that of others.

    If all processes on the device are its own, the utilization of the device is too. The work of an MPS server counts
    for each allocation on the device, because the driver does not report its clients.
    """
    known = [pct for pct in own if pct is not None]
    if len(own) == device.processes and device.busy_pct is not None:
        return max(device.busy_pct, sum(known))
    if device.busy_pct == 0:
        return float(sum(known))
    return max(float(sum(known)), device.server_pct) if len(known) == len(own) else None


def _sample_pct(use: ProcessUse, oldest_us: int) -> float | None:
    """Utilization of the compute engine or the video engines; the driver has no samples of MIG instances."""
    if use.sample is None or use.device.parent_uuid:
        return None
    if use.sample.timestamp_us <= oldest_us:
        return 0.0
    return float(max(use.sample.sm_pct, use.sample.encoder_pct, use.sample.decoder_pct))


def _busy_pct(reading: Reading, readings: Iterable[Reading]) -> float | None:
    """Utilization of a device: of a MIG instance its activity, of a partitioned GPU that of its busiest instance."""
    instances = [other for other in readings if other.device.parent_uuid == reading.device.uuid]
    if instances or reading.device.parent_uuid:
        known = [_activity_pct(instance) for instance in instances or [reading]]
        return None if None in known else max(pct for pct in known if pct is not None)
    engines = (reading.encoder_pct, reading.decoder_pct, reading.jpeg_pct, reading.optical_flow_pct)
    if reading.utilization_pct is None:
        return None
    return float(max(reading.utilization_pct, *(pct for pct in engines if pct is not None), 0))


def _activity_pct(reading: Reading) -> float | None:
    if reading.activity is None or reading.activity_outdated:
        return None
    known = [pct for pct in (reading.activity.graphics_pct, reading.activity.sm_pct) if pct is not None]
    pct = max(known, default=None)
    return 0.0 if pct is not None and pct < NOISE_PCT else pct


def _brief_work(allocations: Allocations, work: Mapping[str, Work], elapsed_ns: int) -> dict[AllocationKey, float]:
    """Utilization by processes that are not listed, because they came and went between two ticks, or are hidden."""
    brief: dict[AllocationKey, float] = {}
    for on_gpu in work.values() if elapsed_ns else ():
        for row in on_gpu.unlisted:
            if (key := allocations.of(row.device, row.owner)) is not None:
                brief[key] = brief.get(key, 0.0) + 100 * on_gpu.busy_ns.get(row, 0) / elapsed_ns
    return brief
