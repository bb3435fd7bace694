"""What is learned of processes: from intervals, or parts of them, in which only one of them works."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import Row
from gpuledger.shares.engine import CHANGED, EngineTime
from gpuledger.shares.fingerprint import Activities, Alone, Fingerprints, largest_difference
from gpuledger.shares.pauses import Pauses, PowerSlot
from gpuledger.shares.shares import Observed

BEGUN = 0.2
"""Least change of an activity that shows that a process began to work."""
MOST_PENDING = 100
"""Limit of intervals not yet learned from; reached only if the clock is set back."""


class Learning:
    """Learns the fingerprints of the processes of one GPU; `engine` tells which of them work."""

    def __init__(self, fingerprints: Fingerprints, engine: EngineTime) -> None:
        self._fingerprints = fingerprints
        self._engine = engine
        self._pauses = Pauses()
        self._pending: deque[tuple[int, Row, Alone]] = deque(maxlen=MOST_PENDING)
        self._undecided: list[tuple[Row, Alone]] = []
        """What was pending when another process was sampled in the last interval."""

    def from_interval(
        self, interval: Interval, elapsed_s: float, joules: float, now_ns: int, *, unchanged: bool
    ) -> None:
        """Learn from intervals in which one process worked alone.

        Delayed if other processes are present: they may work without having been sampled yet. Not right after a change:
        samples and joules of other processes may still arrive.
        """
        working = self._engine.working
        self._decide(interval.activities(elapsed_s))
        if self._pending and any(row is not self._pending[0][1] for row in working):
            self._undecided = _before_another([(row, alone) for _, row, alone in self._pending])
            self._pending.clear()
        if len(working) == 1 and unchanged:
            (row,) = working
            alone = alone_in(interval, elapsed_s, interval.busy_ns.get(row, 0) / 1e9, joules)
            others = [recent.quiet_ns for other, recent in self._engine.recent.items() if other is not row]
            if alone is not None:
                self._pending.append((now_ns + max(others, default=0), row, alone))
        while self._pending and self._pending[0][0] <= now_ns:
            self._fingerprints.learn(*self._pending.popleft()[1:])

    def _decide(self, activity: Activities | None) -> None:
        """Learn what was pending when another process was first sampled, if a new activity shows that it began then."""
        for row, alone in self._undecided:
            if activity is not None and largest_difference(alone.activities, activity) > BEGUN:
                self._fingerprints.learn(row, alone)
        self._undecided = []

    def from_pauses(self, interval: Interval, strangers: Sequence[Row], observed: Observed) -> None:
        """Learn strangers from slots in which only one of the processes worked."""
        powers_w = [mw / 1000 for _, mw in interval.slot_ends if mw is not None]
        if len(strangers) < 2 or not powers_w or len(powers_w) < len(interval.slots):
            return
        resting_w = sum(powers_w) / len(powers_w) - observed.power_w
        seconds = observed.seconds / len(powers_w)
        last_ns = interval.slot_ends[-1][0]  # a sample after the end of the last slot counts as in it
        rows = {
            row: min(interval.sampled_ns[row.pid], last_ns)
            for row in self._engine.working
            if row.pid in interval.sampled_ns
        }
        slots = []
        before_ns = interval.start_ns
        for activity, (end_ns, _), power_w in zip(interval.slots, interval.slot_ends, powers_w, strict=True):
            sampled = frozenset(row for row, at_ns in rows.items() if before_ns < at_ns <= end_ns)
            missed = frozenset(row for row, at_ns in rows.items() if at_ns <= before_ns)
            slots.append(PowerSlot(activity, max(0.0, power_w - resting_w), seconds, sampled, missed))
            before_ns = end_ns
        for row, singles in self._pauses.observe(slots, self._engine.working).items():
            for slot in singles if row in strangers else ():
                joules, engine_s = slot.power_w * slot.seconds, observed.busy * slot.seconds
                self._fingerprints.learn(row, Alone(slot.activity, slot.seconds, engine_s, joules, observed.clock))

    def drop(self) -> None:
        """Forget what is pending: it is not certain that a process was alone."""
        self._pending.clear()
        self._undecided = []


def alone_in(interval: Interval, elapsed_s: float, engine_s: float, joules: float) -> Alone | None:
    """What an interval in which one process worked tells about it; None if that is nothing."""
    activity = interval.activities(elapsed_s)
    if activity is None or not any(activity) or not engine_s:
        return None
    return Alone(activity, elapsed_s, engine_s, joules, interval.clock())


def _before_another(pending: list[tuple[Row, Alone]]) -> list[tuple[Row, Alone]]:
    """Without the last interval, if its activity differs from the one before: the other may have begun in it."""
    if len(pending) < 2 or largest_difference(pending[-1][1].activities, pending[-2][1].activities) > CHANGED:
        return pending[:-1]
    return pending
