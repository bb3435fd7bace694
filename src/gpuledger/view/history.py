"""The last ten minutes in memory: each GPU once a second, each owner every ten seconds."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from gpuledger.model import ContainerUse, ProcessUse, Reading, Tick
from gpuledger.view.schema import VERSION, sum_known
from gpuledger.view.snapshot import metered_gpus

LENGTH_S = 600
OWNERS_STEP_S = 10.0
MAX_GPUS = 256
"""Including MIG instances."""
MAX_OWNERS = 512
SMOOTH_NS = 3_000_000_000
"""Power is a mean over this time at least and twice this at most: a shared second is booked only when it is over."""
TOLERANCE = 0.05
"""Ticks may come early by this fraction of a step."""

Column = tuple[float | None, ...]
Times = Annotated[tuple[float, ...], "Unix times."]
GPU_COLUMNS: dict[str, Callable[[Reading], float | None]] = {
    "utilization_ratio": lambda r: None if r.utilization_pct is None else r.utilization_pct / 100,
    "memory_used_bytes": lambda r: r.memory_used_bytes,
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
    memory_bytes: Annotated[Column, "Includes inferred memory."]
    watts: Annotated[Column, "Mean since the previous time."]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeries:
    """All GPUs."""

    step_seconds: float
    times: Times
    rows: tuple[GpuHistory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSeries:
    """All owners."""

    step_seconds: float
    times: Times
    rows: tuple[OwnerHistory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The last ten minutes; null where a value is unknown."""

    version: Literal[1] = VERSION  # type: ignore[assignment]  # a Literal cannot name the constant
    gpus: GpuSeries
    owners: OwnerSeries


class Ring:
    """Rows with a fixed number of columns over the last `points` times.

    A row is dropped once all its values are older than that. If there are `max_rows` rows, a new row evicts the row
    that has been without values for the longest time; if every row has values, the new row is ignored.
    """

    def __init__(self, points: int, columns: int, max_rows: int) -> None:
        self._points, self._columns, self._max_rows = points, columns, max_rows
        self._times = array("d")
        self._next = 0
        self._rows: dict[str, tuple[array[float], ...]] = {}
        self._updated: dict[str, int] = {}  # number of the last addition with values for a row
        self._additions = 0

    def add(self, time_s: float, rows: Mapping[str, Values]) -> None:
        """Add the values of one time; the oldest time is overwritten if the ring is full."""
        slot, self._next = self._next, (self._next + 1) % self._points
        self._additions += 1
        if slot == len(self._times):
            self._times.append(time_s)
        else:
            self._times[slot] = time_s
        for name in rows:
            if name not in self._rows and self._has_room(rows):
                self._rows[name] = tuple(array("f", [UNKNOWN]) * self._points for _ in range(self._columns))
        for name, columns in self._rows.items():
            values = rows.get(name)
            if values is not None:
                self._updated[name] = self._additions
            for column, value in zip(columns, values or [None] * self._columns, strict=True):
                column[slot] = UNKNOWN if value is None else value
        oldest = self._additions - self._points
        for name in [name for name, updated in self._updated.items() if updated <= oldest]:
            self._drop(name)

    def clear(self) -> None:
        """Remove everything."""
        self._times, self._next, self._rows, self._updated = array("d"), 0, {}, {}

    def times(self) -> list[float]:
        """All times, oldest first."""
        return self._in_order(self._times)

    def rows(self) -> dict[str, list[list[float | None]]]:
        """The columns of each row, oldest value first."""
        return {
            name: [[None if math.isnan(value) else value for value in self._in_order(column)] for column in columns]
            for name, columns in self._rows.items()
        }

    def _in_order(self, column: array[float]) -> list[float]:
        count = len(self._times)
        start = self._next if count == self._points else 0
        return [*column[start:count], *column[:start]]

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
        self._step_s = max(1.0, interval_s)
        self._owners_step_s = max(OWNERS_STEP_S, interval_s)
        self._gpus = Ring(_points(self._step_s), len(GPU_COLUMNS), MAX_GPUS)
        self._owners = Ring(_points(self._owners_step_s), len(OWNER_COLUMNS), MAX_OWNERS)
        self._gpu_time = self._owner_time = 0.0
        self._energy_mj: dict[str, int] = {}  # by owner, at the last step
        self._older: Tick | None = None
        self._newer: Tick | None = None
        self._lock = threading.Lock()

    def add(self, tick: Tick) -> None:
        """Add a tick, unless the current step has one already."""
        now = tick.time_ns / 1e9
        with self._lock:
            if now < self._gpu_time:  # the clock was set back: earlier times would be out of order
                self._clear()
            if self._newer is None or tick.time_ns - self._newer.time_ns >= SMOOTH_NS:
                self._older, self._newer = self._newer or tick, tick
            if now - self._gpu_time >= self._step_s * (1 - TOLERANCE):
                self._gpu_time = now
                rows = {r.device.uuid: [get(r) for get in GPU_COLUMNS.values()] for r in tick.readings if r.up}
                self._gpus.add(now, rows)
            if now - self._owner_time >= self._owners_step_s * (1 - TOLERANCE):
                self._add_owners(tick, now)

    def before(self) -> Tick | None:
        """The tick since which power is averaged."""
        return self._older

    def past(self) -> Past:
        """All steps, oldest first."""
        with self._lock:
            return Past(
                gpus=GpuSeries(
                    step_seconds=self._step_s,
                    times=_times(self._gpus),
                    rows=tuple(
                        GpuHistory(uuid=uuid, **_columns(tuple(GPU_COLUMNS), row))
                        for uuid, row in self._gpus.rows().items()
                    ),
                ),
                owners=OwnerSeries(
                    step_seconds=self._owners_step_s,
                    times=_times(self._owners),
                    rows=tuple(
                        OwnerHistory(owner=name, **_columns(OWNER_COLUMNS, row))
                        for name, row in self._owners.rows().items()
                    ),
                ),
            )

    def _clear(self) -> None:
        self._gpus.clear()
        self._owners.clear()
        self._gpu_time = self._owner_time = 0.0
        self._energy_mj, self._older, self._newer = {}, None, None

    def _add_owners(self, tick: Tick, now: float) -> None:
        """A container's energy includes its exited processes; a process outside a container counts for itself."""
        memory: dict[str, float | None] = {}
        energy_mj: dict[str, int] = {}
        metered = metered_gpus(tick)
        uses: list[ContainerUse | ProcessUse] = [*tick.containers, *tick.processes]
        unmetered = {use.owner.display_name for use in uses if use.device.gpu_uuid not in metered}
        for container in tick.containers:
            name = container.owner.display_name
            memory[name] = sum_known((memory.get(name), container.memory_bytes, container.inferred_bytes))
            energy_mj[name] = energy_mj.get(name, 0) + sum(mj for _, mj in container.energy_mj)
        for process in tick.processes:
            if process.owner.container_id:
                continue
            name = process.owner.display_name
            own_bytes = 0 if process.active is False else process.resident.memory_bytes
            memory[name] = sum_known((memory.get(name), own_bytes))
            energy_mj[name] = energy_mj.get(name, 0) + sum(mj for _, mj in process.energy_mj)
        seconds = now - self._owner_time
        rows = {}
        for name, memory_bytes in memory.items():
            used_mj = energy_mj[name] - self._energy_mj[name] if name in self._energy_mj else -1
            is_known = used_mj >= 0 and name not in unmetered
            rows[name] = (memory_bytes, round(used_mj / 1000 / seconds, 3) if is_known else None)
        self._owners.add(now, rows)
        self._owner_time, self._energy_mj = now, energy_mj


def _points(step_s: float) -> int:
    return max(2, round(LENGTH_S / step_s))


def _times(ring: Ring) -> tuple[float, ...]:
    return tuple(round(time, 3) for time in ring.times())


def _columns(names: tuple[str, ...], row: list[list[float | None]]) -> dict[str, Column]:
    """The columns by name, rounded to the precision of the stored 24 bits."""
    return {name: _rounded(values, None if name in INTEGERS else 3) for name, values in zip(names, row, strict=True)}


def _rounded(values: list[float | None], digits: int | None) -> Column:
    return tuple(None if value is None else round(value, digits) for value in values)
