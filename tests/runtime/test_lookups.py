"""Calls that block: what they cost, and what they never delay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from gpuledger.runtime import lookups
from gpuledger.runtime.lookups import MOST_THREADS, VALID_S, Lookups


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


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
    monkeypatch.setattr(lookups, "MOST_RESULTS", 10)
    found: Lookups[int, int] = Lookups("test")
    for number in range(30):
        assert found.get(number, lambda number=number: number, timeout_s=20) == number  # type: ignore[misc]

    assert list(found._results) == list(range(20, 30))
