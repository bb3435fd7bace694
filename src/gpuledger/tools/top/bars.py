"""Bars and charts made of characters, exactly as wide as requested, and the history that charts show."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger.tools.top.text import BAD, GUESS, Glyphs, Line, styled
from gpuledger.web.snapshot.schema import Gpu, Snapshot

MAX_POINTS = 600
"""Ten minutes of one snapshot per second, and more than the widest screen shows."""


def bar(share: float | None, columns: int, glyphs: Glyphs, style: str) -> Line:
    """A bar; empty if the share is unknown."""
    full = round(min(1.0, max(0.0, share or 0.0)) * columns)
    return styled(glyphs.owners[0] * full, style) + styled(glyphs.free * (columns - full), "dim")


def memory_parts(snapshot: Snapshot, gpu: Gpu) -> list[tuple[str, str, float]]:
    """The parts of a device's memory in the order of the bar: kind, owner and bytes."""
    processes = [process for process in snapshot.processes if gpu.uuid in (process.uuid, process.gpu_uuid)]
    containers = [container for container in snapshot.containers if gpu.uuid in (container.uuid, container.gpu_uuid)]
    listed = processes if snapshot.processes else containers  # an exporter may show no processes
    known = _by_owner((row.owner, row.memory_bytes) for row in listed)
    inferred = _by_owner((row.owner, row.inferred_bytes) for row in containers)
    memory = gpu.memory
    others = max(0, (memory.known_bytes or 0) - sum(known.values()))
    unknown = max(0, (memory.unknown_bytes or 0) - sum(inferred.values()))
    return [
        *(("known", owner, size) for owner, size in known.items()),
        *([("others", "processes without a row", others)] if others else []),
        *([("others", "rest of the system", memory.system_bytes)] if memory.system_bytes else []),
        *(("inferred", owner, size) for owner, size in inferred.items()),
        ("unknown", "unknown", unknown),
        ("driver", "driver", (memory.reserved_bytes or 0) + (memory.overhead_bytes or 0)),
    ]


def _by_owner(sizes: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """Bytes by owner, largest first."""
    sums: dict[str, int] = {}
    for owner, size in sizes:
        if size:
            sums[owner] = sums.get(owner, 0) + size
    return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def memory_bar(snapshot: Snapshot, gpu: Gpu, styles: Mapping[str, str], columns: int, glyphs: Glyphs) -> Line:
    """Memory by owner, followed by inferred and unknown memory and the driver's own.

    Each part ends at the rounded cumulative sum, so that rounding errors do not add up.
    """
    if not gpu.memory.total_bytes:
        return bar(None, columns, glyphs, "")
    line: Line = ()
    used, end = 0, 0.0
    for position, (kind, owner, size) in enumerate(memory_parts(snapshot, gpu)):
        end += size
        until = max(used, min(columns, round(end / gpu.memory.total_bytes * columns)))
        glyph, style = {
            "inferred": (glyphs.inferred, GUESS),
            "unknown": (glyphs.unknown, BAD),
            "driver": (glyphs.driver, "dim"),
        }.get(kind, (glyphs.owners[position % len(glyphs.owners)], styles.get(owner, "") if kind == "known" else ""))
        line += styled(glyph * (until - used), style)
        used = until
    return line + styled(glyphs.free * (columns - used), "dim")


def chart(values: Sequence[float | None], columns: int, rows: int, glyphs: Glyphs) -> list[str]:
    """Values from 0 to 1 as columns, the newest at the right; unknown values are gaps."""
    top = len(glyphs.steps) - 1
    levels = [
        0 if value is None else max(1, round(min(1.0, max(0.0, value)) * rows * top))
        for value in means(values, columns)
    ]
    return [
        "".join(glyphs.steps[min(top, max(0, level - row * top))] for level in levels)
        for row in range(rows - 1, -1, -1)
    ]


def means(values: Sequence[float | None], columns: int) -> list[float | None]:
    """One value per column: means of neighbours if there are more values, unknown values first if there are fewer."""
    if columns < 1:
        return []
    per_column = max(1, -(-len(values) // columns))
    parts = [values[max(0, end - per_column) : end] for end in range(len(values), 0, -per_column)][::-1]
    known = [[value for value in part if value is not None] for part in parts]
    averages = [sum(part) / len(part) if part else None for part in known]
    return [None] * (columns - len(averages)) + averages


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One GPU in one snapshot; each value from 0 to 1, None if unknown."""

    busy: float | None
    memory: float | None
    power: float | None


class History:
    """The last points of each GPU."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max_points
        self._points: dict[str, deque[Point]] = {}
        self._times: deque[float] = deque(maxlen=max_points)

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot; the same snapshot again changes nothing."""
        if not snapshot.time or (self._times and snapshot.time == self._times[-1]):
            return
        self._times.append(snapshot.time)
        points = {}
        for gpu in snapshot.gpus:
            points[gpu.uuid] = self._points.get(gpu.uuid, deque(maxlen=self._max_points))
            points[gpu.uuid].append(
                Point(
                    busy=gpu.utilization_ratio,
                    memory=ratio(gpu.memory.used_bytes, gpu.memory.total_bytes),
                    power=ratio(gpu.power_watts, gpu.power_limit_watts),
                )
            )
        self._points = points

    @property
    def seconds(self) -> float:
        """Time from the oldest to the newest snapshot."""
        return max(0.0, self._times[-1] - self._times[0]) if self._times else 0.0

    def points(self, gpu: Gpu) -> Sequence[Point]:
        """The points of a GPU, oldest first."""
        return self._points.get(gpu.uuid, ())


def ratio(part: float | None, whole: float | None) -> float | None:
    """Part / whole; None if unknown."""
    return part / whole if part is not None and whole else None
