"""The last ten minutes in memory: each GPU once a second, each owner every ten seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from gpuledger.model import ContainerUse, ProcessUse, Reading, Tick
from gpuledger.view.ring import Ring
from gpuledger.view.schema import VERSION
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
        """A tick some seconds ago, from which power is computed."""
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
        memory: dict[str, int | None] = {}
        energy_mj: dict[str, int] = {}
        metered = metered_gpus(tick)
        uses: list[ContainerUse | ProcessUse] = [*tick.containers, *tick.processes]
        unmetered = {use.owner.display_name for use in uses if use.device.gpu_uuid not in metered}
        for container in tick.containers:
            name = container.owner.display_name
            memory[name] = _added(memory.get(name), container.memory_bytes, container.inferred_bytes)
            energy_mj[name] = energy_mj.get(name, 0) + sum(mj for _, mj in container.energy_mj)
        for process in tick.processes:
            if process.owner.container_id:
                continue
            name = process.owner.display_name
            memory_bytes = 0 if process.active is False else process.resident.memory_bytes
            memory[name] = _added(memory.get(name), memory_bytes)
            energy_mj[name] = energy_mj.get(name, 0) + sum(mj for _, mj in process.energy_mj)
        seconds = now - self._owner_time
        rows = {}
        for name, memory_bytes in memory.items():
            used_mj = energy_mj[name] - self._energy_mj[name] if name in self._energy_mj else -1
            is_known = used_mj >= 0 and name not in unmetered
            rows[name] = (memory_bytes, round(used_mj / 1000 / seconds, 3) if is_known else None)
        self._owners.add(now, rows)
        self._owner_time, self._energy_mj = now, energy_mj


def _added(*numbers: int | None) -> int | None:
    """The sum of the known numbers; None if all are unknown."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _points(step_s: float) -> int:
    return max(2, round(LENGTH_S / step_s))


def _times(ring: Ring) -> tuple[float, ...]:
    return tuple(round(time, 3) for time in ring.times())


def _columns(names: tuple[str, ...], row: list[list[float | None]]) -> dict[str, Column]:
    """The columns by name, rounded to what the 24 bits of a stored value can tell."""
    return {name: _rounded(values, None if name in INTEGERS else 3) for name, values in zip(names, row, strict=True)}


def _rounded(values: list[float | None], digits: int | None) -> Column:
    return tuple(None if value is None else round(value, digits) for value in values)
