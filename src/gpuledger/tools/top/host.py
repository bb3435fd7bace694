"""CPU time and host memory of the processes of this host. An exporter does not report them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from gpuledger.model import HostUse, Tick
from gpuledger.web.snapshot.schema import ProcessRow, Snapshot

MIN_INTERVAL_NS = 50_000_000
"""The kernel counts CPU time in steps of 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProcess(ProcessRow):
    """A process of this host."""

    cpu_ratio: float | None = None
    """CPU time over time since the previous snapshot; 1 is one core."""
    host_memory_bytes: int | None = None


class Host:
    """Adds CPU time and host memory to snapshots. `read` returns the use of one pid."""

    def __init__(
        self, read: Callable[[int], HostUse | None], *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._read, self._monotonic_ns = read, monotonic_ns
        self._before: dict[tuple[int, int], tuple[int, int]] = {}
        """By pid and start time: when the CPU time was read, and the CPU time."""

    def add(self, snapshot: Snapshot, tick: Tick) -> Snapshot:
        """The snapshot of `tick` with the host's values; a process that cannot be read has none."""
        now, read = self._monotonic_ns(), {}
        for pid in {process.pid for process in snapshot.processes if process.active is not False}:
            facts, use = tick.facts.get(pid), self._read(pid)
            if facts is not None and use is not None and use.start_ticks == facts.start_ticks:
                read[pid] = use
        values = {pid: (self._cpu_ratio(pid, use, now), use.memory_bytes) for pid, use in read.items()}
        self._before = {(pid, use.start_ticks): (now, use.cpu_ns) for pid, use in read.items()}
        rows = (_local(row, *values.get(row.pid, (None, None))) for row in snapshot.processes)
        return replace(snapshot, processes=tuple(rows))

    def _cpu_ratio(self, pid: int, use: HostUse, now: int) -> float | None:
        then, cpu_ns = self._before.get((pid, use.start_ticks), (now, 0))
        return max(0, use.cpu_ns - cpu_ns) / (now - then) if now - then >= MIN_INTERVAL_NS else None


def _local(row: ProcessRow, cpu_ratio: float | None, memory_bytes: int | None) -> LocalProcess:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return LocalProcess(**values, cpu_ratio=cpu_ratio, host_memory_bytes=memory_bytes)
