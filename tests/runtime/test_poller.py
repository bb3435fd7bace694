"""Background polling: intervals, backoff, nudges, hangs and bugs, against a clock that moves only during waits."""

from __future__ import annotations

import logging
import random
import threading

import pytest

from gpuledger.runtime.poller import HANGS_S, Backoff, Poller
from tests.runtime.clock import Clock, Event


def test_the_wait_doubles_from_one_second_to_thirty() -> None:
    """Soon at first, then ever more rarely, but never more rarely than every 30 s."""
    now = [100.0]
    backoff = Backoff(lambda: now[0])
    waits = []
    for _ in range(8):
        assert backoff.due()
        backoff.failed()
        began = now[0]
        while not backoff.due():
            now[0] += 0.5
        waits.append(now[0] - began)

    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_success_begins_anew() -> None:
    """After it worked, the next failure waits one second again."""
    now = [0.0]
    backoff = Backoff(lambda: now[0])
    for _ in range(6):
        backoff.failed()

    backoff.reset()

    assert backoff.due()
    backoff.failed()
    assert not backoff.due()
    now[0] = 1.0
    assert backoff.due()


def test_jitter_is_inside_its_bounds_and_is_there() -> None:
    """Nodes that lost their server at one moment do not all come back at one moment."""
    delays = []
    for _ in range(200):
        backoff = Backoff(lambda: 0.0, first_s=8.0, jitter=True)
        backoff.failed()
        delays.append(backoff.left_s())

    assert all(4.0 <= delay_s <= 8.0 for delay_s in delays)
    assert len({round(delay_s, 3) for delay_s in delays}) > 50


class Life:
    """A poller on a clock. `ok` is the result of a poll, `error` is raised instead."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self.clock = Clock()
        self.ok, self.error = True, ""
        self.polled: list[float] = []
        self.poller = Poller("server", self._poll, lambda: interval_s, monotonic=self.clock)
        self.poller._wake = Event(self.clock)

    def _poll(self) -> bool:
        self.polled.append(self.clock.now)
        if self.error:
            raise RuntimeError(self.error)
        return self.ok

    def run(self, for_s: float) -> list[float]:
        """The times of the polls within so many seconds."""
        self.clock.at(self.clock.now + for_s, self.poller.stop)
        self.poller._run()
        return self.polled


@pytest.fixture(autouse=True)
def _no_jitter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "jitter" not in request.node.name:
        monkeypatch.setattr(random, "uniform", lambda _, high: high)


def test_interval() -> None:
    """Without failures."""
    assert Life().run(16) == [0, 5, 10, 15]


def test_backoff_while_it_fails() -> None:
    """1 s, 2 s, 4 s, and the interval after the first success."""
    life = Life()
    life.ok = False
    life.clock.at(6, lambda: setattr(life, "ok", True))

    assert life.run(20) == [0, 1, 3, 7, 12, 17]


def test_a_nudge_shortens_the_interval_and_no_backoff() -> None:
    """A server that is down is not polled more often because of a nudge."""
    life = Life()
    life.clock.at(2, life.poller.nudge)
    assert life.run(6) == [0, 2]

    down = Life()
    down.ok = False
    for tenth in range(1, 60):
        down.clock.at(tenth / 10, down.poller.nudge)
    assert down.run(6) == [0, 1, 3]


def test_retry_ends_a_backoff() -> None:
    """At once, and the next delay is 1 s again."""
    life = Life()
    life.ok = False
    life.clock.at(4, life.poller.retry)

    assert life.run(6) == [0, 1, 3, 4, 5]


def test_a_bug_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Logged once, polled again with backoff, and logged when it works again."""
    caplog.set_level(logging.INFO, "gpuledger")
    life = Life()
    life.error = "a bug"
    life.clock.at(6, lambda: setattr(life, "error", ""))

    assert life.run(10) == [0, 1, 3, 7]
    assert [record.getMessage() for record in caplog.records] == [
        "polling server failed: RuntimeError: a bug",
        "polling server works again",
    ]


def test_hangs() -> None:
    """A poll that does not return within a minute."""
    clock = [0.0]
    polling, returned = threading.Event(), threading.Event()

    def poll() -> bool:
        polling.set()
        return returned.wait(10)

    poller = Poller("server", poll, lambda: 1.0, monotonic=lambda: clock[0])
    thread = threading.Thread(target=poller.once)
    thread.start()
    assert polling.wait(10)
    assert not poller.hangs
    clock[0] = HANGS_S
    assert poller.hangs
    returned.set()
    thread.join(10)
    assert not poller.hangs


def test_stop_waits_for_a_poll() -> None:
    """For the given time, in real time."""
    poller = Poller("server", lambda: True, lambda: 60.0)
    poller.start()
    poller.stop(5)

    assert not poller._thread.is_alive()
