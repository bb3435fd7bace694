"""Calls that may block for ever: jobs of a worker, and look-ups by key."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from gpuledger.runtime import threads
from gpuledger.runtime.threads import MOST_THREADS, VALID_S, Lookups, Worker
from tests.runtime.clock import Clock

SOON_S = 5.0


class Blocking:
    """Calls that wait until the test ends; counts them."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.began: list[int] = []

    def call(self, number: int) -> Callable[[], int]:
        """A call that blocks."""

        def wait() -> int:
            self.began.append(number)
            self.end.wait(60)
            return number

        return wait


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    """Blocking calls."""
    blocking = Blocking()
    yield blocking
    blocking.end.set()


def test_result_comes_later() -> None:
    """The first question has no answer; once the call has returned, the answer is there and is counted as a change."""
    found: Lookups[int, str] = Lookups("test")

    assert found.get(1, lambda: "one", timeout_s=20) == "one"
    assert (found.get(1, lambda: "other"), found.changes) == ("one", 1)


def test_failure_is_no_result() -> None:
    """A bug in the call ends no thread."""
    found: Lookups[int, float] = Lookups("test")

    assert found.get(1, lambda: 1 / 0, timeout_s=20) is None
    assert found.get(2, lambda: 2.0, timeout_s=20) == 2.0


def test_blocked_call_delays_only_its_key(blocking: Blocking) -> None:
    """It is made once, and other keys have their results."""
    found: Lookups[int, int] = Lookups("test")
    for _ in range(3):
        assert found.get(1, blocking.call(1), timeout_s=0.05) is None

    assert found.get(9, lambda: 9, timeout_s=20) == 9
    assert blocking.began == [1]


def test_threads_are_bounded(blocking: Blocking) -> None:
    """However many calls block; the results come when a thread is free."""
    before = threading.active_count()
    found: Lookups[int, int] = Lookups("test")
    for number in range(5 * MOST_THREADS):
        found.get(number, blocking.call(number))
    assert threading.active_count() <= before + MOST_THREADS

    blocking.end.set()

    last = 5 * MOST_THREADS - 1
    assert found.get(last, blocking.call(last), timeout_s=20) == last


def test_old_result_is_used_until_there_is_a_new_one(blocking: Blocking) -> None:
    """A result is looked up again after a minute."""
    clock = Clock()
    found: Lookups[int, int] = Lookups("test", monotonic=clock)
    found.get(1, lambda: 5, timeout_s=20)
    clock.now += VALID_S + 1

    assert found.get(1, blocking.call(6)) == 5


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest results are dropped."""
    monkeypatch.setattr(threads, "MOST_RESULTS", 10)
    found: Lookups[int, int] = Lookups("test")
    for number in range(30):
        assert found.get(number, lambda number=number: number, timeout_s=20) == number  # type: ignore[misc]

    assert list(found._results) == list(range(20, 30))


def test_idle_runs_between_jobs_in_their_thread() -> None:
    """After a job, again after the seconds it returns, and not once it returns None."""
    waits: Iterator[float | None] = iter((0.001, 0.001, None))
    runs: SimpleQueue[str] = SimpleQueue()

    def idle() -> float | None:
        runs.put(threading.current_thread().name)
        return next(waits)

    worker: Worker[int] = Worker("gpu 7", idle=idle)
    worker.start(lambda: 1)
    assert worker.result(SOON_S) == 1
    assert [runs.get(timeout=SOON_S) for _ in range(3)] == ["gpu 7"] * 3

    worker.close()

    assert worker.ended(SOON_S)
    assert runs.empty()


def test_idle_does_not_run_before_the_first_job() -> None:
    """There is nothing to do between jobs until there was a job."""
    runs: list[int] = []
    worker: Worker[int] = Worker("w", idle=lambda: runs.append(1))

    worker.close()

    assert worker.ended(SOON_S)
    assert runs == []


def test_job_does_not_wait_for_idle() -> None:
    """A job that arrives during a long wait runs at once, and so does the end."""
    worker: Worker[int] = Worker("w", idle=lambda: 3600.0)

    for number in (1, 2):
        worker.start(lambda number=number: number)  # type: ignore[misc]  # the default binds the loop variable
        assert worker.result(SOON_S) == number
    worker.close()

    assert worker.ended(SOON_S)


def test_exception_between_jobs_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; jobs run as before."""
    caplog.set_level(logging.ERROR)

    def idle() -> float | None:
        raise ValueError("a bug")

    worker: Worker[int] = Worker("w", idle=idle)
    for _ in range(2):
        worker.start(lambda: 1)
        assert worker.result(SOON_S) == 1
    worker.close()

    assert worker.ended(SOON_S)
    assert [record.getMessage() for record in caplog.records] == ["thread w: call between jobs failed"] * 2


def test_end_runs_last_in_the_thread() -> None:
    """After the current job, also one that failed."""
    steps: list[str] = []

    def job() -> int:
        steps.append("job")
        raise ValueError("the job's own")

    worker: Worker[int] = Worker("w", end=lambda: steps.append(threading.current_thread().name))
    worker.start(job)
    worker.close()

    assert worker.ended(SOON_S)
    assert steps == ["job", "w"]


def test_thread_in_a_call_has_not_ended() -> None:
    """Also if the call is made between jobs, when the worker is not busy."""
    entered, leave = threading.Event(), threading.Event()

    def idle() -> float | None:
        entered.set()
        leave.wait(SOON_S)
        return None

    worker: Worker[int] = Worker("w", idle=idle)
    worker.start(lambda: 1)
    worker.result(SOON_S)
    assert entered.wait(SOON_S)
    worker.close()

    assert (worker.busy, worker.ended(0.0)) == (False, False)
    leave.set()
    assert worker.ended(SOON_S)
