"""Where pictures come from: this host's own ticks or an exporter's answers, taken in the background."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from gpuledger.errors import LostError
from gpuledger.model import Tick
from gpuledger.net.poller import Poller
from gpuledger.top.line import clean
from gpuledger.top.seen import PictureError, Seen, read
from gpuledger.view.snapshot import Picture, snapshot

log = logging.getLogger(__name__)

WINDOW_NS = 3 * 10**9
"""Power is a mean over this time: the energy of a shared GPU is booked about once a second, in steps."""
PATIENCE_S = 2.0
STALE_S = 5.0
"""From this age on, and three of its intervals, a reading that stays the same is told to be old."""


class Source(Protocol):
    """Gives a picture each time it is called, or raises LostError."""

    name: str
    """Where it looks."""

    def __call__(self) -> Any:
        """The picture as it is now."""


@dataclass(frozen=True, slots=True)
class State:
    """What is known now."""

    seen: Seen | None = None
    lost: str = ""
    """Why there is nothing newer; empty when all is well."""


class Ticks:
    """Pictures of this host's own ticks."""

    name = ""

    def __init__(self, once: Callable[[], Tick], node: str) -> None:
        self._once, self._node = once, node
        self._ticks: deque[Tick] = deque()

    def __call__(self) -> Picture:
        """Make a tick; power is taken from the oldest one within the window on."""
        tick = self._once()
        if self._ticks and tick.time_ns < self._ticks[-1].time_ns:  # the clock was set back: nothing before compares
            self._ticks.clear()
        while len(self._ticks) > 1 and tick.time_ns - self._ticks[0].time_ns > WINDOW_NS:
            self._ticks.popleft()
        self._ticks.append(tick)
        return snapshot(tick, self._ticks[0] if len(self._ticks) > 1 else None, node=self._node)


class Feed:
    """Polls a source in the background, with backoff while it does not answer."""

    def __init__(self, source: Source, interval_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._source, self.interval_s = source, interval_s
        self._monotonic = monotonic
        self._new_s = 0.0
        self._changed: Callable[[], None] = lambda: None
        self._poller = Poller("top", self._poll, lambda: self.interval_s, monotonic=monotonic)
        self.state = State()

    @property
    def name(self) -> str:
        """The URL of the source; empty for this host."""
        return self._source.name

    def start(self, changed: Callable[[], None]) -> None:
        """Start polling; `changed` is called from the thread after each poll."""
        self._changed = changed
        self._poller.start()

    def retry(self) -> None:
        """Poll now, also during a backoff."""
        self._poller.retry()

    def stop(self) -> None:
        """Stop polling; waits a little for a poll that is under way."""
        self._poller.stop(PATIENCE_S)

    def step(self) -> bool:
        """Poll once; whether the source answered."""
        try:
            self._take(read(self._source()))
        except LostError as error:
            self._lose(str(error))
        except PictureError as error:
            self._lose(f"what {self.name or 'this host'} says {error}")
        except Exception as error:  # a bug costs the update, not the view
            log.debug("top", exc_info=True)
            self._lose(f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _poll(self) -> bool:
        answered = self.step()
        self._changed()
        return answered

    def _take(self, seen: Seen) -> None:
        """Keep a snapshot. An exporter whose loop hangs goes on to answer, always with the same one."""
        before, now_s = self.state.seen, self._monotonic()
        if before is None or seen.time != before.time:
            self._new_s = now_s
        is_old = now_s - self._new_s > max(STALE_S, 3 * (seen.interval_s or 0))
        self.state = State(seen, f"{self.name or 'this host'} has no new readings" if is_old else "")

    def _lose(self, reason: str) -> None:
        self.state = replace(self.state, lost=clean(reason))
