"""Sources of snapshots, read in the background: ticks of this host, with CPU time and memory, or another exporter."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Protocol

from gpuledger.errors import LostError, SnapshotError
from gpuledger.model import HostUse, Tick
from gpuledger.model.plaintext import escaped
from gpuledger.runtime.poller import Poller
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.colours import Colours
from gpuledger.web.snapshot.schema import ProcessRow, Snapshot

log = logging.getLogger(__name__)

WINDOW_NS = 3 * 10**9
"""Power is the mean over this time: the energy of a shared GPU is booked about once a second."""
STOP_TIMEOUT_S = 2.0
MIN_CPU_INTERVAL_NS = 50_000_000
"""The kernel counts CPU time in steps of 10 ms."""
STALE_S = 5.0
"""An unchanged snapshot is reported as stale after this time, and after three intervals of its exporter."""


class Source(Protocol):
    """Returns a snapshot on each call, or raises LostError or SnapshotError."""

    name: str
    """The URL of the exporter; empty for this host."""

    def __call__(self) -> Snapshot:
        """The current snapshot."""


@dataclass(frozen=True, slots=True)
class State:
    """The last snapshot, and why there is no newer one."""

    snapshot: Snapshot | None = None
    lost: str = ""
    """Why the source is unavailable; empty if it is available."""


class Ticks:
    """Snapshots of this host's own ticks."""

    name = ""

    def __init__(self, once: Callable[[], Tick], node: str, host: Host | None = None) -> None:
        self._once, self._node, self._host = once, node, host
        self._ticks: deque[Tick] = deque()
        self._colours = Colours()

    def __call__(self) -> Snapshot:
        """Make a tick. Power is the mean since the oldest tick within the window."""
        tick = self._once()
        if self._ticks and tick.time_ns < self._ticks[-1].time_ns:  # the clock was set back
            self._ticks.clear()
        while len(self._ticks) > 1 and tick.time_ns - self._ticks[0].time_ns > WINDOW_NS:
            self._ticks.popleft()
        self._ticks.append(tick)
        self._colours.add(tick)
        before = self._ticks[0] if len(self._ticks) > 1 else None
        newest = snapshot(tick, before, node=self._node, colours=self._colours.now)
        return self._host.add(newest, tick) if self._host is not None else newest


class Feed:
    """Polls a source in the background, with backoff while it fails."""

    def __init__(self, source: Source, interval_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source, self.interval_s = source, interval_s
        self._monotonic = monotonic
        self._changed_s = 0.0
        self._changed: Callable[[], None] = lambda: None
        self._poller = Poller("top", self._poll, lambda: self.interval_s, monotonic=monotonic)
        self.state = State()

    @property
    def name(self) -> str:
        """The URL of the exporter; empty for this host."""
        return self._source.name

    def start(self, changed: Callable[[], None]) -> None:
        """Start polling; `changed` is called from the background thread after each poll."""
        self._changed = changed
        self._poller.start()

    def retry(self) -> None:
        """Poll now, also during a backoff."""
        self._poller.retry()

    def stop(self) -> None:
        """Stop polling; waits up to two seconds for a poll in progress."""
        self._poller.stop(STOP_TIMEOUT_S)

    def step(self) -> bool:
        """Poll once; return whether the source responded."""
        try:
            self._store(self._source())
        except LostError as error:
            self._report(str(error))
        except SnapshotError as error:
            self._report(f"{self.name}: {error}")
        except Exception as error:  # a bug must not end the view
            log.debug("top", exc_info=True)
            self._report(f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _poll(self) -> bool:
        success = self.step()
        self._changed()
        return success

    def _store(self, newest: Snapshot) -> None:
        """An exporter whose loop hangs still responds, always with the same snapshot."""
        before, now_s = self.state.snapshot, self._monotonic()
        if before is None or newest.time != before.time:
            self._changed_s = now_s
        is_stale = now_s - self._changed_s > max(STALE_S, 3 * newest.interval_seconds)
        self.state = State(newest, f"{self.name or 'this host'} has no new snapshots" if is_stale else "")

    def _report(self, reason: str) -> None:
        self.state = replace(self.state, lost=escaped(reason, in_columns=True))


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
        return max(0, use.cpu_ns - cpu_ns) / (now - then) if now - then >= MIN_CPU_INTERVAL_NS else None


def _local(row: ProcessRow, cpu_ratio: float | None, memory_bytes: int | None) -> LocalProcess:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    return LocalProcess(**values, cpu_ratio=cpu_ratio, host_memory_bytes=memory_bytes)
