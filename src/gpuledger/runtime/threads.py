"""Calls that may block for ever, made in threads of their own: one job at a time, or look-ups by key."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

TOGETHER_S = 0.005
"""Calls between jobs that are due within this time are made in one wake-up."""
MOST_THREADS = 8
VALID_S = 60.0
"""Age after which a result is looked up again; it is used until the new one is there."""
IDLE_S = 10.0
MOST_RESULTS = 4096

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lane:
    """A thread that runs the jobs of its workers, one after the other. Only one other thread calls its methods."""

    def __init__(self, name: str) -> None:
        self.workers: list[Worker[Any]] = []
        self._tasks: SimpleQueue[tuple[Worker[Any], Callable[[], None]] | None] = SimpleQueue()
        self._current: Worker[Any] | None = None
        """The worker whose call is in progress."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, worker: Worker[Any], call: Callable[[], None]) -> None:
        """Add a call for a worker."""
        self._tasks.put((worker, call))

    def end(self) -> None:
        """End the thread after all calls that were added."""
        self._tasks.put(None)

    def scatter(self) -> None:
        """Give each worker a thread of its own. The worker whose call is in progress keeps this one."""
        current, waiting = self._current, []
        with suppress(Empty):
            while True:
                waiting.append(self._tasks.get_nowait())
        for worker in [worker for worker in self.workers if worker is not current]:
            worker.move(Lane(worker.name))
        for task in waiting:
            if task is not None:
                task[0].lane.put(*task)

    def _run(self) -> None:
        wait_s: float | None = None
        while True:
            with suppress(Empty):
                task = self._tasks.get(timeout=wait_s)
                if task is None:
                    return
                self._current, call = task
                call()
                self._current = None
                del task, call
                if not self._tasks.empty():
                    continue
            waits_s = []
            for worker in tuple(self.workers):
                self._current = worker
                if (until_s := worker.idle()) is not None:
                    waits_s.append(until_s)
            self._current = None
            # One wake-up for all that are due at about the same time.
            wait_s = max([s for s in waits_s if s <= min(waits_s) + TOGETHER_S]) if waits_s else None


class Worker(Generic[T]):
    """Runs a job passed to `start`; it is `busy` until `result` has returned the outcome.

    It has a thread of its own until it moves to that of other workers. `idle` runs in the thread after each job, and
    again after the seconds that it returns unless a job comes first; None means only after the next job. `end` runs
    last.
    """

    def __init__(
        self, name: str, *, idle: Callable[[], float | None] | None = None, end: Callable[[], None] | None = None
    ) -> None:
        self.name = name
        self._outcomes: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
        self._outcome: tuple[T | None, Exception | None] | None = None
        self._idle = idle
        self._end = end
        self._ended = threading.Event()
        self._one_call = threading.Lock()
        """After a move, the old thread may still be in a call."""
        self.busy = False
        self.lane = Lane(name)
        self.lane.workers.append(self)

    def move(self, lane: Lane) -> None:
        """Run jobs in another thread from now on; ends the thread that no worker is left in."""
        old, self.lane = self.lane, lane
        old.workers.remove(self)
        lane.workers.append(self)
        lane.put(self, lambda: None)  # so that `idle` is called there
        if not old.workers:
            old.end()

    def start(self, job: Callable[[], T]) -> None:
        """Start a job; the worker must not be busy."""
        self.busy = True
        self.lane.put(self, lambda: self._do(job))

    def wait(self, timeout_s: float) -> bool:
        """Whether the job is done in time."""
        with suppress(Empty):
            self._outcome = self._outcome or self._outcomes.get(timeout=max(0.0, timeout_s))
        return self._outcome is not None

    def result(self, timeout_s: float) -> T | None:
        """The result of the job, or its exception; None if it is not done in time."""
        if not self.wait(timeout_s) or self._outcome is None:
            return None
        (value, error), self._outcome = self._outcome, None
        self.busy = False
        if error is not None:
            try:
                raise error
            finally:
                del error  # breaks the reference cycle between its traceback and this frame
        return value

    def close(self) -> None:
        """End the worker after its current job, and its thread if it is the last one there; does not wait."""
        if self not in self.lane.workers:
            return
        self.lane.put(self, self._finish)
        self.lane.workers.remove(self)
        if not self.lane.workers:
            self.lane.end()

    def ended(self, timeout_s: float) -> bool:
        """Whether the worker ends in time; `close` comes first."""
        return self._ended.wait(timeout_s)

    def idle(self) -> float | None:
        """The seconds until the next call between jobs."""
        with self._one_call:
            return self._guarded(self._idle)

    def _do(self, job: Callable[[], T]) -> None:
        with self._one_call:
            try:
                outcome: tuple[T | None, Exception | None] = (job(), None)
            except Exception as error:  # noqa: BLE001 - `result` raises it
                outcome = (None, error)
        self._outcomes.put(outcome)
        del outcome  # as in `result`

    def _finish(self) -> None:
        with self._one_call:
            self._guarded(self._end)
        self._ended.set()

    def _guarded(self, call: Callable[[], R] | None) -> R | None:
        """The result of the call. No caller waits for it, so an exception is logged: it must not end the thread."""
        try:
            return call() if call is not None else None
        except Exception:
            log.exception("thread %s: call between jobs failed", self.name)
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
