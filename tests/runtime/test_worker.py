"""The thread that makes calls which may hang: jobs, the work between them, and its end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from gpuledger.runtime.worker import Worker

SOON_S = 5.0


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
