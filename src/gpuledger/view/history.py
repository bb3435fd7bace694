"""The last ten minutes in small: each GPU every second, each owner every ten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from gpuledger.model import Reading, Tick
from gpuledger.view.ring import Ring
from gpuledger.view.snapshot import VERSION, Picture, metered
from gpuledger.view.who import who, whose

LENGTH_S = 600
OWNERS_STEP_S = 10.0
MOST_GPUS = 256
"""MIG instances are among them."""
MOST_OWNERS = 512
SMOOTH_NS = 3_000_000_000
"""Watts are means over this time at least, and twice this at most: a shared second is booked when it is over."""
EARLY = 0.05
"""Of a step: ticks are not on the dot."""

GPU_COLUMNS: dict[str, Callable[[Reading], float | None]] = {
    "utilization_ratio": lambda r: None if r.utilization_pct is None else r.utilization_pct / 100,
    "memory_used_bytes": lambda r: r.memory_used_bytes,
    "power_watts": lambda r: None if r.power_mw is None else r.power_mw / 1000,
    "temperature_celsius": lambda r: dict(r.temperatures_c).get("gpu"),
}
OWNER_COLUMNS = ("memory_bytes", "watts")
WHOLE = {"memory_used_bytes", "memory_bytes"}
"""Columns of whole numbers."""


class History:
    """Made from ticks, one after the other. Safe to ask from other threads."""

    def __init__(self, interval_s: float) -> None:
        self._step_s = max(1.0, interval_s)
        self._owners_step_s = max(OWNERS_STEP_S, interval_s)
        self._gpus = Ring(_points(self._step_s), len(GPU_COLUMNS), MOST_GPUS)
        self._owners = Ring(_points(self._owners_step_s), len(OWNER_COLUMNS), MOST_OWNERS)
        self._gpu_time = self._owner_time = 0.0
        self._used: dict[str, int] = {}  # millijoules of each owner at its last moment
        self._older: Tick | None = None
        self._newer: Tick | None = None
        self._lock = threading.Lock()

    def add(self, tick: Tick) -> None:
        """One more tick; most are left out where they come faster than the step."""
        now = tick.time_ns / 1e9
        with self._lock:
            if now < self._gpu_time:  # the clock was set back: what was before cannot be put in order
                self._forget()
            if self._newer is None or tick.time_ns - self._newer.time_ns >= SMOOTH_NS:
                self._older, self._newer = self._newer or tick, tick
            if now - self._gpu_time >= self._step_s * (1 - EARLY):
                self._gpu_time = now
                rows = {r.device.uuid: [get(r) for get in GPU_COLUMNS.values()] for r in tick.readings if r.up}
                self._gpus.add(now, rows)
            if now - self._owner_time >= self._owners_step_s * (1 - EARLY):
                self._add_owners(tick, now)

    def before(self) -> Tick | None:
        """A tick some seconds back, from which on power is taken."""
        return self._older

    def picture(self) -> Picture:
        """All of it, oldest first; null where nothing is known."""
        with self._lock:
            return {
                "version": VERSION,
                "gpus": _picture(self._gpus, "uuid", GPU_COLUMNS, self._step_s),
                "owners": _picture(self._owners, "owner", OWNER_COLUMNS, self._owners_step_s),
            }

    def _forget(self) -> None:
        self._gpus.clear()
        self._owners.clear()
        self._gpu_time = self._owner_time = 0.0
        self._used, self._older, self._newer = {}, None, None

    def _add_owners(self, tick: Tick, now: float) -> None:
        """A container's energy has that of its exited processes in it; a process without one has its own."""
        memory: dict[str, int | None] = {}
        used: dict[str, int] = {}
        told = metered(tick)
        silent = {who(use.owner) for use in tick.containers if use.device.gpu_uuid not in told}
        silent |= {whose(use) for use in tick.processes if use.device.gpu_uuid not in told}
        for container in tick.containers:
            name = who(container.owner)
            memory[name] = _added(memory.get(name), container.memory_bytes, container.inferred_bytes)
            used[name] = used.get(name, 0) + sum(mj for _, mj in container.energy_mj)
        for process in tick.processes:
            if process.owner.container_id:
                continue
            name = whose(process)
            held = 0 if process.active is False else process.resident.memory_bytes
            memory[name] = _added(memory.get(name), held)
            used[name] = used.get(name, 0) + sum(mj for _, mj in process.energy_mj)
        seconds = now - self._owner_time
        rows = {}
        for name, held in memory.items():
            rise = used[name] - self._used[name] if name in self._used else -1
            rows[name] = (held, None if rise < 0 or name in silent else round(rise / 1000 / seconds, 3))
        self._owners.add(now, rows)
        self._owner_time, self._used = now, used


def _added(*numbers: int | None) -> int | None:
    """The sum of what is known; None where nothing is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _points(step_s: float) -> int:
    return max(2, round(LENGTH_S / step_s))


def _picture(ring: Ring, key: str, columns: Iterable[str], step_s: float) -> Picture:
    return {
        "step_seconds": step_s,
        "times": [round(time, 3) for time in ring.times()],
        "rows": [
            {key: name, **{c: _shown(c, values) for c, values in zip(columns, row, strict=True)}}
            for name, row in ring.rows().items()
        ],
    }


def _shown(column: str, values: list[float | None]) -> list[float | int | None]:
    """Numbers are kept with 24 bits: more digits would say what is not known."""
    digits = None if column in WHOLE else 3
    return [None if value is None else round(value, digits) for value in values]
