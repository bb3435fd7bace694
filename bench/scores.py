"""Scores of energy shares: errors of windows, and their summaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isqrt, sqrt
from typing import Any

from bench import truth
from bench.replay import ACTIVITY, DEVICE, Shares, Step

ESTIMATORS = ("equal", "kepler", "sm_time", "ours")
FEW = 5
"""With fewer recordings, their means say little about how much recordings differ."""


@dataclass
class Score:
    """Error of each window by estimator, for one recording and window length."""

    name: str
    window_s: float
    errors: dict[str, list[float]] = field(default_factory=dict)
    totals: dict[str, Shares] = field(default_factory=dict)
    """Energy of all windows, by estimator and `truth`."""
    ratios: list[float] = field(default_factory=list)
    """Error of a share over its published error, for each process and window."""
    activity: dict[str, list[float]] = field(default_factory=lambda: {unit: [] for unit in ACTIVITY})
    """Error of the activity of each window, by unit: the largest of any process."""
    copied: dict[str, list[float]] = field(default_factory=lambda: {unit: [] for unit in ACTIVITY})
    """The same if every process gets the activity of the device, as dcgm-exporter does."""
    activity_ratios: list[float] = field(default_factory=list)
    """Error of a share of the SM activity over its published error, for each process and window."""
    unknown: int = 0
    """Windows in which the work does not explain the energy, so that the truth is unknown."""

    @property
    def count(self) -> int:
        """The number of windows."""
        return len(self.errors.get("ours", ()))

    def add(self, steps: list[Step], used: Mapping[int, float], measure: Callable[[list[float]], float] = max) -> None:
        """Add one window; `used` is the true energy, `measure` combines the errors of all shares."""
        true = _shares(used)
        if true is None:
            return
        before, after = steps[0].joules, steps[-1].joules
        self._add_totals("truth", used)
        for name in after:
            # An exclusive process has less than parked power if the counter lags.
            booked = {pid: max(0.0, after[name][pid] - before[name][pid]) for pid in true}
            shares = _shares(booked) or dict.fromkeys(true, 0.0)
            self._add_totals(name, booked)
            errors = {pid: abs(shares[pid] - true[pid]) for pid in true}
            self.errors.setdefault(name, []).append(measure(list(errors.values())))
            if name == "ours":
                self.ratios += _ratios(errors, steps)

    def _add_totals(self, name: str, parts: Mapping[int, float]) -> None:
        totals = self.totals.setdefault(name, {})
        for pid, part in parts.items():
            totals[pid] = totals.get(pid, 0.0) + part

    def share(self, name: str) -> Shares:
        """Shares in the energy of all windows, of an estimator or `truth`."""
        return _shares(self.totals[name]) or dict.fromkeys(self.totals[name], 0.0)

    def bias(self, name: str) -> float:
        """Largest error of any process's share in the energy of all windows."""
        true, booked = self.share("truth"), self.share(name)
        return max(abs(booked[pid] - true[pid]) for pid in true)

    def add_activity(self, steps: list[Step], active: Mapping[str, Mapping[int, float]]) -> None:
        """Add the activity of one window; `active` is the true activity, of which only the proportions are used."""
        first, last = steps[0], steps[-1]
        seconds = last.time_s - first.time_s
        for unit, of_unit in active.items():
            whole = (last.active_s[unit][DEVICE] - first.active_s[unit][DEVICE]) / seconds
            true = _shares(of_unit)
            if true is None or not whole:
                continue
            ours = {pid: (last.active_s[unit][pid] - first.active_s[unit][pid]) / seconds for pid in true}
            self.activity[unit].append(max(abs(ours[pid] - true[pid] * whole) for pid in true))
            self.copied[unit].append(max(abs(whole - true[pid] * whole) for pid in true))
            if unit == "sm":
                self.activity_ratios += _ratios({pid: abs(ours[pid] / whole - true[pid]) for pid in true}, steps)


def _ratios(errors: Shares, steps: list[Step]) -> list[float]:
    """Errors of shares in a window over their mean published errors, of the processes that have any."""
    published = {pid: [step.errors[pid] for step in steps[1:] if pid in step.errors] for pid in errors}
    means = {pid: sum(of_pid) / len(of_pid) for pid, of_pid in published.items() if of_pid}
    return [errors[pid] / max(mean, 1e-9) for pid, mean in means.items()]


def score_known(recording: Any, steps: list[Step], joules: Mapping[str, truth.Joules], window_s: float) -> Score:
    """Split the working time into windows of about this length, at ticks; none if it is much shorter."""
    begin, end = _working_time(recording)
    result = Score(recording["name"], window_s)
    if end - begin < window_s / 2:
        return result
    for window in windows([step for step in steps if begin <= step.time_s <= end], window_s):
        span = window[0].time_s, window[-1].time_s
        result.add(window, truth.used(recording, joules[""], *span))
        result.add_activity(window, {unit: truth.used(recording, joules[unit], *span) for unit in ACTIVITY})
    return result


def score_timeline(
    timeline: truth.Timeline,
    steps: list[Step],
    window_s: float,
    measure: Callable[[list[float]], float] = max,
    activity: Mapping[str, truth.Timeline] | None = None,
) -> Score:
    """Windows in which at least two processes work and none arrives or leaves; `activity` has the truth by unit."""
    result = Score(timeline.name, window_s)
    for phase in timeline.phases:
        inside = [step for step in steps if phase.begin <= step.time_s <= phase.end]
        if len(phase.working) < 2 or len(inside) < 2 or inside[-1].time_s - inside[0].time_s < window_s / 2:
            continue
        for window in windows(inside, window_s):
            span = window[0].time_s, window[-1].time_s
            used = timeline.used(*span)
            if not timeline.adds_up(used, *span):
                result.unknown += 1
                continue
            result.add(window, {pid: used[pid] for pid in phase.working}, measure)
            active = {unit: of_unit.used(*span) for unit, of_unit in (activity or {}).items()}
            working = {unit: {pid: of[pid] for pid in phase.working} for unit, of in active.items()}
            result.add_activity(window, working)
    return result


def score_joules(recording: Any, steps: list[Step], window_s: float) -> Score:
    """Every window in which at least two processes are present from begin to end; the logs are joules.

    A process is present from the first to the last entry of its log, also while it rests. Energy that is booked to any
    other process of the recording, which loads or has left, is an error too.
    """
    logs = truth.logs(recording)
    begin, end = _working_time(recording)
    result = Score(recording["name"], window_s)
    for window in windows([step for step in steps if begin <= step.time_s <= end], window_s, remainder=False):
        first, last = window[0].time_s, window[-1].time_s
        present = sum(any(log.times[0] <= first and last <= log.times[-1] for log in of) for of in logs.values())
        if present >= 2:
            result.add(window, {pid: sum(log.between(first, last) for log in of) for pid, of in logs.items()})
    return result


def _working_time(recording: Any) -> tuple[float, float]:
    begin = min(work["log"][0][0] for work in recording["truth"])
    end = max(work["log"][-1][0] for work in recording["truth"])
    return begin, end


def windows(steps: list[Step], window_s: float, *, remainder: bool = True) -> list[list[Step]]:
    """Consecutive windows of about this length; both ends are included.

    A short `remainder` extends the last window, a long one is a window of its own. Without it, all have one length.
    """
    if len(steps) < 2:
        return []
    length = max(1, round(window_s / ((steps[-1].time_s - steps[0].time_s) / (len(steps) - 1))))
    edges = list(range(0, len(steps), length))
    if not remainder:
        return [steps[first : last + 1] for first, last in pairwise(edges)]
    if len(edges) == 1 or (len(steps) - 1) % length >= length / 2:
        edges.append(len(steps) - 1)
    else:
        edges[-1] = len(steps) - 1
    return [steps[first : last + 1] for first, last in pairwise(edges)]


def _shares(parts: Mapping[int, float]) -> Shares | None:
    whole = sum(parts.values())
    return {pid: part / whole for pid, part in parts.items()} if whole > 0 else None


def wrong(errors: list[float]) -> float:
    """The part of the energy that is booked to a wrong process: half of the sum of all errors."""
    return sum(errors) / 2


def figures(errors: Iterable[float]) -> dict[str, float]:
    """Mean, 95th percentile (nearest rank) and maximum."""
    ordered = sorted(errors)
    at = -(-95 * len(ordered) // 100) - 1
    return {"mean": sum(ordered) / len(ordered), "p95": ordered[at], "worst": ordered[-1]}


def summary(scores: Iterable[Score], window_s: float) -> dict[str, dict[str, float]]:
    """Errors by estimator, over all windows of this length; `bias` is the largest of any recording."""
    chosen = [score for score in scores if score.window_s == window_s and score.count]
    return {
        name: {
            **figures(error for score in chosen for error in score.errors[name]),
            "bias": max(score.bias(name) for score in chosen),
        }
        for name in ESTIMATORS
        if chosen and name in chosen[0].errors
    }


def covered(scores: Iterable[Score], window_s: float) -> float | None:
    """The part of the shares that are at most one published error from the truth."""
    ratios = [ratio for entry in scores if entry.window_s == window_s for ratio in entry.ratios]
    return sum(ratio <= 1 for ratio in ratios) / len(ratios) if ratios else None


def standard_errors(scores: Iterable[Score], window_s: float) -> dict[str, float | None]:
    """Standard error of the mean error of each estimator; clusters are recordings, or blocks of windows of a few.

    Windows of one recording are not independent: the same programs run in all of them.
    """
    chosen = [score for score in scores if score.window_s == window_s and score.count]
    names = [name for name in ESTIMATORS if chosen and name in chosen[0].errors]
    clusters = {name: [score.errors[name] for score in chosen] for name in names}
    if len(chosen) < FEW:
        clusters = {name: [block for errors in of for block in blocks(errors)] for name, of in clusters.items()}
    return {name: standard_error(of) for name, of in clusters.items()}


def blocks(errors: list[float]) -> list[list[float]]:
    """Consecutive windows together, about as many blocks as windows in each."""
    length = isqrt(len(errors)) or 1
    return [errors[first : first + length] for first in range(0, len(errors), length)]


def standard_error(clusters: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean of all values; None for less than two clusters.

    var = G / (G - 1) sum_c (sum_i (e_ci - mean))^2 / N^2, for G clusters with N values together.
    """
    count = sum(len(cluster) for cluster in clusters)
    if len(clusters) < 2:
        return None
    mean = sum(sum(cluster) for cluster in clusters) / count
    squares = sum((sum(cluster) - mean * len(cluster)) ** 2 for cluster in clusters)
    return sqrt(len(clusters) / (len(clusters) - 1) * squares) / count
