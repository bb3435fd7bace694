"""Background polling: one thread, one backoff.

Name providers, the dcgm-exporter, `fleet` and `top` poll with it. No scrape and no tick waits for a poller.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 1.0, 30.0
SLICE_S = 1.0
"""Delay after which nudges and changes of the interval take effect, at most."""
HANGS_S = 60.0
"""A longer call counts as hung. Servers have timeouts of seconds; file systems have none."""

Wait = Callable[[float, threading.Event], bool]
"""Wait for news, for the event or for a number of seconds; whether there is news."""


class Backoff:
    """Delays between retries: 1 s, doubled with each failure up to 30 s."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        first_s: float = FIRST_S,
        longest_s: float = LONGEST_S,
        jitter: bool = False,
    ) -> None:
        self._monotonic = monotonic
        self._first_s, self._longest_s, self._jitter = first_s, longest_s, jitter
        self._delay_s = first_s
        self._next = monotonic()

    def due(self) -> bool:
        """Whether to try now."""
        return self.left_s() <= 0

    def left_s(self) -> float:
        """Seconds until the next try."""
        return self._next - self._monotonic()

    def failed(self) -> None:
        """Double the delay before the next try."""
        # With jitter, so that the nodes of a cluster do not all retry at the same time.
        factor = random.uniform(0.5, 1.0) if self._jitter else 1.0  # noqa: S311 - no secret
        self._next = self._monotonic() + self._delay_s * factor
        self._delay_s = min(self._delay_s * 2, self._longest_s)

    def reset(self) -> None:
        """Reset the delay after a success; the next try is due at once."""
        self._delay_s = self._first_s
        self._next = self._monotonic()


class Poller:
    """Calls `poll` in a thread: every `interval_s()` seconds, and with backoff while it fails."""

    def __init__(
        self,
        name: str,
        poll: Callable[[], bool],
        interval_s: Callable[[], float],
        *,
        wait: Wait | None = None,
        apart_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`poll` returns whether it succeeded. Calls are at least `apart_s` apart, also after news and nudges."""
        self._name = name
        self._poll, self._interval_s, self._wait = poll, interval_s, wait or _wait
        self._apart_s = apart_s
        self._monotonic = monotonic
        self._backoff = Backoff(monotonic, jitter=True)
        self._state_log = StateLog(log)
        self._wake = threading.Event()
        self._stopped = False
        self._began_at: float | None = None
        self._ended_at = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float = 0.0) -> None:
        """End the thread after the current call; wait for it at most this long."""
        self._stopped = True
        self._wake.set()
        if wait_s and self._thread.is_alive():
            self._thread.join(wait_s)

    def nudge(self) -> None:
        """Poll soon, but not during a backoff. Does not wait."""
        self._wake.set()

    def retry(self) -> None:
        """Poll now, also during a backoff."""
        self._backoff.reset()
        self._wake.set()

    @property
    def hangs(self) -> bool:
        """Whether a call has not returned for HANGS_S."""
        began_at = self._began_at
        return began_at is not None and self._monotonic() - began_at >= HANGS_S

    def once(self) -> bool:
        """Poll once, in the calling thread; whether it succeeded."""
        reason, ok = "", False
        self._began_at = self._monotonic()
        try:
            ok = self._poll()
        except Exception as error:  # a bug must not end the thread
            reason = f"{type(error).__name__}: {error}"
            log.debug("%s", self._name, exc_info=True)
        finally:
            self._began_at = None
        self._state_log.change(
            "poll", reason, f"polling {self._name} failed: {reason}", f"polling {self._name} works again"
        )
        if ok:
            self._backoff.reset()
        else:
            self._backoff.failed()
        return ok

    def _run(self) -> None:
        while not self._stopped:
            ok = self.once()
            self._ended_at = self._monotonic()
            if ok:
                self._wait_for_news()
            else:
                self._sleep(self._backoff.left_s)
            self._sleep(lambda: self._ended_at + self._apart_s - self._monotonic())
            self._wake.clear()

    def _wait_for_news(self) -> None:
        while not (self._stopped or self._wake.is_set()):
            left_s = self._ended_at + self._interval_s() - self._monotonic()
            if left_s <= 0 or self._is_news(min(left_s, SLICE_S)):
                return

    def _is_news(self, timeout_s: float) -> bool:
        """Wait for news; if that fails, poll at the interval only."""
        reason = ""
        try:
            return self._wait(timeout_s, self._wake)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.debug("%s", self._name, exc_info=True)
            self._wake.wait(timeout_s)
            return False
        finally:
            every = f"polling every {self._interval_s():g} s"
            self._state_log.change("news", reason, f"{self._name}: event stream failed: {reason}; {every}",
                              f"{self._name}: event stream works again")  # fmt: skip

    def _sleep(self, left_s: Callable[[], float]) -> None:
        """Wait until `left_s` returns 0. A nudge does not shorten the wait."""
        while not self._stopped and (seconds := left_s()) > 0:
            self._wake.wait(seconds)
            self._wake.clear()


def _wait(timeout_s: float, wake: threading.Event) -> bool:
    wake.wait(timeout_s)
    return False
