"""The last hour in memory, in coarser steps for the time before the last ten minutes."""

from __future__ import annotations

import copy
import math
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from gpuledger.model import Reading, Tick
from gpuledger.web.snapshot.build import booked_times
from gpuledger.web.snapshot.colours import Colours
from gpuledger.web.snapshot.schema import VERSION, sum_known

LENGTH_S, OLDER_LENGTH_S = 600, 3600
"""The time covered by the recent and by the older steps."""
GPU_STEPS_S, OWNER_STEPS_S = (1.0, 10.0), (5.0, 30.0)
"""Time between recent points, and between older points; at least a tick."""
NO_OWNER = ""
"""The row of the power without an owner; no owner has this name."""
MAX_GPUS = 256
"""GPUs and MIG instances."""
MAX_OWNERS = 512
SMOOTH_NS = 6_000_000_000
"""Power is a mean over this time at least and twice this at most: energy is booked every 5 s, if not every tick."""
TOLERANCE = 0.05
"""Ticks may come early by this fraction of a step."""

Column = tuple[float | None, ...]
StepSeconds = Annotated[float, "Time between two points of the last ten minutes."]
Times = Annotated[tuple[float, ...], "Unix times; further apart before the last ten minutes."]
GPU_COLUMNS: dict[str, Callable[[Reading], float | None]] = {
    "utilization_ratio": lambda r: None if r.utilization_pct is None else r.utilization_pct / 100,
    "memory_used_bytes": lambda r: r.system_memory_used_bytes if r.memory_used_bytes is None else r.memory_used_bytes,
    "power_watts": lambda r: None if r.power_mw is None else r.power_mw / 1000,
    "temperature_celsius": lambda r: dict(r.temperatures_c).get("gpu"),
}
OWNER_COLUMNS = ("memory_bytes", "watts")
Values = Sequence[float | None]
UNKNOWN = math.nan
"""Stands for None, which an array cannot hold."""
INTEGERS = {"memory_used_bytes", "memory_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHistory:
    """One GPU or MIG instance; each column has a value for each time, oldest first, with 24 bits of precision."""

    uuid: str
    utilization_ratio: Column
    memory_used_bytes: Column
    power_watts: Column
    temperature_celsius: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerHistory:
    """One owner; each column has a value for each time, oldest first, with 24 bits of precision."""

    owner: str
    colour: Annotated[int, "Number of its colour, as in a snapshot."] = 0
    memory_bytes: Annotated[Column, "Includes inferred memory."]
    watts: Annotated[Column, "Mean since the previous time."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeries:
    """All GPUs."""

    step_seconds: StepSeconds
    times: Times
    rows: tuple[GpuHistory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSeries:
    """All owners. The power of all GPUs is the sum over the owners plus `unowned_watts`."""

    step_seconds: StepSeconds
    times: Times
    rows: tuple[OwnerHistory, ...]
    unowned_watts: Annotated[Column, "Idle and unattributed power; mean since the previous time."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The last hour; null where a value is unknown. Points older than ten minutes are means over a longer step."""

    version: Literal[1] = VERSION  # type: ignore[assignment]  # a Literal cannot name the constant
    gpus: GpuSeries
    owners: OwnerSeries


class Ring:
    """Rows with a fixed number of columns over the last `points` times, and over `older` means before them.

    A mean replaces `per_older` points that are too old. A row is dropped once all its values are gone. If there are
    `max_rows` rows, a new row evicts the row that has been without values for the longest time; if every row has
    values, the new row is ignored.
    """

    def __init__(self, points: int, columns: int, max_rows: int, *, older: int = 0, per_older: int = 1) -> None:
        self._points, self._columns, self._max_rows = points, columns, max_rows
        self._older, self._per_older = older, per_older
        self.step_s = 0.0
        """Least time between two points, for `is_due`."""
        self._times = array("d")
        self._means = 0  # the number of times at the beginning that are means
        self._rows: dict[str, tuple[array[float], ...]] = {}
        self._updated: dict[str, float] = {}  # the last time with values for a row

    @classmethod
    def of_hour(cls, steps_s: tuple[float, float], interval_s: float, columns: int, max_rows: int) -> Ring:
        """The ring of the last hour, with these steps between points and between means; at least a tick each."""
        step_s = max(steps_s[0], interval_s)
        per_older = max(1, round(steps_s[1] / step_s))
        older = max(1, round((OLDER_LENGTH_S - LENGTH_S) / step_s / per_older))
        ring = cls(max(1, round(LENGTH_S / step_s)), columns, max_rows, older=older, per_older=per_older)
        ring.step_s = step_s
        return ring

    @property
    def time_s(self) -> float:
        """The last time; 0 if there is none."""
        return self._times[-1] if self._times else 0.0

    def is_due(self, time_s: float) -> bool:
        """Whether a step has passed since the last time."""
        return time_s - self.time_s >= self.step_s * (1 - TOLERANCE)

    def add(self, time_s: float, rows: Mapping[str, Values]) -> None:
        """Add the values of one time."""
        slot = len(self._times)
        self._times.append(time_s)
        size = self._older + self._points + self._per_older
        for name in rows:
            if name not in self._rows and self._has_room(rows):
                self._rows[name] = tuple(array("f", [UNKNOWN]) * size for _ in range(self._columns))
        for name, columns in self._rows.items():
            values = rows.get(name)
            if values is not None:
                self._updated[name] = time_s
            for column, value in zip(columns, values or [None] * self._columns, strict=True):
                column[slot] = UNKNOWN if value is None else value
        if slot + 1 - self._means == self._points + self._per_older:
            self._merge()

    def times(self) -> list[float]:
        """All times, oldest first; of a mean, the last of its times."""
        return list(self._times)

    def rows(self) -> dict[str, list[list[float | None]]]:
        """The columns of each row, oldest value first."""
        count = len(self._times)
        return {
            name: [[None if math.isnan(value) else value for value in column[:count]] for column in columns]
            for name, columns in self._rows.items()
        }

    def _merge(self) -> None:
        """Replace the oldest points by their mean, and drop the oldest mean if there are too many."""
        begin, end = self._means, self._means + self._per_older
        first = int(begin == self._older)
        self._means += 1 - first
        self._times[begin:end] = self._times[end - 1 : end]
        del self._times[:first]
        for column in (column for columns in self._rows.values() for column in columns):
            column[begin:end] = array("f", [_mean(column[begin:end])])
            del column[:first]
            column.extend([UNKNOWN] * (self._per_older - 1 + first))
        for name in [name for name, updated in self._updated.items() if updated < self._times[0]]:
            self._drop(name)

    def _has_room(self, rows: Mapping[str, Values]) -> bool:
        if len(self._rows) < self._max_rows:
            return True
        absent = [name for name in self._rows if name not in rows]
        if absent:
            self._drop(min(absent, key=lambda name: self._updated[name]))
        return bool(absent)

    def _drop(self, name: str) -> None:
        del self._rows[name], self._updated[name]


class History:
    """Collects ticks. `past` is safe to call from other threads."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self.colours = Colours()
        self._clear()

    def _clear(self) -> None:
        self._gpus = Ring.of_hour(GPU_STEPS_S, self._interval_s, len(GPU_COLUMNS), MAX_GPUS)
        self._owners = Ring.of_hour(OWNER_STEPS_S, self._interval_s, len(OWNER_COLUMNS), MAX_OWNERS + 1)
        self._watts = Watts()
        self._older: Tick | None = None
        self._newer: Tick | None = None

    def add(self, tick: Tick) -> None:
        """Add a tick, unless the current step has one already."""
        now = tick.time_ns / 1e9
        with self._lock:
            self.colours.add(tick)
            if now < self._gpus.time_s:  # the clock was set back: earlier times would be out of order
                self._clear()
            if self._newer is None or tick.time_ns - self._newer.time_ns >= SMOOTH_NS:
                self._older, self._newer = self._newer or tick, tick
            if self._gpus.is_due(now):
                rows = {r.device.uuid: [get(r) for get in GPU_COLUMNS.values()] for r in tick.readings if r.up}
                self._gpus.add(now, rows)
            if self._owners.is_due(now):
                self._add_owners(tick, now)

    def before(self) -> Tick | None:
        """The tick since which power is averaged."""
        return self._older

    def past(self) -> Past:
        """All points, oldest first."""
        with self._lock:  # the loop may wait for it: only copy, and convert later
            gpu_ring, owner_ring = copy.deepcopy((self._gpus, self._owners))
        gpus = {uuid: _columns(GPU_COLUMNS, row) for uuid, row in gpu_ring.rows().items()}
        owners = {name: _columns(OWNER_COLUMNS, row) for name, row in owner_ring.rows().items()}
        times = _rounded(owner_ring.times())
        unowned = owners.pop(NO_OWNER, {"watts": (None,) * len(times)})
        return Past(
            gpus=GpuSeries(
                step_seconds=self._gpus.step_s,
                times=_rounded(gpu_ring.times()),
                rows=tuple(GpuHistory(uuid=uuid, **columns) for uuid, columns in gpus.items()),
            ),
            owners=OwnerSeries(
                step_seconds=owner_ring.step_s,
                times=times,
                rows=tuple(
                    OwnerHistory(owner=name, colour=self.colours.of(name), **columns)
                    for name, columns in owners.items()
                ),
                unowned_watts=unowned["watts"],
            ),
        )

    def _add_owners(self, tick: Tick, now: float) -> None:
        """A container's energy includes its exited processes; a process outside a container counts for itself."""
        memory: dict[str, float | None] = {}
        energy_mj: dict[tuple[str, str], int] = {}
        for container in tick.containers:
            name = container.owner.display_name
            memory[name] = sum_known((memory.get(name), container.memory_bytes, container.inferred_bytes))
            place = name, container.device.gpu_uuid
            energy_mj[place] = energy_mj.get(place, 0) + sum(mj for _, mj in container.energy_mj)
        for process in tick.processes:
            if process.owner.container_id:
                continue
            name = process.owner.display_name
            own_bytes = 0 if process.active is False else process.resident.memory_bytes
            memory[name] = sum_known((memory.get(name), own_bytes))
            place = name, process.device.gpu_uuid
            energy_mj[place] = energy_mj.get(place, 0) + sum(mj for _, mj in process.energy_mj)
        booked_ns = booked_times(tick)
        for uuid in booked_ns:  # what a GPU used before the exporter started is no power of now
            account = tick.accounts[uuid]
            unattributed_mj = sum(mj for reason, mj in account.unattributed_mj if reason != "before")
            energy_mj[NO_OWNER, uuid] = account.idle_mj + unattributed_mj
        watts = self._watts.update(energy_mj, booked_ns)
        rows: dict[str, Values] = {NO_OWNER: (None, watts.get(NO_OWNER))}
        self._owners.add(now, rows | {name: (memory_bytes, watts[name]) for name, memory_bytes in memory.items()})


class Watts:
    """Mean power of each owner between two steps."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, int, float | None]] = {}
        """Energy, the time up to which it was booked, and the last power, by owner and GPU."""

    def update(self, energy_mj: Mapping[tuple[str, str], int], booked_ns: Mapping[str, int]) -> dict[str, float | None]:
        """The power of each owner: None if it is new on a GPU, or if a GPU reports no energy.

        On a GPU whose energy was not booked since the last step, power is that of the last step.
        """
        before, self._known = self._known, {}
        watts: dict[str, float | None] = {}
        for (name, uuid), mj in energy_mj.items():
            now_ns, known, own = booked_ns.get(uuid), before.get((name, uuid)), None
            if now_ns is not None and known is not None and now_ns <= known[1]:
                self._known[name, uuid], own = known, known[2]
            elif now_ns is not None:
                if known is not None and mj >= known[0]:
                    own = (mj - known[0]) * 1e6 / (now_ns - known[1])
                self._known[name, uuid] = mj, now_ns, own
            total = watts.get(name, 0.0)
            watts[name] = None if own is None or total is None else round(total + own, 3)
        return watts


def _mean(values: Sequence[float]) -> float:
    """The mean of the known values."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else UNKNOWN


def _columns(names: Iterable[str], row: list[list[float | None]]) -> dict[str, Column]:
    """The columns by name, rounded to the precision of the stored 24 bits."""
    return {
        name: tuple(None if value is None else round(value, None if name in INTEGERS else 3) for value in values)
        for name, values in zip(names, row, strict=True)
    }


def _rounded(times: list[float]) -> tuple[float, ...]:
    return tuple(round(time, 3) for time in times)
