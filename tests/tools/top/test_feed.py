"""Where pictures come from."""

from __future__ import annotations

import random
import threading

import pytest

from gpuledger.books import Books
from gpuledger.errors import LostError
from gpuledger.tools.top.feed import Feed, State, Ticks
from gpuledger.web.snapshot.codec import decode
from tests.builders import World
from tests.runtime.clock import Clock as Waited
from tests.runtime.clock import Event
from tests.tools.top.sources import Told
from tests.web.snapshot.pictures import gpu, picture


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def test_what_was_last_known_stays_when_the_connection_is_lost() -> None:
    """With why, until there is an answer again."""
    clock = Clock()
    feed = Feed(Told(picture(gpu()), LostError("cannot reach n1"), picture(gpu(1))), 1.0, monotonic=clock)

    feed.step()
    assert feed.state == State(decode(picture(gpu())))
    feed.step()
    assert feed.state == State(decode(picture(gpu())), "cannot reach n1")
    clock.now += 1
    feed.step()
    assert feed.state == State(decode(picture(gpu(1))))


def test_a_source_that_does_not_answer_is_polled_with_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 1 s, 2 s, 4 s; at once after a retry."""
    monkeypatch.setattr(random, "uniform", lambda _, high: high)
    clock = Waited()
    source = Told(LostError("a"), LostError("b"), LostError("c"), LostError("d"), picture(gpu()))
    feed = Feed(source, 1.0, monotonic=clock)
    feed._poller._wake = Event(clock)
    polls: list[tuple[float, str]] = []
    feed._changed = lambda: polls.append((clock.now, feed.state.lost))
    clock.at(5, feed.retry)
    clock.at(7, feed.stop)

    feed._poller._run()

    assert polls == [(0, "a"), (1, "b"), (3, "c"), (5, "d"), (6, "")]


def test_other_answers_cost_the_news_alone() -> None:
    """No picture, another version, a bug."""
    clock = Clock()
    feed = Feed(Told({"a": 1}, {"version": 7}, RuntimeError("\x1b[2J")), 1.0, monotonic=clock)

    said = []
    for _ in range(3):
        feed.step()
        said.append(feed.state.lost)
        clock.now += 60
    assert said[0] == "http://n1:9400: not a gpuledger snapshot"
    assert said[1].startswith("http://n1:9400: snapshot version 7 is not supported")
    assert said[2] == "RuntimeError: \\x1b[2J"


def test_it_goes_on_in_the_background_until_it_is_stopped() -> None:
    """Each try is told."""
    come = threading.Semaphore(0)
    feed = Feed(Told(picture(gpu())), 0.001)

    feed.start(come.release)
    assert all(come.acquire(timeout=10) for _ in range(3))
    feed.stop()

    assert feed.state.snapshot is not None
    assert not feed._poller._thread.is_alive()


def test_power_is_a_mean_over_three_seconds() -> None:
    """Energy of a shared GPU is booked in steps; 100 J, then nothing for two seconds, is 33 W."""
    world, books = World(), Books()
    ticks = [world.tick(7), *(world.tick(7, mj=mj, work={7: 50}) for mj in (300_000, 100_000, 0, 0, 0))]
    source = Ticks(lambda: books.book(ticks.pop(0)), "n1")

    watts = [source().processes[0].watts for _ in range(6)]

    assert watts[0] is None
    assert watts[4] == pytest.approx(33.333)
    assert watts[5] == 0


def test_a_clock_that_is_set_back_costs_one_picture_its_power() -> None:
    """An hour back: ticks of before are not kept until time is there again, and power is told at the next tick."""
    world, books = World(), Books()
    ticks = [world.tick(7), world.tick(7, mj=100_000, work={7: 50}), world.tick(7, mj=100_000, work={7: 50})]
    ticks += [world.tick(7, mj=100_000, after_s=after_s, work={7: 50}) for after_s in (-3600, 1, 1)]
    source = Ticks(lambda: books.book(ticks.pop(0)), "n1")

    watts = [source().processes[0].watts for _ in range(6)]

    assert watts[3] is None
    assert watts[5] is not None
    assert len(source._ticks) == 3


def test_an_exporter_that_answers_with_old_readings_is_told() -> None:
    """Not at once: a reading is there for its interval, and a slow one takes longer."""
    clock = Clock()
    old, new = picture(gpu()), picture(gpu(), time=picture()["time"] + 60)
    source = Told(old)
    feed = Feed(source, 1.0, monotonic=clock)

    feed.step()
    clock.now += 4
    feed.step()
    assert feed.state == State(decode(old))
    clock.now += 2
    feed.step()
    assert feed.state == State(decode(old), "http://n1:9400 has no new snapshots")
    source.answers = [new]
    feed.step()
    assert feed.state == State(decode(new))
    source.answers = [{**new, "interval_seconds": 10.0}]
    clock.now += 20
    feed.step()
    assert feed.state.lost == ""
