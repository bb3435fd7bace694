"""A thread that runs one job at a time, for callers that cannot afford to wait for a driver call that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Worker(Generic[T]):
    """Give it a job with `start`, fetch the outcome with `result`; it stays `busy` until fetched."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
        self.busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], T]) -> None:
        """Begin the job; the worker must not be busy."""
        self.busy = True
        self._jobs.put(job)

    def result(self, timeout_s: float) -> T | None:
        """The outcome of the job, raising what it raised; None when it is not done in time."""
        try:
            if timeout_s > 0:
                value, error = self._outcomes.get(timeout=timeout_s)
            else:
                value, error = self._outcomes.get_nowait()
        except Empty:
            return None
        self.busy = False
        if error is not None:
            try:
                raise error
            finally:
                del (
                    error
                )  # or its traceback and this frame keep each other, and all they hold, until the collector runs
        return value

    def close(self) -> None:
        """End the thread once its job, if any, is done. Never waits."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                outcome: tuple[T | None, Exception | None] = (job(), None)
            except Exception as error:  # noqa: BLE001 - handed over to whoever asks for the result
                outcome = (None, error)
            self._outcomes.put(outcome)
            del job, outcome
