"""Sources of snapshots, read in the background: ticks of this host, or another exporter."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gpuledger.errors import LostError, SnapshotError
from gpuledger.model import Tick
from gpuledger.model.plaintext import escaped
from gpuledger.runtime.poller import Poller
from gpuledger.tools.top.host import Host
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.schema import Snapshot

log = logging.getLogger(__name__)

WINDOW_NS = 3 * 10**9
"""Power is the mean over this time: the energy of a shared GPU is booked about once a second."""
STOP_TIMEOUT_S = 2.0
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

    def __call__(self) -> Snapshot:
        """Make a tick. Power is the mean since the oldest tick within the window."""
        tick = self._once()
        if self._ticks and tick.time_ns < self._ticks[-1].time_ns:  # the clock was set back
            self._ticks.clear()
        while len(self._ticks) > 1 and tick.time_ns - self._ticks[0].time_ns > WINDOW_NS:
            self._ticks.popleft()
        self._ticks.append(tick)
        newest = snapshot(tick, self._ticks[0] if len(self._ticks) > 1 else None, node=self._node)
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
