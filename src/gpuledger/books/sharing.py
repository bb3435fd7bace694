"""Who did how much on a GPU that several use: from the driver's samples and what each looks like alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from gpuledger.books.fingerprint import Alone
from gpuledger.books.interval import Interval
from gpuledger.books.parts import KNOWN_DOUBT, SAMPLES_PER_S, UNKNOWN_DOUBT, Part, by_activity, by_samples, errors
from gpuledger.books.rows import Row
from gpuledger.books.time import BUFFER_NS
from gpuledger.books.workloads import Workloads

KEEP_S = 5.0
"""How long samples count."""
LEAST_STRANGER = 0.1
"""What a process never seen alone takes at least, in parts of the mean power of all."""
MOST_PENDING = 100
"""Intervals that wait to be learned from; there are never so many unless the clock was set back."""
WHOLE = 1_000_000_000


@dataclass(slots=True)
class Recent:
    """How much of the engine a process had lately."""

    engine_s: float = 0.0
    seconds: float = 0.0
    worked_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """Of the energy above parked power in one interval."""

    weights: dict[Row, int] | None
    """None when there is no better guess than the samples."""
    errors: dict[Row, float]
    """Standard deviation of each share, about."""


class Sharing:
    """Watches one GPU: learns from who is alone, and takes apart what several did."""

    def __init__(self, workloads: Workloads, *, by_fingerprint: bool = True) -> None:
        self._workloads = workloads
        self._by_fingerprint = by_fingerprint
        self._recent: dict[Row, Recent] = {}
        self._worked: list[Row] = []
        self._pending: deque[tuple[int, Row, Alone]] = deque(maxlen=MOST_PENDING)

    def closed(self, interval: Interval, after: frozenset[Row] | None, now_ns: int, parked_mw: int) -> Shares | None:
        """Take in an interval; who did how much in it, if several could have."""
        elapsed_s = (now_ns - interval.since_ns) / 1e9
        if interval.failed or interval.closed or not interval.work_told or not 0 < elapsed_s <= BUFFER_NS / 1e9:
            return None
        self._look(interval, elapsed_s, now_ns)
        if interval.hidden or interval.glimpsed or _special(interval):
            return None
        worked = sorted(row for row, recent in self._recent.items() if recent.worked_ns is not None)
        steady = interval.before == after and len(interval.seen) == len(after or ()) and worked == self._worked
        self._worked = worked
        if len(worked) > 1:
            self._pending.clear()
        elif worked and steady:  # not right after a change: the last samples and joules of others may come late
            self._saw_alone(worked[0], interval, elapsed_s, now_ns)
        self._learn(now_ns, parked_mw / 1000)
        if len(interval.seen) < 2 or not any(interval.work_ns.get(row) for row in worked):
            return None
        parked_w = parked_mw / 1000
        power_w = max(0.0, interval.energy_mj / 1000 / elapsed_s - parked_w)
        return self._shares(worked, interval, elapsed_s, power_w, parked_w)

    def _look(self, interval: Interval, elapsed_s: float, now_ns: int) -> None:
        kept = exp(-elapsed_s / KEEP_S)
        recents, self._recent = self._recent, {}
        for row in interval.seen:
            recent = self._recent[row] = recents.get(row) or Recent()
            engine_s = interval.work_ns.get(row, 0) / 1e9
            recent.engine_s = recent.engine_s * kept + engine_s
            recent.seconds = recent.seconds * kept + elapsed_s
            if engine_s:
                recent.worked_ns = now_ns
            elif recent.worked_ns is not None and not 0 <= now_ns - recent.worked_ns < BUFFER_NS:
                recent.worked_ns, recent.engine_s = None, 0.0

    def _saw_alone(self, row: Row, interval: Interval, elapsed_s: float, now_ns: int) -> None:
        """Keep it back for a while if somebody else is there: the first sample of one that works may come late."""
        seen = interval.activities(elapsed_s)
        engine_s = interval.work_ns.get(row, 0) / 1e9
        if seen is not None and any(seen) and engine_s:
            due_ns = now_ns + (BUFFER_NS if len(interval.seen) > 1 else 0)
            self._pending.append((due_ns, row, Alone(seen, elapsed_s, engine_s, interval.energy_mj / 1000)))

    def _learn(self, now_ns: int, parked_w: float) -> None:
        while self._pending and self._pending[0][0] <= now_ns:
            _, row, seen = self._pending.popleft()
            self._workloads.learn(row, seen, parked_w)

    def _shares(
        self, worked: Sequence[Row], interval: Interval, elapsed_s: float, power_w: float, parked_w: float
    ) -> Shares:
        # Of one never seen alone only samples can tell that it worked.
        worked = [row for row in worked if interval.work_ns.get(row) or self._workloads.of(row)]
        seen = interval.activities(elapsed_s) if self._by_fingerprint else None
        parts = self._parts(worked, power_w, parked_w) if seen is not None else []
        if seen is None or all(part.behaviour is None for part in parts):
            engine = {row: interval.work_ns[row] / 1e9 / elapsed_s for row in worked if interval.work_ns.get(row)}
            parts = [Part(row, guess, 1.0, UNKNOWN_DOUBT) for row, guess in engine.items()]
            return Shares(None, errors(parts, by_samples(parts), self._hidden(parts)))
        strange = any(part.behaviour is None for part in parts)  # what a stranger does to the activity nobody knows
        mix = by_samples(parts) if strange else by_activity(parts, seen, power_w)
        weights: dict[Row, int] = {}
        for part, amount in zip(parts, mix.amounts, strict=True):
            weights[part.row] = weights.get(part.row, 0) + round(amount * part.watts * WHOLE)
        if not any(weights.values()):
            return Shares(None, {})
        return Shares(weights, errors(parts, mix, self._hidden(parts)))

    def _hidden(self, parts: Sequence[Part]) -> float:
        """What somebody of whom there was no sample may have had: one in n samples and two more."""
        if len({part.row for part in parts}) == len(self._recent):
            return 0.0
        return 1 / (2 + SAMPLES_PER_S * max(recent.seconds for recent in self._recent.values()))

    def _parts(self, worked: Sequence[Row], power_w: float, parked_w: float) -> list[Part]:
        """Everybody who worked lately. Those never seen alone share the power that the others leave."""
        parts: list[Part] = []
        strangers: list[Part] = []
        for row in worked:
            recent = self._recent[row]
            guess = recent.engine_s / recent.seconds
            behaviours = self._workloads.of(row)
            if not behaviours:
                strangers.append(Part(row, guess, 0.0, UNKNOWN_DOUBT))
            whole_s = sum(one.seconds for one in behaviours)
            parts += [
                Part(row, guess * one.seconds / whole_s, one.watts(parked_w), KNOWN_DOUBT, one) for one in behaviours
            ]
        if strangers:
            theirs = sum(part.guess for part in strangers)
            mean_w = power_w / (theirs + sum(part.guess for part in parts))
            rest_w = (power_w - sum(part.guess * part.watts for part in parts)) / theirs
            for part in strangers:
                part.watts = max(rest_w, LEAST_STRANGER * mean_w)
        return parts + strangers


def _special(interval: Interval) -> bool:
    """Whether there is a server of MPS or a MIG instance: then neither samples nor activity are of one process."""
    return any(row.device.parent_uuid or row.is_mps_server for row in interval.seen)
