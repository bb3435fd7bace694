"""A thread that runs one job at a time, for calls that may hang."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


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
