"""Ground truth of a recording: the energy of each process, from the work it did."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

Joules = dict[str, float]
"""Joules above parked power per unit of work, by kind."""
PAUSE_S = 1.5
"""A process that does no work for longer pauses; shorter pauses are part of its work, as in `big@0.3`."""
EDGE_S = 1.0
"""Seconds at both ends of a span that are not used to measure energy per unit."""
LEAST_ALONE_S = 3.0
BIN_S = 0.5
"""Length of the spans in which the energy of units of different sizes is measured."""
VARIES_S, VARIES = 2.0, 1.25
"""Units have different sizes if the energy per unit of some seconds exceeds that of others by this factor."""
SHORTEST_CYCLE = 4
"""Bins."""
LEFT = 0.1
"""A cycle must explain all but this part of the variance of the energy per unit."""
ADDS_UP = 0.75, 1.1
"""Limits of the energy of all processes by their work, relative to the measured energy; beyond, it is not the truth."""
PARKED_W = 122.0
"""Parked power of the recorded GPUs, for recordings without a moment of rest."""


def kind(work: Any) -> str:
    """Kind without its load: `big@0.3` does the same units as `big`."""
    return str(work["kind"].partition("@")[0])


def pids(recording: Any) -> list[int]:
    """Pids with known work, without duplicates: a process that changes its work has two lines."""
    return list(dict.fromkeys(work["pid"] for work in recording["truth"]))


def joules_per_unit(recordings: Iterable[Any], unit: str = "") -> Joules:
    """Energy per unit from recordings of single processes; continuous work takes precedence over work with pauses.

    With `unit`, a metric of GPM, activity instead of energy.
    """
    joules_by_kind: Joules = {}
    for recording in sorted(recordings, key=lambda recording: "@" in recording["truth"][0]["kind"]):
        if len(recording["truth"]) == 1:
            joules_by_kind.setdefault(kind(recording["truth"][0]), _joules_per_unit(recording, unit))
    return joules_by_kind


def _joules_per_unit(recording: Any, unit: str) -> float:
    """Energy above parked power per unit. Parked power is the power before the work began."""
    (work,) = recording["truth"]
    counter, done = Counter.of(recording, unit), Counter(work["log"])
    begin, end = done.times[0], done.times[-1]
    parked_w = counter.between(counter.times[0], begin) / (begin - counter.times[0])
    units = done.between(begin, end)
    return (counter.between(begin, end) - parked_w * (end - begin)) / units if units else 0.0


def used(recording: Any, joules: Joules, begin: float, end: float) -> dict[int, float]:
    """Joules above parked power between two times, by pid."""
    joules_by_pid = dict.fromkeys(pids(recording), 0.0)
    for work in recording["truth"]:
        joules_by_pid[work["pid"]] += Counter(work["log"]).between(begin, end) * joules.get(kind(work), 0.0)
    return joules_by_pid


def logs(recording: Any) -> dict[int, list[Counter]]:
    """The logs of each process, by pid."""
    logs_by_pid: dict[int, list[Counter]] = {}
    for work in recording["truth"]:
        logs_by_pid.setdefault(work["pid"], []).append(Counter(work["log"]))
    return logs_by_pid


class Counter:
    """A counter recorded at some times; linear in between."""

    def __init__(self, points: Iterable[tuple[float, float]], scale: float = 1.0) -> None:
        points = list(points)
        self.times = [float(time) for time, _ in points]
        self._values = [value * scale for _, value in points]

    @classmethod
    def of(cls, recording: Any, unit: str = "") -> Counter:
        """The energy counter, in joules; with `unit`, the activity of a metric of GPM times time, in seconds."""
        if not unit:
            return cls([(row.get("t_energy", row["t"]), row["energy_mj"]) for row in recording["rows"]], 1e-3)
        points = [(recording["rows"][0]["t"], 0.0)]
        for row in recording["rows"]:
            if "gpm" in row:
                time_s, (before_s, sum_s) = row.get("t_gpm", row["t"]), points[-1]
                points.append((time_s, sum_s + row["gpm"][unit] / 100 * (time_s - before_s)))
        return cls(points)

    def at(self, time_s: float) -> float:
        """The value at a time; constant before the first and after the last point."""
        after = bisect_right(self.times, time_s)
        if after == 0 or after == len(self.times):
            return self._values[min(after, len(self.times) - 1)]
        (t0, t1), (v0, v1) = self.times[after - 1 : after + 1], self._values[after - 1 : after + 1]
        return v0 + (v1 - v0) * (time_s - t0) / (t1 - t0)

    def between(self, begin: float, end: float) -> float:
        """The increase between two times."""
        return self.at(end) - self.at(begin)


@dataclass(frozen=True, slots=True)
class Phase:
    """A span of time in which the same processes work and the same processes are on the GPU."""

    begin: float
    end: float
    working: frozenset[int]


class Timeline:
    """A recording of processes that come and go, and the energy (or activity of a `unit`) of each of them."""

    def __init__(self, recording: Any, solo: Joules, unit: str = "") -> None:
        self.name = str(recording["name"])
        self.pids = pids(recording)
        self._logs = logs(recording)
        self.kinds = {work["pid"]: kind(work) for work in recording["truth"]}
        self.phases = list(_phases(recording, self._logs))
        self._counter = Counter.of(recording, unit)
        self.parked_w = 0.0 if unit else recording.get("parked_w") or _parked_w(recording, self.phases)
        self._joules = {pid: self._alone(pid) or solo.get(self.kinds[pid]) for pid in self.pids}
        self._cycles = self._find_cycles()
        for pid in self.pids:  # another process of the same kind may have been alone
            if self._joules[pid] is None:
                of_kind = [self._joules[other] for other in self.pids if self.kinds[other] == self.kinds[pid]]
                self._joules[pid] = next((joules for joules in of_kind if joules is not None), None)
        self._fill_rest()

    def _fill_rest(self) -> None:
        """If one kind of work is unknown: the energy that the others did not use, per unit."""
        unknown = {self.kinds[pid] for pid, joules in self._joules.items() if joules is None} - {"hold"}
        if len(unknown) != 1:
            return
        (rest,) = unknown
        pids = [pid for pid in self.pids if self.kinds[pid] == rest]
        joules = units = 0.0
        for phase in self.phases:
            if phase.working & set(pids) and phase.end - phase.begin > 2 * EDGE_S:
                begin, end = phase.begin + EDGE_S, phase.end - EDGE_S
                joules += self._measured(begin, end) - sum(self.used(begin, end).values())
                units += sum(self._units(pid, begin, end) for pid in pids)
        for pid in pids:
            self._joules[pid] = max(0.0, joules) / units if units else None

    def _alone_spans(self, pid: int) -> list[tuple[float, float]]:
        """When the process worked alone, without the edges."""
        return [
            (phase.begin + EDGE_S, phase.end - EDGE_S)
            for phase in self.phases
            if phase.working == {pid} and phase.end - phase.begin > 2 * EDGE_S
        ]

    def _alone(self, pid: int) -> float | None:
        """Joules above parked power per unit of work while the process worked alone; None if it never did."""
        spans = self._alone_spans(pid)
        units = sum(self._units(pid, *span) for span in spans)
        if sum(end - begin for begin, end in spans) < LEAST_ALONE_S or not units:
            return None
        return max(0.0, sum(self._measured(*span) for span in spans)) / units

    def _find_cycles(self) -> dict[str, list[float]]:
        """Energy per unit in each bin of a cycle, for kinds of work whose units have different sizes.

        Empty if the sizes do not repeat.
        """
        cycles: dict[str, list[float]] = {}
        for kind in set(self.kinds.values()):
            pids = [pid for pid in self.pids if self.kinds[pid] == kind]
            spans = [(pid, first, last) for pid in pids for first, last in self._alone_spans(pid)]
            parts = [
                self._per_unit(pid, first + i * VARIES_S, first + (i + 1) * VARIES_S)
                for pid, first, last in spans
                for i in range(int((last - first) / VARIES_S))
            ]
            sizes = [size for size in parts if size]
            if sizes and max(sizes) > VARIES * min(sizes):
                measured = [
                    (number, size)
                    for pid, first, last in spans
                    for number, begin, end in bins(first, last)
                    if end - begin > 0.99 * BIN_S and (size := self._per_unit(pid, begin, end)) is not None
                ]
                cycles[kind] = find_cycle(measured)
        return cycles

    def _per_unit(self, pid: int, begin: float, end: float) -> float | None:
        """Joules above parked power per unit, if the process works alone; None if it does nothing."""
        units = self._units(pid, begin, end)
        return max(0.0, self._measured(begin, end)) / units if units else None

    def _measured(self, begin: float, end: float) -> float:
        """Joules of the GPU above parked power."""
        return self._counter.between(begin, end) - self.parked_w * (end - begin)

    def _units(self, pid: int, begin: float, end: float) -> float:
        return sum(log.between(begin, end) for log in self._logs[pid])

    def missing(self) -> list[str]:
        """Kinds of work whose energy per unit is unknown."""
        unknown = {self.kinds[pid] for pid, joules in self._joules.items() if joules is None}
        return sorted((unknown | {kind for kind, cycle in self._cycles.items() if not cycle}) - {"hold"})

    def used(self, begin: float, end: float) -> dict[int, float]:
        """Joules above parked power between two times, by pid."""
        return {pid: self._used(pid, begin, end) for pid in self.pids}

    def adds_up(self, used: Mapping[int, float], begin: float, end: float) -> bool:
        """Whether the energy of all processes is about the measured energy."""
        measured = self._measured(begin, end)
        least, most = ADDS_UP
        return least * measured <= sum(used.values()) <= most * measured

    def _used(self, pid: int, begin: float, end: float) -> float:
        if cycle := self._cycles.get(self.kinds[pid]):
            return sum(
                self._units(pid, first, last) * cycle[number % len(cycle)] for number, first, last in bins(begin, end)
            )
        return self._units(pid, begin, end) * (self._joules[pid] or 0.0)


def bins(begin: float, end: float) -> Iterator[tuple[int, float, float]]:
    """Number, begin and end of each bin of a span; the first and the last may be shorter."""
    for number in range(int(begin // BIN_S), int(end // BIN_S) + 1):
        first, last = max(begin, number * BIN_S), min(end, (number + 1) * BIN_S)
        if first < last:
            yield number, first, last


def find_cycle(measured: list[tuple[int, float]]) -> list[float]:
    """The shortest cycle in which values repeat, as the mean value of each bin; empty if there is none.

    `measured` has bins and their values. Most bins of the cycle must have been measured more than once.
    """
    mean = sum(value for _, value in measured) / (len(measured) or 1)
    variance = sum((value - mean) ** 2 for _, value in measured)
    if not variance:
        return []
    for length in range(SHORTEST_CYCLE, len(measured) // 2 + 1):
        values: list[list[float]] = [[] for _ in range(length)]
        for number, value in measured:
            values[number % length].append(value)
        if all(values) and sum(len(of_bin) > 1 for of_bin in values) > length / 2:
            means = [sum(of_bin) / len(of_bin) for of_bin in values]
            left = sum((value - means[number % length]) ** 2 for number, value in measured)
            if left <= LEFT * variance:
                return means
    return []


def _phases(recording: Any, logs: Mapping[int, list[Counter]]) -> Iterator[Phase]:
    spans = {pid: [span for log in of_pid for span in _working_spans(log)] for pid, of_pid in logs.items()}
    edges = {edge for of_pid in spans.values() for span in of_pid for edge in span}
    listed: set[int] = set()
    for row in recording["rows"]:
        present = {process[0] for process in row["procs"]}
        if present != listed:
            edges.add(row["t"])
            listed = present
    edges |= {recording["rows"][0]["t"], recording["rows"][-1]["t"]}
    ordered = sorted(edges)
    for begin, end in pairwise(ordered):
        middle = (begin + end) / 2
        working = {pid for pid, of_pid in spans.items() if any(first <= middle < last for first, last in of_pid)}
        yield Phase(begin, end, frozenset(working))


def _working_spans(log: Counter) -> list[tuple[float, float]]:
    """Spans of work without a pause."""
    spans: list[tuple[float, float]] = []
    for before, after in zip(log.times, log.times[1:], strict=False):
        if log.between(before, after) <= 0:
            continue
        if spans and before - spans[-1][1] <= PAUSE_S:
            spans[-1] = (spans[-1][0], after)
        else:
            spans.append((before, after))
    return spans


def _parked_w(recording: Any, phases: list[Phase]) -> float:
    """Power while processes were on the GPU and none of them worked."""
    at_rest = [(p.begin + EDGE_S, p.end - EDGE_S) for p in phases if not p.working]
    powers = [
        row["power_mw"] / 1000
        for row in recording["rows"]
        if row["procs"] and not row["util"][0] and any(begin <= row["t"] <= end for begin, end in at_rest)
    ]
    return median(powers) if powers else PARKED_W
