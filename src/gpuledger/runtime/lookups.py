"""Calls that may block for ever, made in threads of their own.

The name of a user may come from a directory server that does not answer. A read of /proc/PID/maps waits for a lock that
the process can hold. A tick uses the results so far and does not wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

MOST_THREADS = 8
VALID_S = 60.0
"""Age after which a result is looked up again; it is used until the new one is there."""
IDLE_S = 10.0
MOST_RESULTS = 4096

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lookups(Generic[K, V]):
    """Results by key. A blocked call costs one thread and delays only its own key."""

    def __init__(self, name: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._results: dict[K, tuple[V | None, float]] = {}
        """Values and their times, oldest first."""
        self._queue: dict[K, Callable[[], V]] = {}
        self._running: set[K] = set()
        self._threads = self._idle = 0
        self.changes = 0
        """Number of results that differ from the result before."""

    def get(self, key: K, call: Callable[[], V], *, timeout_s: float = 0.0) -> V | None:
        """The last result for the key; None if there is none, or the call failed. Starts the call if it is due."""
        with self._changed:
            if self._is_due(key):
                self._queue[key] = call
                self._changed.notify_all()
                if not self._idle and self._threads < MOST_THREADS:
                    self._threads += 1
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
            if timeout_s > 0:
                self._changed.wait_for(lambda: key in self._results, timeout_s)
            return self._results.get(key, (None, 0.0))[0]

    def _is_due(self, key: K) -> bool:
        result = self._results.get(key)
        is_valid = result is not None and self._monotonic() - result[1] < VALID_S
        is_started = key in self._running or key in self._queue
        return not (is_valid or is_started or len(self._queue) >= MOST_RESULTS)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            key, call = job
            value = None
            try:
                value = call()
            except Exception:  # there is no result; nothing else depends on it
                log.debug("%s: %r", self._name, key, exc_info=True)
            self._finish(key, value)

    def _next(self) -> tuple[K, Callable[[], V]] | None:
        """Wait for a key; None if there is none for a while, which ends the thread."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue, IDLE_S)
            self._idle -= 1
            if not self._queue:
                self._threads -= 1
                return None
            key = next(iter(self._queue))
            self._running.add(key)
            return key, self._queue.pop(key)

    def _finish(self, key: K, value: V | None) -> None:
        with self._changed:
            self._running.discard(key)
            self.changes += self._results.pop(key, (None, 0.0))[0] != value
            while len(self._results) >= MOST_RESULTS:
                del self._results[next(iter(self._results))]
            self._results[key] = value, self._monotonic()
            self._changed.notify_all()
