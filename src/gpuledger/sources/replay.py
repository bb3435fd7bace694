"""Playing a recording as if it were the driver: in real time, looped, or as fast as it is asked."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuledger.errors import RecordingError
from gpuledger.model import Reading, Tick
from gpuledger.sources.recording import Decoder, check_header

LARGEST_BYTES = 1 << 30
"""Unpacked. A recording of a day at 1 s ticks has some 300 MB; anything past this is a bomb."""

COUNTERS = ("energy_mj", "pcie_replays", "nvlink_transmit_bytes", "nvlink_receive_bytes")
NAMED_COUNTERS = ("clock_event_ns", "ecc_errors", "ecc_volatile_errors", "nvlink_errors", "xids")


def load(path: Path) -> Iterator[Tick]:
    """The ticks of a recording; RecordingError names the file and the line that is wrong."""
    number = 0
    seen = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            decoder = Decoder()
            for number, line in enumerate(lines, start=1):
                seen += len(line)
                if seen > LARGEST_BYTES:
                    raise RecordingError(f"it unpacks to more than {LARGEST_BYTES >> 20} MiB")
                if number == 1:
                    check_header(line)
                else:
                    yield decoder.tick(line)
    except RecordingError as error:
        where = f", line {number}" if number > 1 else ""
        raise RecordingError(f"cannot replay {path}{where}: {error}") from None
    except EOFError:
        raise RecordingError(f"cannot replay {path}: it is truncated after line {number}; record it again") from None
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise RecordingError(f"cannot replay {path}: it is damaged or no recording ({error})") from None
    except OSError as error:
        raise RecordingError(f"cannot replay {path}: {error.strerror or error}") from None
    if number < 2:
        raise RecordingError(f"cannot replay {path}: it holds no readings")


class Replay:
    """A source that plays a recording, read from the file as it goes.

    `paced` gives at each `read` the tick whose time has come, moved to the present; otherwise each `read` gives the
    next tick just as it was recorded. `looped` starts again at the end, with time and counters going on from where
    they were, so that a rate over the seam is right.
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
        self._lap = Lap.measure(load(path))  # reads the whole file: a damaged one is refused before anything is shown
        self._laps = 0
        self._ticks = load(path)
        self._next: Tick | None = next(self._ticks)
        self._last = self._lap.first
        self._shift_ns = now_ns() - self._lap.first.time_ns
        self._started = monotonic()

    @property
    def ended(self) -> bool:
        """Whether every tick was given; never for a looped replay."""
        return self._next is None

    def read(self) -> Tick:
        """The next tick, or the one whose time has come; past the end, the last one again."""
        if not self._paced:
            return self._take() or self._last
        elapsed_ns = int((self._monotonic() - self._started) * 1e9)
        fresh = False
        while self._next is not None and self._due_ns(self._next) <= elapsed_ns:
            self._take()
            fresh = True
        return self._to_present(self._last, fresh=fresh)

    def errors(self) -> Mapping[tuple[str, str], int]:
        """A recording does not fail."""
        return {}

    def close(self) -> None:
        """Nothing to let go of."""

    def _due_ns(self, tick: Tick) -> int:
        return tick.time_ns - self._lap.first.time_ns + self._laps * self._lap.duration_ns

    def _take(self) -> Tick | None:
        """Move on by one tick, its counters raised by what the laps before it used."""
        if self._next is None:
            return None
        taken = self._next
        if self._laps:
            shift_ns = self._laps * self._lap.duration_ns
            readings = tuple(self._lap.later(reading, self._laps) for reading in taken.readings)
            taken = _moved(replace(taken, readings=readings), shift_ns)
        self._last = replace(taken, source="replay")
        self._next = next(self._ticks, None)
        if self._next is None and self._looped:
            self._laps += 1
            self._ticks = load(self._path)
            self._next = next(self._ticks)
        return self._last

    def _to_present(self, tick: Tick, *, fresh: bool) -> Tick:
        if not fresh:  # the same tick again: its samples were given
            readings = tuple(r if r.samples is None else replace(r, samples=()) for r in tick.readings)
            tick = replace(tick, readings=readings)
        return _moved(tick, self._shift_ns)


@dataclass(frozen=True, slots=True)
class Lap:
    """One play of the recording: its first tick, how long it lasts, and what each device used in it."""

    first: Tick
    duration_ns: int
    used: dict[str, dict[str, int | dict[str, int]]]

    @staticmethod
    def measure(ticks: Iterator[Tick]) -> Lap:
        """Go through a recording once. The step from the last tick back to the first is as long as the others."""
        first = last = next(ticks)
        steps = 0
        for tick in ticks:
            last = tick
            steps += 1
        span_ns = last.time_ns - first.time_ns
        duration_ns = span_ns + (span_ns // steps if steps else 1_000_000_000)
        before = {reading.device.uuid: reading for reading in first.readings}
        used = {
            reading.device.uuid: _risen(before[reading.device.uuid], reading, duration_ns, span_ns)
            for reading in last.readings
            if reading.device.uuid in before
        }
        return Lap(first, duration_ns, used)

    def later(self, reading: Reading, laps: int) -> Reading:
        """The reading as it would be after so many laps."""
        changes: dict[str, Any] = {}
        for name, rise in self.used.get(reading.device.uuid, {}).items():
            value = getattr(reading, name)
            if isinstance(rise, dict):
                changes[name] = tuple((key, v + rise.get(key, 0) * laps) for key, v in value)
            elif value is not None:
                changes[name] = value + rise * laps
        return replace(reading, **changes)


def _risen(first: Reading, last: Reading, duration_ns: int, span_ns: int) -> dict[str, int | dict[str, int]]:
    def rise(old: int, new: int) -> int:
        return max(0, new - old) * duration_ns // max(1, span_ns)

    risen: dict[str, int | dict[str, int]] = {}
    for name in COUNTERS:
        old, new = getattr(first, name), getattr(last, name)
        if old is not None and new is not None:
            risen[name] = rise(old, new)
    for name in NAMED_COUNTERS:
        start = dict(getattr(first, name))
        risen[name] = {key: rise(start.get(key, 0), value) for key, value in getattr(last, name)}
    return risen


def _moved(tick: Tick, by_ns: int) -> Tick:
    """The tick at another time, with the times inside it."""
    by_us, by_ms = by_ns // 1000, by_ns // 1_000_000
    readings = tuple(
        replace(r, samples=tuple(replace(row, timestamp_us=row.timestamp_us + by_us) for row in r.samples))
        if r.samples
        else r
        for r in tick.readings
    )
    facts = {pid: replace(f, start_time_ms=f.start_time_ms + by_ms) for pid, f in tick.facts.items()}
    return replace(tick, time_ns=tick.time_ns + by_ns, readings=readings, facts=facts)
