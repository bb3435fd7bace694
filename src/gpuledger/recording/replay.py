"""Replay of a recording as a source: in real time, in a loop, or one tick per read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from gpuledger.model import Reading, Sample, Tick
from gpuledger.model.problem import Problem
from gpuledger.recording.recording import load, read_packed

NS_PER_TICK = 10_000_000
"""Linux measures the start time of a process in 1/100 s."""

LARGEST_PID = 1 << 22
PIDS_PER_LAP = 10_007

COUNTERS = tuple(field.name for field in fields(Reading) if "counter" in field.metadata)


class Replay:
    """A source that replays a recording.

    If `paced`, `read` returns the tick that is due, moved to the present; otherwise each `read` returns the next tick
    as recorded. If `looped`, the recording starts again at its end: time and counters continue, so that rates across
    the seam are correct. Processes that are there at both ends continue; all others are new ones.
    """

    def __init__(
        self,
        path: Path,
        *,
        looped: bool = False,
        paced: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._path = path
        self._looped = looped
        self._paced = paced
        self._monotonic = monotonic
        self._packed = read_packed(path)
        # Reads the whole recording, so that damage is reported before the first tick.
        self._lap = Lap.measure(load(self._packed, path))
        self._laps = 0
        self._ticks = load(self._packed, path)
        self._next: Tick | None = next(self._ticks)
        self._last = self._lap.first
        self._shift_ns = now_ns() - self._lap.first.time_ns
        self._started = monotonic()

    @property
    def ended(self) -> bool:
        """Whether every tick was returned; never true for a looped replay."""
        return self._next is None

    def read(self) -> Tick:
        """The next tick, or the one that is due; after the end, the last one without its samples."""
        if not self._paced:
            return self._with_samples(self._take() if self._next else [])
        elapsed_ns = int((self._monotonic() - self._started) * 1e9)
        if self._looped and self._next is not None:  # after a long pause, whole laps are skipped
            self._laps += max(0, elapsed_ns - self._due_ns(self._next)) // self._lap.duration_ns
        samples: list[tuple[str, Sample]] = []
        while self._next is not None and self._due_ns(self._next) <= elapsed_ns:
            samples += self._take()
        return shifted(self._with_samples(samples), self._shift_ns)

    def errors(self) -> Mapping[tuple[str, str], int]:
        """None: a recording does not fail."""
        return {}

    def problems(self) -> tuple[Problem, ...]:
        """None: a recording does not fail."""
        return ()

    def close(self) -> None:
        """Nothing to release."""

    def _due_ns(self, tick: Tick) -> int:
        return tick.time_ns - self._lap.first.time_ns + self._laps * self._lap.duration_ns

    def _take(self) -> list[tuple[str, Sample]]:
        """Advance by one tick, and add the increases of earlier laps to its counters; return its samples."""
        assert self._next is not None  # noqa: S101 - checked by the callers
        taken = replace(self._next, source="replay")
        if self._laps:
            readings = tuple(self._lap.after(self._laps, reading) for reading in taken.readings)
            taken = _renumbered(replace(taken, readings=readings), self._laps, self._lap.staying)
            taken = shifted(taken, self._laps * self._lap.duration_ns, self._lap.staying)
        self._last = taken
        self._next = next(self._ticks, None)
        if self._next is None and self._looped:
            self._laps += 1
            self._ticks = load(self._packed, self._path)
            self._next = next(self._ticks)
        return [(reading.device.uuid, row) for reading in taken.readings for row in reading.samples or ()]

    def _with_samples(self, samples: list[tuple[str, Sample]]) -> Tick:
        """The last tick with the samples of all ticks since the last read, as the driver would return them."""
        readings = tuple(
            reading
            if reading.samples is None
            else replace(reading, samples=tuple(row for uuid, row in samples if uuid == reading.device.uuid))
            for reading in self._last.readings
        )
        return replace(self._last, readings=readings)


@dataclass(frozen=True, slots=True)
class Lap:
    """One pass of the recording: its first tick, its duration, and the increase of each counter by uuid."""

    first: Tick
    duration_ns: int
    increases: dict[str, dict[str, int | dict[str, int]]]
    staying: frozenset[int]
    """Processes that are there in the first and in the last tick."""

    @staticmethod
    def measure(ticks: Iterator[Tick]) -> Lap:
        """Measure a recording. The step from the last tick to the first of the next lap has the mean length."""
        first = last = next(ticks)
        steps = 0
        begin: dict[str, Reading] = {}
        end: dict[str, Reading] = {}
        for tick in chain([first], ticks):
            steps += tick is not first
            last = tick
            for reading in tick.readings:
                if reading.up:
                    begin.setdefault(reading.device.uuid, reading)
                    end[reading.device.uuid] = reading
        span_ns = last.time_ns - first.time_ns
        duration_ns = span_ns + (span_ns // steps if steps else 1_000_000_000)
        increases = {uuid: _increases(begin[uuid], reading, duration_ns, span_ns) for uuid, reading in end.items()}
        staying = frozenset(pid for pid, facts in first.facts.items() if last.facts.get(pid) == facts)
        return Lap(first, duration_ns, increases, staying)

    def after(self, laps: int, reading: Reading) -> Reading:
        """The reading with its counters after that many laps."""
        changes: dict[str, Any] = {}
        for name, increase in self.increases.get(reading.device.uuid, {}).items():
            value = getattr(reading, name)
            if isinstance(increase, dict):
                changes[name] = tuple((key, v + increase.get(key, 0) * laps) for key, v in value)
            elif value is not None:
                changes[name] = value + increase * laps
        return replace(reading, **changes)


def _increases(first: Reading, last: Reading, duration_ns: int, span_ns: int) -> dict[str, int | dict[str, int]]:
    def increase(old: int, new: int) -> int:
        return max(0, new - old) * duration_ns // max(1, span_ns)

    increases: dict[str, int | dict[str, int]] = {}
    for name in COUNTERS:
        old, new = getattr(first, name), getattr(last, name)
        if isinstance(new, tuple):
            start = dict(old)
            increases[name] = {key: increase(start.get(key, 0), value) for key, value in new}
        elif old is not None and new is not None:
            increases[name] = increase(old, new)
    return increases


def _renumbered(tick: Tick, laps: int, staying: frozenset[int]) -> Tick:
    """The tick with the process ids of a later lap."""

    def pid(recorded: int) -> int:
        return recorded if recorded in staying else 1 + (recorded - 1 + laps * PIDS_PER_LAP) % LARGEST_PID

    readings = tuple(
        replace(
            r,
            samples=r.samples and tuple(replace(row, pid=pid(row.pid)) for row in r.samples),
            residents=r.residents and tuple(replace(row, pid=pid(row.pid)) for row in r.residents),
            accounting=r.accounting and tuple(replace(row, pid=pid(row.pid)) for row in r.accounting),
        )
        for r in tick.readings
    )
    facts = {pid(recorded): replace(f, pid=pid(recorded)) for recorded, f in tick.facts.items()}
    owners = replace(
        tick.owners,
        by_pid={pid(recorded): owner for recorded, owner in tick.owners.by_pid.items()},
        holders=tuple(replace(h, pid=h.pid and pid(h.pid)) for h in tick.owners.holders),
    )
    return replace(tick, readings=readings, facts=facts, owners=owners)


def shifted(tick: Tick, by_ns: int, staying: frozenset[int] = frozenset()) -> Tick:
    """The tick at another time. The start times of processes move too, except for those in `staying`."""
    by_us, by_ms, by_ticks = by_ns // 1000, by_ns // 1_000_000, by_ns // NS_PER_TICK
    readings = tuple(
        replace(r, samples=tuple(replace(row, timestamp_us=row.timestamp_us + by_us) for row in r.samples))
        if r.samples
        else r
        for r in tick.readings
    )
    facts = {
        pid: f
        if pid in staying
        else replace(f, start_time_ms=f.start_time_ms + by_ms, start_ticks=f.start_ticks + by_ticks)
        for pid, f in tick.facts.items()
    }
    return replace(tick, time_ns=tick.time_ns + by_ns, readings=readings, facts=facts)
