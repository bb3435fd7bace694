"""The ledger: every millijoule of every GPU in exactly one place.

processes + retired + idle + unattributed = the GPU, after every tick, to the millijoule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuledger.books.fingerprint import activities
from gpuledger.books.floor import Floor
from gpuledger.books.interval import Interval, Policy, Split, split
from gpuledger.books.kept import KeptLedger
from gpuledger.books.meter import NS_MW_PER_MJ, Meter
from gpuledger.books.rows import Present, Row
from gpuledger.books.sharing import Sharing
from gpuledger.books.time import BUFFER_NS, GpuTime, Work
from gpuledger.books.workloads import Workloads
from gpuledger.model import Account, Reading, Tick

SHARED_NS = 900_000_000
"""A shared interval is at least this long: in a shorter one the samples of some process may just not be there yet."""
STILL_NS = 1_000_000_000
"""How long a counter that does not move keeps an interval open: it may only be slower than the ticks."""
QUIET_NS = 50_000_000
"""From this length on an interval says something about power."""


class Ledger:
    """The accounts of one GPU."""

    def __init__(self, policy: Policy, longest_ns: int, workloads: Workloads) -> None:
        self._policy = policy
        self._sharing = Sharing(workloads, by_fingerprint=policy.method == "fingerprint")
        self._longest_ns = longest_ns
        self._meter = Meter(longest_ns)
        self._open: Interval | None = None
        self._idle_power = Floor()
        self._parked_power = Floor()
        self.energy_mj: int | None = None
        self.idle_mj = 0
        self.retired_mj = 0
        self.gone_mj = 0
        """Of containers that are shown no more, nor one of their name."""
        self.unowned_mj = 0
        self.booked_mj = 0
        self.booked_rows: dict[Row, int] = {}
        self.unattributed_mj: dict[str, int] = {}

    def keep(self, numbers: Mapping[Row, int]) -> KeptLedger | None:
        """The accounts, with rows by their numbers; None when there was nothing to book yet."""
        interval = self._open
        if interval is None:
            return None
        alone = None
        if len(interval.seen) == 1 and interval.before == frozenset(interval.seen) and not interval.hidden:
            (row,) = interval.seen
            is_there = row.active or (row.resumed and row.active is None)  # nobody could look again yet
            alone = numbers.get(row) if is_there else None
        return KeptLedger(
            self._meter.keep(),
            interval.since_ns,
            interval.energy_mj,
            alone,
            self.energy_mj or 0,
            self.idle_mj,
            self.retired_mj,
            self.gone_mj,
            self.unowned_mj,
            tuple(self.unattributed_mj.items()),
            self._idle_power.power_mw,
            self._parked_power.power_mw,
        )

    def resume(self, kept: KeptLedger, alone: Row | None) -> None:
        """Go on from there; what was used since then is not booked yet."""
        self._meter.resume(kept.meter)
        before = None if alone is None else frozenset({alone})
        self._open = Interval(kept.since_ns, before, energy_mj=kept.open_mj, closed=True)
        self._idle_power.power_mw, self._parked_power.power_mw = kept.idle_power_mw, kept.parked_power_mw
        self.energy_mj, self.idle_mj, self.retired_mj = kept.energy_mj, kept.idle_mj, kept.retired_mj
        self.gone_mj, self.unowned_mj = kept.gone_mj, kept.unowned_mj
        self.unattributed_mj = dict(kept.unattributed_mj)

    def missed(self) -> None:
        """A tick in which the GPU did not answer."""
        if self._open is not None:
            self._open.failed = True

    def tick(
        self,
        reading: Reading,
        migs: list[Reading],
        here: frozenset[Row] | None,
        work: Work,
        *,
        now_ns: int,
        past_ns: int,
    ) -> None:
        """Take in one reading; book what is certain."""
        rise = self._meter.read(reading, now_ns)
        if self._open is None:
            if rise is None:
                return
            self._open = Interval(now_ns, here, reading.power_mw)
            self._book(Split(unattributed={"before": rise.mj}))
            return
        interval = self._open
        _gather(interval, here, work, migs, past_ns)
        if interval.closed and _is_another_named(interval, reading):
            interval.before = None
        interval.saw(activities(reading), past_ns / 1e9)
        if rise is None:
            if now_ns - interval.since_ns > self._longest_ns:
                interval.forget()
            return
        interval.energy_mj += rise.mj
        if rise.reason:
            self._book(Split(unattributed={rise.reason: interval.energy_mj}))
            self._open = Interval(now_ns, here, reading.power_mw)
        elif self._closes(interval, here, now_ns):
            self._close(interval, reading, here, now_ns)

    def _closes(self, interval: Interval, here: frozenset[Row] | None, now_ns: int) -> bool:
        elapsed_ns = now_ns - interval.since_ns
        if not 0 <= elapsed_ns <= self._longest_ns:
            return True
        if here is None and interval.before is not None:
            return False  # it may be known again in the next tick
        if not interval.energy_mj:
            return elapsed_ns >= STILL_NS
        shared = len(interval.seen) > 1 or interval.hidden
        return elapsed_ns >= (SHARED_NS if shared else 1)

    def _close(self, interval: Interval, reading: Reading, here: frozenset[Row] | None, now_ns: int) -> None:
        elapsed_ns = now_ns - interval.since_ns
        if _quiet(interval, reading, here, elapsed_ns):
            powers = [interval.energy_mj * NS_MW_PER_MJ // elapsed_ns, interval.power_mw, reading.power_mw]
            floor = self._parked_power if interval.seen else self._idle_power
            floor.seen(min(mw for mw in powers if mw is not None), elapsed_ns)
        shares = self._sharing.closed(interval, here, now_ns, self._parked_power.power_mw or 0)
        for row in interval.seen:
            row.share_error = shares.errors.get(row) if shares is not None and not self._policy.strict else None
        self._book(
            split(
                interval,
                here,
                elapsed_ns,
                longest_ns=self._longest_ns,
                idle_mw=self._idle_power.power_mw,
                parked_mw=self._parked_power.power_mw,
                policy=self._policy,
                weights=shares.weights if shares is not None else None,
            )
        )
        self._open = Interval(now_ns, here, reading.power_mw)

    def _book(self, entries: Split) -> None:
        self.booked_mj = entries.total_mj()
        self.booked_rows = {}
        self.energy_mj = (self.energy_mj or 0) + self.booked_mj
        self.idle_mj += entries.idle_mj
        for reason, mj in entries.unattributed.items():
            self.unattributed_mj[reason] = self.unattributed_mj.get(reason, 0) + mj
        for row, method, mj in entries.rows:
            if row.retired:
                self.retired_mj += mj
                continue
            row.energy_mj[method] = row.energy_mj.get(method, 0) + mj
            self.booked_rows[row] = self.booked_rows.get(row, 0) + mj

    def owned(self, containers_mj: int) -> None:
        """Take in what containers that are shown have of it."""
        self.unowned_mj = max(self.unowned_mj, (self.energy_mj or 0) - self.gone_mj - containers_mj)

    def account(self, rows: Iterable[Row], time: GpuTime) -> Account:
        """What to show."""
        known_mj = sum(mj for row in rows for mj in row.energy_mj.values())
        known_mj += self.idle_mj + self.retired_mj + sum(self.unattributed_mj.values())
        return Account(
            energy_mj=self.energy_mj,
            source=self._meter.source,
            idle_mj=self.idle_mj,
            retired_mj=self.retired_mj,
            unowned_mj=self.unowned_mj,
            booked_mj=self.booked_mj,
            unattributed_mj=tuple(sorted(self.unattributed_mj.items())),
            residual_mj=(self.energy_mj or 0) - known_mj,
            idle_power_mw=self._idle_power.power_mw,
            parked_power_mw=self._parked_power.power_mw,
            checked_counter_mj=self._meter.checked_counter_mj,
            checked_power_mj=self._meter.checked_power_mj,
            busy_ns=time.busy_ns,
            in_use=time.in_use,
            in_use_ns=time.in_use_ns,
        )


class EnergyBook:
    """The ledgers of all GPUs."""

    def __init__(self, policy: Policy | None = None, longest_ns: int = BUFFER_NS) -> None:
        self._policy = policy or Policy()
        self._longest_ns = longest_ns
        self._before_ns: int | None = None
        self.workloads = Workloads()
        self.ledgers: dict[str, Ledger] = {}

    def ledger(self, uuid: str) -> Ledger:
        """A GPU's ledger, opened if there is none."""
        return self.ledgers.setdefault(uuid, Ledger(self._policy, self._longest_ns, self.workloads))

    def book(self, tick: Tick, present: Present, work: dict[str, Work]) -> None:
        """Take in a tick."""
        past_ns = 0 if self._before_ns is None else max(0, tick.time_ns - self._before_ns)
        self._before_ns = tick.time_ns
        migs: dict[str, list[Reading]] = {}
        up: dict[str, Reading] = {}
        for reading in tick.readings:
            if reading.device.parent_uuid:
                migs.setdefault(reading.device.parent_uuid, []).append(reading)
            elif reading.up:
                up[reading.device.uuid] = reading
        for uuid, ledger in self.ledgers.items():
            if uuid not in up:
                ledger.missed()
        for uuid, reading in up.items():
            known = self.ledger(uuid)
            known.tick(reading, migs.get(uuid, []), present.get(uuid), work[uuid], now_ns=tick.time_ns, past_ns=past_ns)


def _gather(interval: Interval, here: frozenset[Row] | None, work: Work, migs: list[Reading], past_ns: int) -> None:
    """Add what one tick says to an open interval."""
    if here is None:
        interval.failed = True
    else:
        interval.seen |= here
    interval.work_told |= work.told
    interval.seen |= work.glimpsed
    interval.glimpsed = (interval.glimpsed | work.glimpsed) - (here or frozenset())
    interval.hidden |= work.hidden
    for row, ns in work.by_row.items():
        interval.work_ns[row] = interval.work_ns.get(row, 0) + ns
    for reading in migs:
        sm_pct = reading.activity.sm_pct if reading.activity is not None else None
        uuid, processors = reading.device.uuid, reading.device.multiprocessors
        if sm_pct is None or processors is None:
            interval.activity_missing.add(uuid)
        else:
            busy = int(max(0.0, sm_pct) * 1000) * processors * (past_ns // 1_000_000 + 1)
            interval.activity[uuid] = interval.activity.get(uuid, 0) + busy


def _is_another_named(interval: Interval, reading: Reading) -> bool:
    """Whether samples or accounts, which reach back some time, tell of a process that is not on the list."""
    named = {sample.pid for sample in reading.samples or ()} | {account.pid for account in reading.accounting}
    return not named <= {row.pid for row in interval.seen}


def _quiet(interval: Interval, reading: Reading, here: frozenset[Row] | None, elapsed_ns: int) -> bool:
    """Whether nothing came, went, failed or worked: then its power is that of a GPU at rest."""
    return (
        not interval.failed
        and not interval.closed
        and here is not None
        and interval.before == here
        and len(interval.seen) == len(here)
        and elapsed_ns >= QUIET_NS
        and reading.utilization_pct in (0, None)
        and not interval.hidden
        and not any(interval.work_ns.values())
        and not any(interval.activity.values())
        and (interval.work_told or bool(interval.activity) or not here)
    )
