"""The ledger: every millijoule of every GPU in exactly one account.

processes + retired + idle + unattributed = energy of the GPU, after every tick, to the millijoule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field, replace

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.meter import Meter
from gpuledger.ledger.rows import ActivityShare, Present, Row, Work
from gpuledger.ledger.split import NS_MW_PER_MJ, Policy, Split, split
from gpuledger.ledger.time import BUFFER_NS, GpuTime
from gpuledger.model import Account, Labelled, Reading, Tick
from gpuledger.model.record import dataclass
from gpuledger.shares.activity import activity_by_samples, exact_activity
from gpuledger.shares.fingerprint import Fingerprints
from gpuledger.shares.resting import ParkedPower, resting_power
from gpuledger.shares.shares import Shares
from gpuledger.shares.sharing import Sharing

SHARED_NS = 900_000_000
"""Least length of a shared interval, so that samples of all its processes have arrived."""
OUTDATED_NS = 3_000_000_000
"""Least length of an interval that lacks the activity of a MIG instance: the next ticks have it."""
STILL_NS = 1_000_000_000
"""Least length of an interval without energy: the counter may be slower than the ticks."""


@dataclass(frozen=True, slots=True)
class Booked:
    """The entries of a booked interval."""

    entries: tuple[tuple[Row, str, int], ...] = ()
    """Process, method and millijoules."""
    share_errors: Mapping[Row, float | None] = field(default_factory=dict)
    """For every process of the interval; None if its energy was not shared."""
    activity: Mapping[Row, ActivityShare | None] = field(default_factory=dict)
    """For every process of the interval; None if it is not known."""
    gpu: str = ""
    """uuid of the GPU."""
    idle_mj: int = 0
    """Energy used while no process was on the GPU."""
    spent_mj: Mapping[Row, int] = field(default_factory=dict)
    """Energy by process, retired ones included."""
    parked_mj: Mapping[Row, int] = field(default_factory=dict)
    """The parked part of the energy, by process."""


MOST_USERS, OTHER_USERS = 1000, "other"
"""Users with an own total; a tenant may have 65,536 uids. Of users that left the GPU, the smallest make room."""


@dataclass(slots=True)
class LedgerState:
    """The accounts of one GPU, as in the journal."""

    meter: Meter
    since_ns: int
    """Start of the open interval. It, `open_mj` and `alone` are set only in the journal."""
    open_mj: int = 0
    """Energy of the open interval up to the meter's last reading."""
    alone: int | None = None
    """Number of the row that was alone on the GPU throughout the open interval."""
    energy_mj: int = 0
    idle_mj: int = 0
    retired_mj: int = 0
    gone_mj: int = 0
    """Energy of containers that are no longer shown and have no successor of the same name."""
    unowned_mj: int = 0
    unattributed_mj: Labelled = ()
    """By reason."""
    idle_power_mw: int | None = None
    parked_power_mw: int | None = None


class Ledger:
    """The accounts of one GPU."""

    def __init__(self, policy: Policy, longest_ns: int, fingerprints: Fingerprints) -> None:
        self._policy = policy
        self._sharing = Sharing(fingerprints, by_fingerprint=policy.method == "fingerprint")
        self._longest_ns = longest_ns
        self._state = LedgerState(Meter(), 0)
        self._parked = ParkedPower()
        self._parked_source = ""
        self._carried_mj = 0
        """Parked energy of a single process that its last interval did not contain."""
        self._open: Interval | None = None
        """None before the first reading of energy."""
        self._unbooked_ns = 0
        """Length of the open interval."""
        self.booked_mj = 0
        """Energy of the last booked interval."""
        self.booked_rows: dict[Row, int] = {}
        """Energy of the last booked interval by process."""
        self.users_mj: dict[str, tuple[str, int]] = {}
        """Name and energy of each user outside of containers, by uid."""

    def state(self, numbers: Mapping[Row, int]) -> LedgerState | None:
        """A snapshot for the journal; None before the first reading of energy."""
        interval = self._open
        if interval is None:
            return None
        return replace(
            self._state,
            meter=replace(self._state.meter),
            since_ns=interval.start_ns,
            open_mj=interval.energy_mj,
            alone=_alone(interval, numbers),
            parked_power_mw=self._parked.learned_mw(),
        )

    def resume(self, state: LedgerState, alone: Row | None) -> None:
        """Continue from a journal. The first reading books the energy used since then."""
        self._state = replace(state, meter=replace(state.meter))
        self._parked.earlier_mw = state.parked_power_mw
        at_start = None if alone is None else frozenset({alone})
        self._open = Interval(state.since_ns, at_start, energy_mj=state.open_mj, restarted=True)

    def miss(self) -> None:
        """Mark the open interval as incomplete: the GPU could not be read in this tick."""
        if self._open is not None:
            self._open.failed = True

    def book(
        self,
        reading: Reading,
        migs: list[Reading],
        present: frozenset[Row] | None,
        work: Work,
        *,
        hidden: bool,
        now_ns: int,
        time_ns: int,
        elapsed_ns: int,
    ) -> Booked | None:
        """Add one reading; the entries of the interval if this completes it."""
        interval = self._open
        self._unbooked_ns = 0 if interval is None else now_ns - interval.start_ns
        if interval is not None and reading.deferred:
            interval.observe(
                reading, migs, present, work, hidden=hidden, now_ns=now_ns, time_ns=time_ns, elapsed_ns=elapsed_ns
            )
            return None
        rise = self._state.meter.read(reading, now_ns, self._longest_ns)
        if interval is None:
            if rise is None:
                return None
            self._open = Interval(now_ns, present, reading.power_mw)
            return self._add(Split(unattributed_mj={"before": rise.mj}))
        interval.observe(
            reading, migs, present, work, hidden=hidden, now_ns=now_ns, time_ns=time_ns, elapsed_ns=elapsed_ns
        )
        if rise is None:
            if now_ns - interval.start_ns > self._longest_ns:
                interval.forget_processes()
            return None
        interval.energy_mj += rise.mj
        if rise.reason:
            booked = self._add(Split(unattributed_mj={rise.reason: interval.energy_mj}))
        elif self._is_complete(interval, present, now_ns):
            booked = self._close(interval, reading, present, now_ns)
        else:
            return None
        self._open, self._unbooked_ns = Interval(now_ns, present, reading.power_mw), 0
        return booked

    def _is_complete(self, interval: Interval, present: frozenset[Row] | None, now_ns: int) -> bool:
        elapsed_ns = now_ns - interval.start_ns
        if not 0 <= elapsed_ns <= self._longest_ns:
            return True
        if present is None and interval.at_start is not None:
            return False  # the next tick may have the process list again
        if interval.mig_outdated and elapsed_ns < OUTDATED_NS:
            return False
        if not interval.energy_mj:
            return elapsed_ns >= STILL_NS
        shared = len(interval.rows) > 1 or interval.hidden
        return elapsed_ns >= (SHARED_NS if shared else 1)

    def _close(self, interval: Interval, reading: Reading, present: frozenset[Row] | None, now_ns: int) -> Booked:
        elapsed_ns, state = now_ns - interval.start_ns, self._state
        limit_mw = state.meter.limit_mw
        self._learn_rest(interval, reading, present, elapsed_ns)
        parked_mw, self._parked_source = self._parked.best(reading.device.name, limit_mw, state.idle_power_mw)
        state.parked_power_mw = parked_mw
        shares = self._sharing.close(interval, present, now_ns, parked_mw or 0, limit_mw)
        errors = shares.errors if shares is not None and not self._policy.strict else {}
        accounts = split(
            interval,
            present,
            elapsed_ns,
            longest_ns=self._longest_ns,
            idle_mw=state.idle_power_mw,
            parked_mw=parked_mw,
            policy=self._policy,
            weights=shares.weights if shares is not None else None,
            carried_mj=self._carried_mj,
        )
        self._carried_mj = accounts.carried_mj if len(interval.rows) == 1 else 0
        activity = self._activity(interval, present, shares)
        return replace(
            self._add(accounts),
            share_errors={row: errors.get(row) for row in interval.rows},
            activity={row: activity.get(row) for row in interval.rows},
        )

    def _activity(
        self, interval: Interval, present: frozenset[Row] | None, shares: Shares | None
    ) -> Mapping[Row, ActivityShare]:
        """The best known share of each process in the activity of its device."""
        exact = exact_activity(interval, present)
        if self._policy.strict:
            return {row: share for row, share in exact.items() if share.method == "exclusive"}
        if shares is not None and shares.proportions:
            return shares.activity(interval.rows) | exact
        return activity_by_samples(interval) | exact

    def _learn_rest(
        self, interval: Interval, reading: Reading, present: frozenset[Row] | None, elapsed_ns: int
    ) -> None:
        """Learn the power at rest from a finished interval."""
        if elapsed_ns <= 0 or not interval.energy_mj:
            return
        mean_mw = interval.energy_mj * NS_MW_PER_MJ // elapsed_ns
        if interval.is_quiet(reading, present, elapsed_ns):
            power_mw = min(mw for mw in (mean_mw, interval.power_mw, reading.power_mw) if mw is not None)
            if interval.rows:
                self._parked.rest(power_mw, elapsed_ns)
            else:
                self._state.idle_power_mw = resting_power(self._state.idle_power_mw, power_mw, elapsed_ns)
        elif interval.has_worked(present) and elapsed_ns >= SHARED_NS:
            self._parked.work(mean_mw, elapsed_ns / 1e9)

    def _add(self, accounts: Split) -> Booked:
        state = self._state
        self.booked_mj = accounts.total_mj()
        self.booked_rows = {}
        state.energy_mj += self.booked_mj
        state.idle_mj += accounts.idle_mj
        unattributed_mj = dict(state.unattributed_mj)
        for reason, mj in accounts.unattributed_mj.items():
            unattributed_mj[reason] = unattributed_mj.get(reason, 0) + mj
        state.unattributed_mj = tuple(unattributed_mj.items())
        entries = []
        spent_mj: dict[Row, int] = {}
        present = {_uid(row) for row, _, _ in accounts.entries}
        for row, method, mj in accounts.entries:
            spent_mj[row] = spent_mj.get(row, 0) + mj
            if not row.owner.container_id:
                self._add_user(row, mj, present)
            if row.retired:
                state.retired_mj += mj
            else:
                entries.append((row, method, mj))
                self.booked_rows[row] = self.booked_rows.get(row, 0) + mj
        return Booked(entries=tuple(entries), idle_mj=accounts.idle_mj, spent_mj=spent_mj, parked_mj=accounts.parked_mj)

    def _add_user(self, row: Row, mj: int, present: Collection[str]) -> None:
        uid, users = _uid(row), self.users_mj
        if uid not in users and len(users) >= MOST_USERS:
            left = [other for other in users if other not in present and other != OTHER_USERS]
            merged = min(left, key=lambda other: users[other][1], default=None)
            merged_mj = mj if merged is None else users.pop(merged)[1]
            users[OTHER_USERS] = "", users.get(OTHER_USERS, ("", 0))[1] + merged_mj
            if merged is None:
                return
        user, before_mj = users.get(uid, ("", 0))
        users[uid] = row.owner.user or user, before_mj + mj

    def settle(self, retired_mj: int, gone_mj: int, containers_mj: int) -> None:
        """Book the energy of retired processes and gone containers; `containers_mj` is that of shown containers.

        `unowned_mj` is monotonic: energy that is attributed to a container late is not subtracted from it.
        """
        state = self._state
        state.retired_mj += retired_mj
        state.gone_mj += gone_mj
        state.unowned_mj = max(state.unowned_mj, state.energy_mj - state.gone_mj - containers_mj)

    def account(self, processes_mj: int, time: GpuTime) -> Account:
        """The accounts as shown; `processes_mj` is the energy of all rows of the GPU."""
        state = self._state
        sum_mj = processes_mj + state.idle_mj + state.retired_mj + sum(mj for _, mj in state.unattributed_mj)
        return Account(
            energy_mj=None if self._open is None else state.energy_mj,
            source=state.meter.source,
            counter_stuck=state.meter.stuck_mj is not None,
            idle_mj=state.idle_mj,
            retired_mj=state.retired_mj,
            unowned_mj=state.unowned_mj,
            booked_mj=self.booked_mj,
            unbooked_ns=self._unbooked_ns,
            unattributed_mj=tuple(sorted(state.unattributed_mj)),
            residual_mj=state.energy_mj - sum_mj,
            idle_power_mw=state.idle_power_mw,
            parked_power_mw=state.parked_power_mw,
            parked_power_source=self._parked_source,
            checked_counter_mj=state.meter.checked_counter_mj,
            checked_power_mj=state.meter.checked_power_mj,
            busy_ns=time.busy_ns,
            in_use=time.in_use,
            in_use_ns=time.in_use_ns,
        )


def _uid(row: Row) -> str:
    """The user of a process; empty if it is unknown."""
    return "" if row.facts is None or row.facts.uid is None else str(row.facts.uid)


def _alone(interval: Interval, numbers: Mapping[Row, int]) -> int | None:
    """The number of the process that was alone throughout the open interval and is still on the GPU."""
    if len(interval.rows) != 1 or interval.at_start != frozenset(interval.rows) or interval.hidden:
        return None
    (row,) = interval.rows
    is_present = row.active or (row.resumed and row.active is None)  # None: no process list since the restart
    return numbers.get(row) if is_present else None


class EnergyBook:
    """The ledgers of all GPUs."""

    def __init__(self, policy: Policy | None = None, longest_ns: int = BUFFER_NS) -> None:
        self._policy = policy or Policy()
        self._longest_ns = longest_ns
        self.fingerprints = Fingerprints()
        self.ledgers: dict[str, Ledger] = {}

    def ledger(self, uuid: str) -> Ledger:
        """The ledger of a GPU; opened on first use."""
        if uuid not in self.ledgers:
            self.ledgers[uuid] = Ledger(self._policy, self._longest_ns, self.fingerprints)
        return self.ledgers[uuid]

    def book(
        self,
        tick: Tick,
        present: Present,
        work: Mapping[str, Work],
        hidden: frozenset[str],
        *,
        now_ns: int,
        elapsed_ns: int,
    ) -> Iterator[Booked]:
        """Book one tick, GPU by GPU; the completed intervals. `hidden` are the GPUs with an unlisted process.

        `now_ns` is the time of the tick on a clock that is never set, if the tick has it.
        """
        migs: dict[str, list[Reading]] = {}
        up: dict[str, Reading] = {}
        for reading in tick.readings:
            if reading.device.parent_uuid:
                migs.setdefault(reading.device.parent_uuid, []).append(reading)
            elif reading.up:
                up[reading.device.uuid] = reading
        for uuid, ledger in self.ledgers.items():
            if uuid not in up:
                ledger.miss()
        for uuid, reading in up.items():
            booked = self.ledger(uuid).book(
                reading,
                migs.get(uuid, []),
                present.get(uuid),
                work[uuid],
                hidden=uuid in hidden,
                now_ns=now_ns,
                time_ns=tick.time_ns,
                elapsed_ns=elapsed_ns,
            )
            if booked is not None:
                yield replace(booked, gpu=uuid)

    def booked_rows(self) -> dict[Row, int]:
        """The energy of each process in the last booked interval of its GPU."""
        return {row: mj for ledger in self.ledgers.values() for row, mj in ledger.booked_rows.items()}
