"""The idle ledger: how long each allocation was busy and idle, and the energy it used meanwhile.

allocated = busy + idle + unknown, to the nanosecond, also across restarts. The energy of an allocation is that of its
own processes, and its part of the energy that the GPU used without any process: no millijoule counts for two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpuledger.allocations.inforce import Allocations
from gpuledger.allocations.states import UseNow
from gpuledger.ledger.ledger import Booked
from gpuledger.ledger.split import apportion
from gpuledger.model import (
    BUSY,
    IDLE_REASONS,
    NO_INDEX,
    UNKNOWN_STATE,
    Allocation,
    AllocationKey,
    AllocationUse,
    Device,
    Entitlement,
    Labelled,
    Owner,
    allocation_key,
)

GRACE_NS = 60_000_000_000
"""A pod without a uid that returns after a longer absence is another pod of the same name."""
UNOBSERVED_NS = 300_000_000_000
"""A longer time in an unknown state ends an idle period: the allocation may have been busy."""
NOT_KNOWN = UseNow(UNKNOWN_STATE)


@dataclass(slots=True)
class Entry:
    """One allocation. Part of the journal."""

    device: Device
    owner: Owner
    started_ns: int
    state: str = ""
    shared_by: int = 1
    last_busy_ns: int | None = None
    idle_since_ns: int | None = None
    times_ns: dict[str, int] = field(default_factory=dict)
    """By state."""
    energy_mj: dict[str, int] = field(default_factory=dict)
    """By state."""
    idle_gpu_ns: int = 0
    period_gpu_ns: int = 0
    period_mj: int = 0
    unobserved_ns: int = 0
    """Time in an unknown state since the last known one."""
    missing_ns: int = 0
    """How long the allocation is not listed any more."""
    away_ns: int = 0
    """How long the exporter did not run since the allocation was last seen."""
    absent_mj: int = 0
    """Energy since the allocation was last seen; counts if the allocation is listed again."""
    pending_ns: dict[str, int] = field(default_factory=dict)
    """Time by state since the GPU's energy was last booked. Not in the journal."""

    def spend(self, energy_mj: int) -> None:
        """Add the energy of an interval, divided by the time in each state."""
        if any(self.pending_ns.values()):
            for state, mj in apportion(energy_mj, self.pending_ns).items():
                if mj:
                    self.energy_mj[state] = self.energy_mj.get(state, 0) + mj
                if state in IDLE_REASONS and self.idle_since_ns is not None:
                    self.period_mj += mj
        self.pending_ns = {}

    def pass_time(self, state: str, elapsed_ns: int, gpu_ns: int, time_ns: int) -> None:
        """Add time in a state; `gpu_ns` is its part of the GPU, `time_ns` the Unix time at its end."""
        self.state = state
        if elapsed_ns:
            self.times_ns[state] = self.times_ns.get(state, 0) + elapsed_ns
            self.pending_ns[state] = self.pending_ns.get(state, 0) + elapsed_ns
        if state == UNKNOWN_STATE:
            self.unobserved_ns += elapsed_ns
            if self.unobserved_ns > UNOBSERVED_NS:
                self._end_period()
            return
        self.unobserved_ns = 0
        if state == BUSY:
            self.last_busy_ns = time_ns
            self._end_period()
            return
        self.idle_gpu_ns += gpu_ns
        if self.idle_since_ns is None:
            self.idle_since_ns = max(time_ns - elapsed_ns, self.started_ns)
        self.period_gpu_ns += gpu_ns

    def _end_period(self) -> None:
        self.idle_since_ns, self.period_gpu_ns, self.period_mj = None, 0, 0

    def use(self, time_ns: int, now: UseNow, entitlement: Entitlement | None, *, has_energy: bool) -> AllocationUse:
        """The allocation as shown. A moment after `time_ns` was recorded before the clock was set back."""
        is_over = bool(self.missing_ns) or not self.state
        return AllocationUse(
            device=self.device,
            owner=self.owner,
            state="" if is_over else self.state,
            shared_by=self.shared_by,
            started_ns=min(self.started_ns, time_ns),
            last_busy_ns=None if self.last_busy_ns is None else min(self.last_busy_ns, time_ns),
            idle_since_ns=None if self.idle_since_ns is None else min(self.idle_since_ns, time_ns),
            busy_ns=self.times_ns.get(BUSY, 0),
            idle_ns=tuple((reason, self.times_ns.get(reason, 0)) for reason in IDLE_REASONS),
            unknown_ns=self.times_ns.get(UNKNOWN_STATE, 0),
            idle_gpu_ns=self.idle_gpu_ns,
            energy_mj=_energy(self.energy_mj) if has_energy else (),
            period_gpu_ns=self.period_gpu_ns,
            period_mj=self.period_mj if has_energy else None,
            entitlement=entitlement,
            used_pct=now.used_pct,
            memory_bytes=now.memory_bytes,
        )


def _energy(energy_mj: Mapping[str, int]) -> Labelled:
    return tuple((state, energy_mj.get(state, 0)) for state in (BUSY, *IDLE_REASONS, UNKNOWN_STATE))


class AllocationBook:
    """All allocations, at most `most`. One that ended is kept for `keep_ns`, so that its last values are scraped."""

    def __init__(self, keep_ns: int, longest_ns: int, most: int | None = None) -> None:
        self._keep_ns, self._longest_ns, self._most = keep_ns, longest_ns, most
        self._entries: dict[AllocationKey, Entry] = {}
        self.dropped = 0
        """Allocations of the last tick beyond the limit."""

    def state(self) -> list[Entry]:
        """The allocations, for the journal."""
        return list(self._entries.values())

    def resume(self, entries: Iterable[Entry]) -> None:
        """Start with the allocations of a journal."""
        self._entries = {allocation_key(entry.device, entry.owner): entry for entry in entries}

    def pause(self, elapsed_ns: int) -> None:
        """The exporter did not run for this time, before the first tick."""
        for entry in self._entries.values():
            entry.away_ns += elapsed_ns

    def book(
        self,
        allocations: Allocations,
        states: Mapping[AllocationKey, UseNow],
        booked: Iterable[Booked],
        metered: Collection[str],
        *,
        elapsed_ns: int,
        time_ns: int,
    ) -> tuple[AllocationUse, ...]:
        """Add one tick: the time since the previous one in its state, and the energy of the completed intervals.

        `metered` are the GPUs that report energy.
        """
        self.dropped = 0
        parts_ns: dict[AllocationKey, int] = {}
        for gpu in allocations.by_gpu:
            weights = allocations.weights(gpu)
            parts_ns |= {key: elapsed_ns * weight // sum(weights.values()) for key, weight in weights.items()}
        present = allocations.by_key
        for key, allocation in present.items():
            state = states[key].state
            self._pass_time(key, allocation, state, part_ns=parts_ns[key], elapsed_ns=elapsed_ns, time_ns=time_ns)
            if key in self._entries:
                self._entries[key].shared_by = len(allocations.by_device[allocation.device.uuid])
        self._age(present, elapsed_ns)
        absent = Allocations(
            {key: Allocation(e.device, e.owner) for key, e in self._entries.items() if key not in present}
        )
        for interval in booked:
            self._spend(allocations, absent, interval)
        return tuple(
            entry.use(
                time_ns,
                states.get(key, NOT_KNOWN),
                allocations.entitlement(key) if key in present else None,
                has_energy=entry.device.gpu_uuid in metered,
            )
            for key, entry in self._entries.items()
        )

    def _pass_time(
        self, key: AllocationKey, allocation: Allocation, state: str, *, part_ns: int, elapsed_ns: int, time_ns: int
    ) -> None:
        entry = self._entries.get(key)
        if entry is not None and _is_other(entry, allocation):
            del self._entries[key]
            entry = None
        if entry is None:
            if allocation.device.index != NO_INDEX and self._has_room():
                entry = self._entries[key] = Entry(allocation.device, allocation.owner, time_ns)
                entry.pass_time(state, 0, 0, time_ns)
            return
        if allocation.device.index != NO_INDEX:  # the driver is up
            entry.device = allocation.device
        if allocation.owner.pod_uid or not entry.owner.pod_uid:  # the runtime may not have answered yet
            entry.owner = allocation.owner
        absent_ns = entry.missing_ns + entry.away_ns
        if entry.absent_mj:
            entry.energy_mj[UNKNOWN_STATE] = entry.energy_mj.get(UNKNOWN_STATE, 0) + entry.absent_mj
        entry.missing_ns = entry.away_ns = entry.absent_mj = 0
        if absent_ns or elapsed_ns > self._longest_ns:
            entry.pass_time(UNKNOWN_STATE, absent_ns + elapsed_ns, 0, time_ns)
            entry.pass_time(state, 0, 0, time_ns)
        else:
            entry.pass_time(state, elapsed_ns, part_ns, time_ns)

    def _has_room(self) -> bool:
        """Whether an allocation can be added; the one that ended first makes room for it."""
        if self._most is None or len(self._entries) < self._most:
            return True
        ended = [(entry.missing_ns, key) for key, entry in self._entries.items() if entry.missing_ns]
        if not ended:
            self.dropped += 1
            return False
        del self._entries[max(ended)[1]]
        return True

    def _age(self, present: Collection[AllocationKey], elapsed_ns: int) -> None:
        for key, entry in list(self._entries.items()):
            if key not in present:
                entry.missing_ns += elapsed_ns
                entry.state, entry.pending_ns = "", {}
                if entry.missing_ns >= self._keep_ns:
                    del self._entries[key]

    def _spend(self, allocations: Allocations, absent: Allocations, interval: Booked) -> None:
        """Divide the energy of an interval among the allocations of its GPU.

        What belongs to none of them may belong to an `absent` one: after a restart, providers answer late.
        """
        spent_mj: Counter[AllocationKey] = Counter()
        for row, mj in interval.spent_mj.items():
            key = allocations.of(row.device, row.owner) or absent.of(row.device, row.owner)
            if key is not None:
                spent_mj[key] += mj
        weights = allocations.weights(interval.gpu) or absent.weights(interval.gpu)
        if interval.idle_mj and weights:
            spent_mj.update(apportion(interval.idle_mj, weights))
        for key in allocations.by_gpu.get(interval.gpu, ()):
            if (entry := self._entries.get(key)) is not None:
                entry.spend(spent_mj[key])
        for key in absent.by_gpu.get(interval.gpu, ()):
            self._entries[key].absent_mj += spent_mj[key]


def _is_other(entry: Entry, allocation: Allocation) -> bool:
    """Whether the allocation is another one with the same names: a pod that was deleted and created again."""
    before, now = entry.owner.pod_uid, allocation.owner.pod_uid
    if before and now:
        return before != now
    return bool(allocation.owner.pod) and entry.missing_ns > GRACE_NS
