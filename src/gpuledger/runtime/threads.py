"""Calls that may block for ever, made in threads of their own: one job at a time, or look-ups by key."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

MOST_THREADS = 8
VALID_S = 60.0
"""Age after which a result is looked up again; it is used until the new one is there."""
IDLE_S = 10.0
MOST_RESULTS = 4096

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Worker(Generic[T]):
    """Runs a job passed to `start`; it is `busy` until `result` has returned the outcome.

    `idle` runs in the same thread after each job, and again after the seconds that it returns unless a job comes first;
    None means only after the next job. `end` runs last in the thread.
    """

    def __init__(
        self, name: str, *, idle: Callable[[], float | None] | None = None, end: Callable[[], None] | None = None
    ) -> None:
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
        self._idle = idle
        self._end = end
        self.busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], T]) -> None:
        """Start a job; the worker must not be busy."""
        self.busy = True
        self._jobs.put(job)

    def result(self, timeout_s: float) -> T | None:
        """The result of the job, or its exception; None if it is not done in time."""
        try:
            value, error = self._outcomes.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None
        self.busy = False
        if error is not None:
            try:
                raise error
            finally:
                del error  # breaks the reference cycle between its traceback and this frame
        return value

    def close(self) -> None:
        """End the thread after its current job; does not wait."""
        self._jobs.put(None)

    def ended(self, timeout_s: float) -> bool:
        """Whether the thread ends in time; `close` comes first."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            with suppress(Empty):
                job = self._jobs.get(timeout=wait_s)
                if job is None:
                    break
                try:
                    outcome: tuple[T | None, Exception | None] = (job(), None)
                except Exception as error:  # noqa: BLE001 - `result` raises it
                    outcome = (None, error)
                self._outcomes.put(outcome)
                del job, outcome
            wait_s = self._guarded(self._idle)
        self._guarded(self._end)

    def _guarded(self, call: Callable[[], R] | None) -> R | None:
        """The result of the call. No caller waits for it, so an exception is logged: it must not end the thread."""
        try:
            return call() if call is not None else None
        except Exception:
            log.exception("thread %s: call between jobs failed", self._thread.name)
            return None


class Lookups(Generic[K, V]):
    """Results of calls by key. A blocked call costs one thread and delays only its own key.

    The name of a user may come from a directory server that does not answer. A read of /proc/PID/maps waits for a lock
    that the process can hold. A tick uses the results so far and does not wait.
    """

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
