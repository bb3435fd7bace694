"""The energy of one GPU in one interval, and the rules that attribute it to processes.

docs/attribution.md explains the rules with an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuledger.ledger.rows import Row, Work
from gpuledger.model import MPS_OF_ROOT, Reading
from gpuledger.shares.fingerprint import Activities, activities, relative_clock

NS_MW_PER_MJ = 1_000_000_000
QUIET_NS = 50_000_000
"""An interval shorter than this is not used to learn the power of a GPU at rest."""
K = TypeVar("K", bound=Any)  # sortable keys


def apportion(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Split `total` in proportion to the weights by largest remainder; the shares add up to `total` exactly.

    Equal remainders are rounded up in the order of the keys. No share differs from the exact proportion by 1 or more,
    and a weight of 0 gets 0. At least one weight must be positive.
    """
    whole = sum(weights.values())
    if total < 0 or whole <= 0:
        raise ValueError(f"cannot split {total} by weights that add up to {whole}")
    shares = {key: total * weight // whole for key, weight in weights.items()}
    remainder = total - sum(shares.values())
    if not remainder:
        return shares
    for key in sorted(weights, key=lambda key: (-(total * weights[key] % whole), key))[:remainder]:
        shares[key] += 1
    return shares


def equally(total: int, keys: Iterable[K]) -> dict[K, int]:
    """Split `total` into equal shares; they differ by 1 at most."""
    return apportion(total, dict.fromkeys(keys, 1))


@dataclass(frozen=True, slots=True)
class Policy:
    """How the user wants shared energy to be split."""

    strict: bool = False
    """Attribute only measured energy: that of one process alone on a GPU."""
    parked_apart: bool = False
    """Report parked power as unattributed instead of splitting it equally between the processes on the GPU."""
    method: str = "fingerprint"
    """How to split energy above parked power: `fingerprint` where possible, or always `sm_time`."""


@dataclass(slots=True)
class Interval:
    """The observations of one GPU since its energy was last booked."""

    start_ns: int
    at_start: frozenset[Row] | None
    """The processes on the GPU at the start of the interval; None if unknown."""
    power_mw: int | None = None
    """Power at the start of the interval."""
    rows: set[Row] = field(default_factory=set)
    """Every process that was on the GPU during the interval, however briefly."""
    energy_mj: int = 0
    restarted: bool = False
    """The exporter restarted within the interval and resumed from its journal."""
    failed: bool = False
    """The GPU or its process list could not be read in at least one tick."""
    has_samples: bool = False
    """The driver reports utilization by process."""
    busy_ns: dict[Row, int] = field(default_factory=dict)
    unlisted: set[Row] = field(default_factory=set)
    """Processes that worked but were in no process list."""
    hidden: bool = False
    """Used memory shows that an unlisted process is on the GPU."""
    mig_busy: dict[str, int] = field(default_factory=dict)
    """SM activity x multiprocessors x time, by MIG instance."""
    mig_activity: dict[str, list[float]] = field(default_factory=dict)
    """Activity of each unit x seconds, by MIG instance."""
    mig_engine_s: dict[str, float] = field(default_factory=dict)
    """Time in which a kernel ran, by MIG instance."""
    mig_sizes: dict[str, int] = field(default_factory=dict)
    """Multiprocessors, by MIG instance."""
    mig_clock: float = 1.0
    """SM clock of the GPU in the last tick, relative to its highest value."""
    gpu_size: int | None = None
    """Multiprocessors of the whole GPU."""
    mig_missing: set[str] = field(default_factory=set)
    """MIG instances that did not report their activity in at least one tick."""
    mig_held: bool = False
    """Whether the activity of an instance is from an earlier tick; then nothing can be learned from it."""
    mig_outdated: bool = False
    """Whether the next tick will have the activity that the last one lacks."""
    mig_measured_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the activity, by MIG instance."""
    activity_s: list[float] = field(default_factory=list)
    """Activity of each unit of the GPU x seconds."""
    activity_measured_s: float = 0.0
    clock_s: float = 0.0
    """SM clock relative to its highest value x seconds, while activity was measured."""
    slots: list[Activities] = field(default_factory=list)
    """Activity of the GPU in parts of the interval of about 0.2 s."""
    slot_ends: list[tuple[int, int | None]] = field(default_factory=list)
    """Time and power (mW) at the end of each slot."""
    sampled_ns: dict[int, int] = field(default_factory=dict)
    """Time of the last sample of each process, by pid."""

    def __post_init__(self) -> None:
        self.rows |= self.at_start or frozenset()

    def observe(
        self,
        reading: Reading,
        migs: Iterable[Reading],
        present: frozenset[Row] | None,
        work: Work,
        *,
        hidden: bool,
        now_ns: int,
        time_ns: int,
        elapsed_ns: int,
    ) -> None:
        """Add the observations of one tick; `time_ns` is `now_ns` on the clock of the driver's samples."""
        if present is None:
            self.failed = True
        else:
            self.rows |= present
        self.has_samples |= work.has_samples
        self.rows |= work.unlisted
        self.unlisted = (self.unlisted | work.unlisted) - (present or frozenset())
        self.hidden |= hidden
        for row, busy_ns in work.busy_ns.items():
            self.busy_ns[row] = self.busy_ns.get(row, 0) + busy_ns
        self.mig_clock, self.gpu_size = relative_clock(reading), reading.device.multiprocessors
        self.mig_outdated = False
        for mig in migs:
            self._observe_mig(mig, self.mig_clock, elapsed_ns)
        if self.restarted and self._names_other_process(reading):
            self.at_start = None
        self._observe_activity(reading, elapsed_ns / 1e9, now_ns)
        if self.slots:
            self.sampled_ns |= {
                sample.pid: sample.timestamp_us * 1000 - time_ns + now_ns
                for sample in reading.samples or ()
                if sample.sm_pct
            }

    def _observe_activity(self, reading: Reading, seconds: float, now_ns: int) -> None:
        clocks = [relative_clock(reading, slot.sm_clock_mhz) for slot in reading.slots] or [relative_clock(reading)]
        clock = sum(clocks) / len(clocks)
        activity = activities(reading.activity, clock)
        if activity is None or seconds <= 0:
            return
        sums = self.activity_s or [0.0] * len(activity)
        self.activity_s = [old + new * seconds for old, new in zip(sums, activity, strict=True)]
        self.activity_measured_s += seconds
        self.clock_s += clock * seconds
        for slot, slot_clock in zip(reading.slots, clocks, strict=False):  # without slots there is the tick's clock
            self.slots.append(activities(slot.activity, slot_clock) or activity)
            self.slot_ends.append((now_ns - slot.ended_ms * 1_000_000, slot.power_mw))

    def _observe_mig(self, mig: Reading, clock: float, elapsed_ns: int) -> None:
        uuid, multiprocessors = mig.device.uuid, mig.device.multiprocessors
        units = activities(mig.activity, clock)
        if mig.activity is None or mig.activity.sm_pct is None or units is None or not multiprocessors:
            self.mig_missing.add(uuid)
            return
        self.mig_held |= mig.activity_held
        if mig.activity_outdated:
            self.mig_outdated = True
            return
        busy = int(max(0.0, mig.activity.sm_pct) * 1000) * multiprocessors * (elapsed_ns // 1_000_000 + 1)
        self.mig_busy[uuid] = self.mig_busy.get(uuid, 0) + busy
        self.mig_sizes[uuid] = multiprocessors
        seconds = elapsed_ns / 1e9
        self.mig_measured_s[uuid] = self.mig_measured_s.get(uuid, 0.0) + seconds
        sums = self.mig_activity.get(uuid) or [0.0] * len(units)
        self.mig_activity[uuid] = [old + new * seconds for old, new in zip(sums, units, strict=True)]
        engine_pct = mig.activity.graphics_pct or mig.activity.sm_pct
        self.mig_engine_s[uuid] = self.mig_engine_s.get(uuid, 0.0) + engine_pct / 100 * seconds

    def _names_other_process(self, reading: Reading) -> bool:
        """Whether samples or accounting, which cover the recent past, name a process outside the interval."""
        pids = {sample.pid for sample in reading.samples or ()} | {account.pid for account in reading.accounting}
        return not pids <= {row.pid for row in self.rows}

    def forget_processes(self) -> None:
        """Drop the processes of an interval that is too long to be split; this bounds its memory."""
        self.at_start, self.failed = None, True
        self.rows, self.busy_ns, self.unlisted = set(), {}, set()
        self.slots, self.slot_ends, self.sampled_ns = [], [], {}

    def activities(self, elapsed_s: float) -> Activities | None:
        """Mean activity of each unit; None if it was measured for less than 80 % of the interval."""
        if self.activity_measured_s < 0.8 * elapsed_s:
            return None
        return tuple(amount / self.activity_measured_s for amount in self.activity_s)

    def clock(self) -> float:
        """Mean SM clock relative to its highest value."""
        return self.clock_s / self.activity_measured_s if self.activity_measured_s else 1.0

    def has_worked(self, present: frozenset[Row] | None) -> bool:
        """Whether a process worked while none came or left."""
        return (
            not self.failed
            and not self.restarted
            and bool(self.rows)
            and self.at_start == present
            and (any(self.busy_ns.values()) or any(self.mig_busy.values()))
        )

    def is_quiet(self, reading: Reading, present: frozenset[Row] | None, elapsed_ns: int) -> bool:
        """Whether no process came, left or worked, so that the interval's power is that of a GPU at rest."""
        return (
            not self.failed
            and not self.restarted
            and present is not None
            and self.at_start == present
            and len(self.rows) == len(present)
            and elapsed_ns >= QUIET_NS
            and reading.utilization_pct in (0, None)
            and not self.hidden
            and not any(self.busy_ns.values())
            and not any(self.mig_busy.values())
            and (self.has_samples or bool(self.mig_busy) or not present)
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """Estimated shares of the energy above parked power."""

    method: str
    rows: Mapping[Row, int]
    unseen: int = 0
    """Weight of MIG instances that are busy without a process."""


@dataclass(slots=True)
class Split:
    """The accounts to which an interval's energy is booked."""

    idle_mj: int = 0
    entries: list[tuple[Row, str, int]] = field(default_factory=list)
    """Process, method and millijoules."""
    unattributed_mj: dict[str, int] = field(default_factory=dict)
    """By reason."""

    def attribute(self, shares: Mapping[Row, int], method: str) -> None:
        """Book shares to processes."""
        self.entries += [(row, method, mj) for row, mj in shares.items() if mj]

    def leave(self, mj: int, reason: str) -> None:
        """Book energy as unattributed."""
        if mj:
            self.unattributed_mj[reason] = self.unattributed_mj.get(reason, 0) + mj

    def total_mj(self) -> int:
        """The sum over all accounts: the interval's energy."""
        return self.idle_mj + sum(mj for *_, mj in self.entries) + sum(self.unattributed_mj.values())


def split(
    interval: Interval,
    at_end: frozenset[Row] | None,
    elapsed_ns: int,
    *,
    longest_ns: int,
    idle_mw: int | None,
    parked_mw: int | None,
    policy: Policy,
    weights: Weights | None = None,
) -> Split:
    """Split the interval's energy, all of it, once. `weights` are estimated shares, if there are any."""
    result = Split()
    energy_mj, rows, at_start = interval.energy_mj, interval.rows, interval.at_start
    alone = len(rows) == 1 and bool(at_start) and at_start == at_end
    if interval.restarted:
        # No tick was read in between. That no other process came and went is likely, but not measured.
        if alone and not interval.hidden and not policy.strict:
            result.attribute(dict.fromkeys(rows, energy_mj), "gap")
        else:
            result.leave(energy_mj, "gap")
    elif not 0 < elapsed_ns <= longest_ns:
        result.leave(energy_mj, "error" if interval.failed else "gap")
    elif at_start is None or at_end is None or (interval.failed and not alone):
        result.leave(energy_mj, "error")
    elif not rows and interval.hidden:
        result.leave(energy_mj, "unseen")
    elif not rows:
        result.idle_mj = energy_mj
    elif alone and not interval.hidden:
        result.attribute(dict.fromkeys(rows, energy_mj), "exclusive")
    elif policy.strict:
        result.leave(energy_mj, "shared")
    elif rows <= interval.unlisted or (len(rows) == 1 and not interval.hidden):
        _split_partial(result, interval, _energy_at(idle_mw, elapsed_ns, energy_mj))
    else:
        _split_shared(result, interval, _energy_at(parked_mw, elapsed_ns, energy_mj), policy, weights)
    return result


def _energy_at(power_mw: int | None, elapsed_ns: int, most_mj: int) -> int:
    return min(most_mj, (power_mw or 0) * elapsed_ns // NS_MW_PER_MJ)


def _split_partial(result: Split, interval: Interval, idle_mj: int) -> None:
    """No process was on the GPU for the whole interval: idle power is booked as idle, the rest to processes."""
    if interval.hidden:
        result.leave(idle_mj, "unseen")
    else:
        result.idle_mj = idle_mj
    if len(interval.rows) == 1:
        result.attribute(dict.fromkeys(interval.rows, interval.energy_mj - idle_mj), "edge")
    else:
        busy_ns = {row: ns for row, ns in interval.busy_ns.items() if row in interval.rows}
        result.attribute(apportion(interval.energy_mj - idle_mj, busy_ns), "sm_time")


def _split_shared(result: Split, interval: Interval, parked_mj: int, policy: Policy, weights: Weights | None) -> None:
    """Split parked power equally, and the rest by work."""
    rows = interval.rows
    servers, clients = mps(interval)
    migs = {row.device.uuid for row in rows if row.device.parent_uuid}
    active_mj = interval.energy_mj - parked_mj
    if weights is not None:
        whole = sum(weights.rows.values()) + weights.unseen
        unseen_mj = (2 * active_mj * weights.unseen + whole) // (2 * whole)
        result.leave(unseen_mj, "unseen")
        result.attribute(apportion(active_mj - unseen_mj, weights.rows), weights.method)
    elif migs:
        instances = _mig_weights(interval, migs)
        if sum(instances.values()):
            _attribute_instances(result, interval, active_mj, instances)
        else:
            parked_mj = interval.energy_mj
    elif not interval.has_samples:
        result.leave(active_mj, "shared")
    else:
        busy_ns = {row: ns for row, ns in interval.busy_ns.items() if row in rows}
        if sum(busy_ns.values()):
            _attribute_work(result, active_mj, busy_ns, servers, clients)
        else:
            parked_mj = interval.energy_mj
    parked = rows - servers - interval.unlisted
    if interval.hidden:  # the hidden process is parked too, and gets one share
        hidden_mj = parked_mj // (len(parked) + 1)
        result.leave(hidden_mj, "unseen")
        parked_mj -= hidden_mj
    if policy.parked_apart:
        result.leave(parked_mj, "parked")
    else:
        result.attribute(equally(parked_mj, parked), "parked")


def _attribute_work(
    result: Split, energy_mj: int, busy_ns: Mapping[Row, int], servers: set[Row], clients: set[Row]
) -> None:
    """Split by compute-engine time; the share of an MPS server is split equally between its clients."""
    shares = apportion(energy_mj, busy_ns)
    result.attribute({row: mj for row, mj in shares.items() if row not in servers}, "sm_time")
    if served_mj := sum(mj for row, mj in shares.items() if row in servers):
        result.attribute(equally(served_mj, clients), "mps")


def mps(interval: Interval) -> tuple[set[Row], set[Row]]:
    """MPS servers and their clients. The driver's samples name only the server.

    Clients are the processes in the driver's MPS list. If that list is empty (as on the H200), they are the processes
    without samples of their own. A server that root started serves every process; the name of another server proves
    nothing, so its clients are of its own user and container. Servers of several tenants keep their energy.
    """
    servers = {row for row in interval.rows if row.mps_server == MPS_OF_ROOT}
    others = interval.rows - servers
    if not servers:
        servers = {row for row in interval.rows if row.mps_server}
        tenants = {row.tenant for row in servers}
        others = {row for row in interval.rows - servers if row.tenant in tenants} if len(tenants) == 1 else set()
    listed = {row for row in others if "mps" in row.resident.kind}
    clients = listed or {row for row in others if not interval.busy_ns.get(row)}
    return (servers, clients) if clients else (set(), set())


def _mig_weights(interval: Interval, migs: set[str]) -> dict[str, int]:
    """Activity if every instance in use reports it, else equal weights."""
    if interval.mig_missing & migs or not migs <= set(interval.mig_busy):
        return dict.fromkeys(migs, 1)
    return interval.mig_busy


def _attribute_instances(result: Split, interval: Interval, energy_mj: int, weights: Mapping[str, int]) -> None:
    for uuid, mj in apportion(energy_mj, weights).items():
        rows = [row for row in interval.rows if row.device.uuid == uuid]
        if rows:
            result.attribute(equally(mj, rows), "mig")
        else:
            result.leave(mj, "unseen")
