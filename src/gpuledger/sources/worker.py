"""A thread that runs one job at a time, for calls that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Runs a job passed to `start`; it is `busy` until `result` has returned the outcome."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
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

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome: tuple[T | None, Exception | None] = (job(), None)
            except Exception as error:  # noqa: BLE001 - `result` raises it
                outcome = (None, error)
            self._outcomes.put(outcome)
            del job, outcome
