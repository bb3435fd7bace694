"""One GPU's energy between two moments, and who gets it: the rules of the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuledger.books.fingerprint import Activities
from gpuledger.books.meter import NS_MW_PER_MJ
from gpuledger.books.rows import Row
from gpuledger.books.shares import apportion, equally


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user decides."""

    strict: bool = False
    """Book only what is measured: one process alone."""
    parked_apart: bool = False
    """Book the power of processes that only wait to nobody instead of to all of them equally."""
    method: str = "fingerprint"
    """How energy above parked power is split: `fingerprint` where it can be, or always by `sm_time`."""


@dataclass(slots=True)
class Interval:
    """What is known of the time between two closings of a GPU's books."""

    since_ns: int
    before: frozenset[Row] | None
    """Who was there at its beginning; None when the driver did not say."""
    power_mw: int | None = None
    """At its beginning."""
    seen: set[Row] = field(default_factory=set)
    energy_mj: int = 0
    closed: bool = False
    """Whether the books were closed in between, and only a journal went on."""
    failed: bool = False
    """Whether there was a tick in which the GPU, or its list of processes, did not answer."""
    work_told: bool = False
    work_ns: dict[Row, int] = field(default_factory=dict)
    glimpsed: set[Row] = field(default_factory=set)
    """Those of `seen` that worked and were never listed."""
    hidden: bool = False
    """Whether memory says that somebody was there who is not listed."""
    activity: dict[str, int] = field(default_factory=dict)
    """MIG: by instance, how much of how many multiprocessors was busy for how long."""
    activity_missing: set[str] = field(default_factory=set)
    activity_s: list[float] = field(default_factory=list)
    """Of the whole GPU: how busy each part was, times how long."""
    activity_told_s: float = 0.0

    def __post_init__(self) -> None:
        self.seen |= self.before or frozenset()

    def forget(self) -> None:
        """It is too long to be split; who was there need not be kept."""
        self.before, self.failed = None, True
        self.seen, self.work_ns, self.glimpsed = set(), {}, set()

    def saw(self, busy: Activities | None, seconds: float) -> None:
        """Add how busy the parts of the GPU were for that long."""
        if busy is not None and seconds > 0:
            before = self.activity_s or [0.0] * len(busy)
            self.activity_s = [old + new * seconds for old, new in zip(before, busy, strict=True)]
            self.activity_told_s += seconds

    def activities(self, elapsed_s: float) -> Activities | None:
        """How busy each part of the GPU was; None when that was not told for most of the time."""
        if self.activity_told_s < 0.8 * elapsed_s:
            return None
        return tuple(amount / self.activity_told_s for amount in self.activity_s)


@dataclass(slots=True)
class Split:
    """Where an interval's energy goes."""

    idle_mj: int = 0
    rows: list[tuple[Row, str, int]] = field(default_factory=list)
    unattributed: dict[str, int] = field(default_factory=dict)

    def give(self, shares: Mapping[Row, int], method: str) -> None:
        """Book shares to processes."""
        self.rows += [(row, method, mj) for row, mj in shares.items() if mj]

    def leave(self, mj: int, reason: str) -> None:
        """Book to nobody."""
        if mj:
            self.unattributed[reason] = self.unattributed.get(reason, 0) + mj

    def total_mj(self) -> int:
        """All of it."""
        return self.idle_mj + sum(mj for *_, mj in self.rows) + sum(self.unattributed.values())


def split(
    interval: Interval,
    after: frozenset[Row] | None,
    elapsed_ns: int,
    *,
    longest_ns: int,
    idle_mw: int | None,
    parked_mw: int | None,
    policy: Policy,
    weights: Mapping[Row, int] | None = None,
) -> Split:
    """Who gets the interval's energy: all of it, once. `weights` are fingerprint shares, where there are any."""
    result = Split()
    energy_mj, seen, before = interval.energy_mj, interval.seen, interval.before
    alone = len(seen) == 1 and bool(before) and before == after
    if interval.closed:
        # Nobody looked: that no other came and went is likely, and not measured.
        if alone and not interval.hidden and not policy.strict:
            result.give(dict.fromkeys(seen, energy_mj), "gap")
        else:
            result.leave(energy_mj, "gap")
    elif not 0 < elapsed_ns <= longest_ns:
        result.leave(energy_mj, "error" if interval.failed else "gap")
    elif before is None or after is None or (interval.failed and not alone):
        result.leave(energy_mj, "error")
    elif not seen and interval.hidden:
        result.leave(energy_mj, "unseen")
    elif not seen:
        result.idle_mj = energy_mj
    elif alone and not interval.hidden:
        result.give(dict.fromkeys(seen, energy_mj), "exclusive")
    elif policy.strict:
        result.leave(energy_mj, "shared")
    elif seen <= interval.glimpsed or (len(seen) == 1 and not interval.hidden):
        _came_and_went(result, interval, _at_most(energy_mj, idle_mw, elapsed_ns))
    else:
        _shared(result, interval, _at_most(energy_mj, parked_mw, elapsed_ns), policy, weights)
    return result


def _at_most(energy_mj: int, power_mw: int | None, elapsed_ns: int) -> int:
    return min(energy_mj, (power_mw or 0) * elapsed_ns // NS_MW_PER_MJ)


def _came_and_went(result: Split, interval: Interval, idle_mj: int) -> None:
    """Nobody was there all the time: the power of an empty GPU is nobody's, the rest theirs by their work."""
    if interval.hidden:
        result.leave(idle_mj, "unseen")
    else:
        result.idle_mj = idle_mj
    if len(interval.seen) == 1:
        result.give(dict.fromkeys(interval.seen, interval.energy_mj - idle_mj), "edge")
    else:
        work = {row: ns for row, ns in interval.work_ns.items() if row in interval.seen}
        result.give(apportion(interval.energy_mj - idle_mj, work), "sm_time")


def _shared(
    result: Split, interval: Interval, parked_mj: int, policy: Policy, weights: Mapping[Row, int] | None
) -> None:
    seen = interval.seen
    servers, clients = _mps(interval)
    migs = {row.device.uuid for row in seen if row.device.parent_uuid}
    active_mj = interval.energy_mj - parked_mj
    if migs:
        instances = _mig_weights(interval, migs)
        if sum(instances.values()):
            _give_instances(result, interval, active_mj, instances)
        else:
            parked_mj = interval.energy_mj
    elif not interval.work_told:
        result.leave(active_mj, "shared")
    elif weights is not None:
        result.give(apportion(active_mj, weights), "fingerprint")
    else:
        work = {row: ns for row, ns in interval.work_ns.items() if row in seen}
        if sum(work.values()):
            _give_work(result, active_mj, work, servers, clients)
        else:
            parked_mj = interval.energy_mj
    waiting = seen - servers - interval.glimpsed
    if interval.hidden:  # who is not listed waits as well
        hidden_mj = parked_mj // (len(waiting) + 1)
        result.leave(hidden_mj, "unseen")
        parked_mj -= hidden_mj
    if policy.parked_apart:
        result.leave(parked_mj, "parked")
    else:
        result.give(equally(parked_mj, waiting), "parked")


def _give_work(result: Split, energy_mj: int, work: dict[Row, int], servers: set[Row], clients: set[Row]) -> None:
    """By time on the compute engine; what a server of MPS gets is its clients'."""
    shares = apportion(energy_mj, work)
    result.give({row: mj for row, mj in shares.items() if row not in servers}, "sm_time")
    if served_mj := sum(mj for row, mj in shares.items() if row in servers):
        result.give(equally(served_mj, clients), "mps")


def _mps(interval: Interval) -> tuple[set[Row], set[Row]]:
    """Servers of MPS that have clients, and those. The driver's samples name only the server.

    Clients are those in the driver's MPS list; where it is empty (H200), those of whom no work was seen.
    """
    servers = {row for row in interval.seen if row.is_mps_server}
    if not servers:
        return set(), set()
    others = interval.seen - servers
    listed = {row for row in others if "mps" in row.resident.kind}
    clients = listed or {row for row in others if not interval.work_ns.get(row)}
    return (servers, clients) if clients else (set(), set())


def _mig_weights(interval: Interval, migs: Iterable[str]) -> dict[str, int]:
    """By activity where every instance in use tells it, else all instances in use alike."""
    if interval.activity_missing & set(migs) or not set(migs) <= set(interval.activity):
        return dict.fromkeys(migs, 1)
    return interval.activity


def _give_instances(result: Split, interval: Interval, energy_mj: int, weights: Mapping[str, int]) -> None:
    for uuid, mj in apportion(energy_mj, weights).items():
        rows = [row for row in interval.seen if row.device.uuid == uuid]
        if rows:
            result.give(equally(mj, rows), "mig")
        else:
            result.leave(mj, "unseen")
