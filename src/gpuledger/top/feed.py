"""Sources of snapshots, read in the background: ticks of this host, or another exporter."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gpuledger.backoff import Backoff
from gpuledger.errors import SnapshotError
from gpuledger.model import Tick
from gpuledger.view.codec import clean
from gpuledger.view.schema import Snapshot
from gpuledger.view.snapshot import snapshot

log = logging.getLogger(__name__)

WINDOW_NS = 3 * 10**9
"""Power is the mean over this time: the energy of a shared GPU is booked about once a second."""
PATIENCE_S = 2.0
STALE_S = 5.0
"""An unchanged snapshot is reported as stale after this time, and after three intervals of its exporter."""


class LostError(Exception):
    """No snapshot is available; the message is one line."""


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

    def __init__(self, once: Callable[[], Tick], node: str) -> None:
        self._once, self._node = once, node
        self._ticks: deque[Tick] = deque()

    def __call__(self) -> Snapshot:
        """Make a tick. Power is the mean since the oldest tick within the window."""
        tick = self._once()
        if self._ticks and tick.time_ns < self._ticks[-1].time_ns:  # the clock was set back
            self._ticks.clear()
        while len(self._ticks) > 1 and tick.time_ns - self._ticks[0].time_ns > WINDOW_NS:
            self._ticks.popleft()
        self._ticks.append(tick)
        return snapshot(tick, self._ticks[0] if len(self._ticks) > 1 else None, node=self._node)


class Feed:
    """Polls a source in the background, with backoff while it is unavailable."""

    def __init__(self, source: Source, interval_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source, self.interval_s = source, interval_s
        self._monotonic, self._backoff = monotonic, Backoff(monotonic)
        self._changed_s = 0.0
        self._wake = threading.Event()
        self._stopped = False
        self._changed: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="top", daemon=True)
        self.state = State()

    @property
    def name(self) -> str:
        """The URL of the exporter; empty for this host."""
        return self._source.name

    def start(self, changed: Callable[[], None]) -> None:
        """Start polling; `changed` is called from the background thread after each poll."""
        self._changed = changed
        self._thread.start()

    def retry(self) -> None:
        """Poll now."""
        self._backoff.reset()
        self._wake.set()

    def stop(self) -> None:
        """Stop polling; waits briefly for a poll in progress."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)

    def step(self) -> None:
        """Poll once, if the backoff allows it."""
        if not self._backoff.due():
            return
        try:
            self._take(self._source())
            self._backoff.reset()
        except LostError as error:
            self._lose(str(error))
        except SnapshotError as error:
            self._lose(f"{self.name}: {error}")
        except Exception as error:  # a bug must not end the view
            log.debug("top", exc_info=True)
            self._lose(f"{type(error).__name__}: {error}")

    def _take(self, taken: Snapshot) -> None:
        """An exporter whose loop hangs still responds, always with the same snapshot."""
        before, now_s = self.state.snapshot, self._monotonic()
        if before is None or taken.time != before.time:
            self._changed_s = now_s
        is_stale = now_s - self._changed_s > max(STALE_S, 3 * taken.interval_seconds)
        self.state = State(taken, f"{self.name or 'this host'} has no new snapshots" if is_stale else "")

    def _lose(self, reason: str) -> None:
        self._backoff.failed()
        self.state = replace(self.state, lost=clean(reason))

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self.step()
            self._changed()
            self._wake.wait(self.interval_s)
