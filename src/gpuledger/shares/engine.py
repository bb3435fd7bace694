"""Time on the compute engine: how much of it each process had lately, by the driver's samples.

Each sample names the process on the engine at one instant, five per second. Samples can alias with time slices: two
processes that had half of the time each were named 16 % and 84 % for 13 s. Therefore a share of the samples is pulled
towards the fair share of the time slicer where both agree. Where the engine has idle time, the demand of a process
while alone, reduced by the delay next to others, replaces its samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from typing import NamedTuple

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import Row
from gpuledger.ledger.time import BUFFER_NS
from gpuledger.shares.fingerprint import Activities, Fingerprint, largest_difference

SAMPLES_PER_S = 5
LONG_S, SHORT_S = 15.0, 3.0
"""Time constants of the long and the short mean."""
JUMP = 0.2
"""The means start again if the short mean of a process differs from its long mean by more."""
REMAINING = 0.05
"""Weight of the means after they start again, or after a process started or stopped working."""
FAIR = 0.1
"""Prior probability that a process has its fair share of a busy engine."""
FAIR_KNOWN = 0.3
"""FAIR if all processes are known. It matters only for similar processes, which activity cannot tell apart."""
FAIR_LIKELY = 0.5
"""FAIR if no process is known, or if all seem to have work at all times."""
STEADY = 0.006
"""If no unit differs by more between slots, all processes probably have work at all times: time slices are fair."""
FAIR_SD = 0.08
"""Standard deviation of a share around the fair share: work differs in how well it shares caches."""
ALIAS_SD = 0.08
"""Standard deviation of a share by many samples, from aliasing."""
MORE = 0.1
"""Prior probability that a process does more next to others than it did alone."""
SAMPLES_SD = 0.3
"""Standard deviation of a time by samples. Larger than the sampling error: samples can alias with time slices."""
LEAST_SD = 0.15
"""Least standard deviation of the time of a process that did little alone."""
MISSED = 0.001
"""Probability with which the samples of a working process may be missing until it counts as paused."""
LEAST_QUIET_S = 1.5
CHANGED = 0.05
"""Least change of an activity when a process stops working."""
IDLE, FULL = 0.9, 0.98
"""Below the first, the engine has time for all; above the second, processes compete for it."""
TIME_SD = 0.1
"""Standard deviation of the expected time of the known processes on a busy engine."""
DEMAND_SD = 0.2
"""Standard deviation on an engine with idle time, relative to their demand."""
RESTING = 0.005
"""With less activity in every unit, no process works."""
MOST_KNOWN = 0.95
"""Largest part of the busy time that is expected of the known processes while others work too."""


@dataclass(slots=True)
class Recent:
    """The recent time of a process on the compute engine, with exponential decay."""

    engine_s: float = 0.0
    seconds: float = 0.0
    short_engine_s: float = 0.0
    short_seconds: float = 0.0
    visible_s: float = 0.0
    """Time in which the known processes did not explain the activity; of `observed_s`."""
    observed_s: float = 0.0
    worked_ns: int | None = None
    """Time of the last interval with a sample of the process; None if that is longer ago than `quiet_ns`."""
    quiet_ns: int = BUFFER_NS
    """A process without a sample for this time does not work. Until its first sample, the driver's sample buffer."""
    activity: Activities | None = None
    """Activity of the GPU in the last interval with a sample of the process."""
    sampled: int = 0
    """Intervals with a sample of the process."""

    def share(self) -> float:
        """Mean part of the time on the compute engine."""
        return self.engine_s / self.seconds

    def short_share(self) -> float:
        """Mean part of the time on the compute engine over the last seconds."""
        return self.short_engine_s / self.short_seconds

    def visible(self) -> float:
        """Part of the time in which the process may have worked, by activity; 1 if not observed."""
        return self.visible_s / self.observed_s if self.observed_s else 1.0

    def variance(self) -> float:
        """Variance of `share`."""
        return _variance(self.share(), self.seconds)

    def bound(self, limit: float) -> float:
        """The most time on the engine: a limit by what the process did alone, unless the samples contradict it.

        With x standard deviations between both, the process does more than alone with the probability
        MORE / (MORE + (1 - MORE) exp(-x^2 / 2)); then the samples count.
        """
        excess = self.share() - limit
        if excess <= 0:
            return limit
        noise = (1 - MORE) * exp(-0.5 * excess * excess / self.variance())
        return limit + excess * MORE / (MORE + noise)

    def has_jumped(self) -> bool:
        """Whether the process began to work more or less."""
        return self.seconds > SHORT_S and abs(self.short_share() - self.share()) > JUMP

    def forget(self, engine_s: float, seconds: float) -> None:
        """Keep only a little of the past, except for the last interval."""
        self.engine_s = _little(self.engine_s, engine_s)
        self.seconds = _little(self.seconds, seconds)
        self.short_engine_s = _little(self.short_engine_s, engine_s)
        self.short_seconds = _little(self.short_seconds, seconds)
        self.visible_s *= REMAINING
        self.observed_s *= REMAINING

    def add(self, engine_s: float, seconds: float, activity: Activities | None, now_ns: int) -> None:
        """Add an interval."""
        decay, short = exp(-seconds / LONG_S), exp(-seconds / SHORT_S)
        self.engine_s = self.engine_s * decay + engine_s
        self.seconds = self.seconds * decay + seconds
        self.short_engine_s = self.short_engine_s * short + engine_s
        self.short_seconds = self.short_seconds * short + seconds
        if engine_s:
            self.worked_ns, self.activity = now_ns, activity
            self.sampled += 1
            # n samples miss a process with share s with probability (1 - s)^n, about exp(-n s).
            quiet_s = log(1 / MISSED) / (SAMPLES_PER_S * self.share())
            self.quiet_ns = min(BUFFER_NS, int(max(LEAST_QUIET_S, quiet_s) * 1e9))
        elif self.worked_ns is not None and not 0 <= now_ns - self.worked_ns < self._quiet_ns(activity):
            self.worked_ns, self.engine_s, self.visible_s, self.observed_s = None, 0.0, 0.0, 0.0

    def _quiet_ns(self, activity: Activities | None) -> int:
        """If the activity of the GPU has not changed, the process may still work unsampled: samples alias.

        Not if it only loaded its program: it was sampled once, and nothing works any more.
        """
        if activity is None or self.activity is None:
            return BUFFER_NS
        if self.sampled == 1 and max(activity) < RESTING:
            return 0
        return self.quiet_ns if largest_difference(activity, self.activity) > CHANGED else BUFFER_NS

    def add_visible(self, visible: float, seconds: float) -> None:
        """Add the part of an interval in which the known processes did not explain the activity."""
        decay = exp(-seconds / LONG_S)
        self.visible_s = self.visible_s * decay + visible * seconds
        self.observed_s = self.observed_s * decay + seconds


class Expected(NamedTuple):
    """Expected part of an interval on the compute engine."""

    time: float
    sd: float


class EngineTime:
    """The processes of one GPU that worked lately, and the time that is expected of each."""

    def __init__(self) -> None:
        self.recent: dict[Row, Recent] = {}
        """Every process on the GPU."""
        self.working: list[Row] = []
        """The processes that worked lately."""
        self._is_steady = False
        """Whether the slots of the last interval were alike."""

    def update(self, interval: Interval, elapsed_s: float, now_ns: int) -> bool:
        """Add an interval; returns whether the same processes worked before."""
        self._is_steady = _are_alike(interval.slots)
        previous, self.recent = self.recent, {}
        activity = interval.activities(elapsed_s)
        for row in interval.rows:
            recent = self.recent[row] = previous.get(row) or Recent()
            recent.add(interval.busy_ns.get(row, 0) / 1e9, elapsed_s, activity, now_ns)
        before = self.working
        self.working = sorted([row for row, recent in self.recent.items() if recent.worked_ns is not None], key=Row.key)
        unchanged = self.working == before
        if not unchanged or any(self.recent[row].has_jumped() for row in self.working):
            for row, recent in self.recent.items():
                recent.forget(interval.busy_ns.get(row, 0) / 1e9, elapsed_s)
        return unchanged

    def expected(
        self, known: Mapping[Row, Fingerprint], strangers: Sequence[Row], busy: float, *, by_visibility: bool
    ) -> tuple[dict[Row, float], float]:
        """Expected part of the interval on the engine, by process, and the standard deviation of the known sum.

        `busy` is the part of the interval in which the engine was busy. The `strangers`, at least one, were never
        observed alone. With `by_visibility`, the times are those of the part of the interval in which strangers work.
        """
        known_times = {row: self.recent[row].share() for row in known}
        stranger_times = {row: self.recent[row].share() for row in strangers}
        if by_visibility:
            stranger_times = {
                row: min(busy, time / max(0.1, self.recent[row].visible())) for row, time in stranger_times.items()
            }
            known_times = _scaled(known_times, max((1 - MOST_KNOWN) * busy, busy - sum(stranger_times.values())))
        competition = _competition(busy)
        probability = (FAIR if known and not self._is_steady else FAIR_LIKELY) * competition
        fair = busy / (sum([fingerprint.peak for fingerprint in known.values()]) + len(strangers))
        for row, time in stranger_times.items():
            stranger_times[row] = _towards_fair(time, self.recent[row].variance(), fair, probability)
        variance = 0.0
        for row, fingerprint in known.items():
            recent, peak = self.recent[row], fingerprint.peak
            time = _towards_fair(known_times[row], recent.variance(), fair * peak, probability)
            time = min(time, recent.bound(peak))
            sd = TIME_SD
            if competition < 1:
                demand = recent.bound(delayed(fingerprint.demand(), busy))
                time = competition * time + (1 - competition) * min(demand, 0.9 * busy)
                sd = competition * TIME_SD + (1 - competition) * DEMAND_SD * demand
            known_times[row] = time
            variance += sd**2
        known_times = _scaled(known_times, min(MOST_KNOWN * busy, sum(known_times.values())))
        stranger_times = _scaled(stranger_times, busy - sum(known_times.values()))
        return known_times | stranger_times, sqrt(variance)

    def of_known(self, known: Mapping[Row, Fingerprint], busy: float) -> dict[Row, Expected]:
        """Expected part of the interval on the engine, by the samples of the last seconds, if all processes are known.

        At most the time of the process alone, reduced by the delay next to others, unless the samples contradict that:
        what a process did alone must not limit what it pays later. A time with a low bound is more certain than others,
        so that activity rather corrects the others.
        """
        limits = {row: delayed(fingerprint.peak, busy) for row, fingerprint in known.items()}
        whole = max(busy, sum(limits.values()))
        probability = FAIR_KNOWN * _competition(busy)
        missing, excess = busy, 0.0
        bounded = []
        for row, limit in limits.items():
            recent = self.recent[row]
            share = recent.short_share()
            missing -= share
            variance = _variance(share, recent.short_seconds)
            time = _towards_fair(share, variance, busy * limit / whole, probability)
            bound = recent.bound(limit)
            excess += max(0.0, time - bound)
            bounded.append((row, min(time, bound), bound))
        # The means of processes that just began lag: what is missing is divided by the room below the bounds.
        room = sum([bound - time for _, time, bound in bounded])
        part = min(1.0, max(0.0, missing) / (room or 1.0))
        least_sd = max(LEAST_SD, excess)  # the bounds are doubted as far as they contradict the samples of all
        return {
            row: Expected(time + part * (bound - time), min(SAMPLES_SD, max(bound, least_sd)))
            for row, time, bound in bounded
        }


def _competition(busy: float) -> float:
    """How far processes compete for the engine, from 0 to 1; with idle time they do not, and no share is fair."""
    return min(1.0, max(0.0, (busy - IDLE) / (FULL - IDLE)))


def _variance(share: float, seconds: float) -> float:
    """Variance of a share by the samples of some seconds."""
    share = min(0.95, max(0.05, share))
    return share * (1 - share) / (SAMPLES_PER_S * seconds) + ALIAS_SD**2


def _towards_fair(time: float, sampled: float, fair: float, probability: float) -> float:
    """Posterior mean of a time: with this prior probability it is the fair share, else it may be any.

    `sampled` is the variance of the time by samples.
    """
    variance = sampled + FAIR_SD**2
    likelihood = probability * exp(-0.5 * (time - fair) ** 2 / variance) / sqrt(2 * pi * variance)
    weight = likelihood / (likelihood + 1 - probability)
    return weight * (time * FAIR_SD**2 + fair * sampled) / variance + (1 - weight) * time


def _little(mean_sum: float, last: float) -> float:
    """A sum of the last interval and little of the earlier ones."""
    return last + REMAINING * (mean_sum - last)


def delayed(part: float, busy: float) -> float:
    """The most that a process has the engine next to others, from its part d while alone: d / (1 + B (1 + d) / 2).

    B is the busy time beyond d. While the process waits for its host, others take time slices, and its next kernel
    waits for them to end. The formula fits programs on an H200 that use it for 15 to 70 % of the time alone.
    """
    return part / (1 + max(0.0, busy - part) * (1 + part) / 2)


def _are_alike(slots: Sequence[Activities]) -> bool:
    """Whether most consecutive slots are alike."""
    changes = sorted(map(largest_difference, slots, slots[1:]))
    return len(changes) > 1 and changes[len(changes) // 2] < STEADY


def _scaled(times: Mapping[Row, float], total: float) -> dict[Row, float]:
    """The times in proportion, so that they add up to a total."""
    whole = sum(times.values())
    return {row: time * total / whole if whole else total / len(times) for row, time in times.items()}
