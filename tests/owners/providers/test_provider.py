"""Polled providers, against a clock that moves only during waits."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from gpuledger.errors import ProviderError
from gpuledger.model import Device, Driver, Facts, ProviderHealth, Reading, Resident, Tick
from gpuledger.model.problem import Problem
from gpuledger.owners.names import Container, Names
from gpuledger.owners.providers.provider import NAMES_VALID_S, NUDGE_APART_S, PolledProvider, Provider
from gpuledger.owners.resolver import NO_NAME, Resolver
from gpuledger.runtime import poller
from gpuledger.runtime.poller import FIRST_S, LONGEST_S, Backoff
from tests.runtime.clock import Clock, Event

C = "4be1" * 16
KNOWN = Names(containers={C: Container(C, "ollama", "ollama/ollama:latest")})
INTERVAL_S = 15.0
PROMPT_S = 5.0
"""Far less than the waits that the tests exclude; other tests may be running."""


class Told(Provider):
    """A provider that does as the test says."""

    name = "docker"

    def __init__(self, clock: Clock) -> None:
        self.interval_s = INTERVAL_S
        self.clock = clock
        self.asked: list[float] = []
        self.waited: list[float] = []
        self.answer: Callable[[], Names] = lambda: KNOWN
        self.trouble: Exception | None = None
        """What `wait` ends with."""
        self.closed = False
        self._news = False

    def tell(self) -> None:
        """There is news."""
        self._news = True

    def fetch(self) -> Names:
        """Noted, with the time."""
        self.asked.append(self.clock.now)
        self._news = False
        return self.answer()

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Until there is news."""
        self.waited.append(timeout_s)
        if self.trouble is not None:
            raise self.trouble
        self.clock.wait(timeout_s, lambda: self._news or stop.is_set())
        return self._news

    def close(self) -> None:
        """Noted."""
        self.closed = True


class Life:
    """A provider and its background in a made-up time."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.provider = Told(self.clock)
        self.background = PolledProvider(
            self.provider, monotonic=self.clock, now_ns=lambda: 1_000_000 + int(self.clock.now * 1000)
        )
        self.background._wake = Event(self.clock)

    def run(self, for_s: float) -> list[float]:
        """Let time pass; the times of polls."""
        self.clock.at(self.clock.now + for_s, self.background.stop)
        self.background._run()
        return self.provider.asked

    def nudge_every(self, step_s: float, until_s: float) -> None:
        """As a resolver does for an id without a name, tick by tick."""
        for i in range(1, int(until_s / step_s) + 1):
            self.clock.at(i * step_s, self.background.nudge)


@pytest.fixture
def life() -> Life:
    """At the beginning."""
    return Life()


def down(reason: str = "cannot open /d.sock: no such file") -> Callable[[], Names]:
    """The answer of a provider that is down."""

    def fail() -> Names:
        raise ProviderError(reason)

    return fail


def gaps(moments: list[float]) -> list[float]:
    """From each to the next."""
    return [later - earlier for earlier, later in pairwise(moments)]


def test_without_news_it_is_asked_every_interval(life: Life) -> None:
    """From the start on, and in slices of a second at most, so that a nudge is noticed by any provider."""
    assert life.run(65) == [0, 15, 30, 45, 60]
    assert max(life.provider.waited) <= NUDGE_APART_S


def test_interval_may_change_while_waiting(life: Life) -> None:
    """A provider whose stream of events broke wants to be polled sooner; that holds for the wait that has begun."""
    life.provider.interval_s = 60.0
    life.clock.at(20.5, lambda: setattr(life.provider, "interval_s", 15.0))

    assert life.run(40) == [0, 21, 36]


def test_snapshots_are_swapped_whole(life: Life) -> None:
    """Before the first answer there are no names; then the object that the provider returned, also during a poll."""
    newer = Names()
    seen: list[Names] = []

    def change() -> Names:
        seen.append(life.background.names)
        return newer

    before = life.background.names
    life.background.once()
    life.provider.answer = change
    life.background.once()

    assert before == Names()
    assert seen == [KNOWN]
    assert seen[0] is KNOWN
    assert life.background.names is newer


def test_failure_keeps_the_names(life: Life) -> None:
    """The last names stay the same object, so that nothing is resolved again."""
    life.background.once()
    life.provider.answer = down()
    life.background.once()

    assert life.background.names is KNOWN


@pytest.mark.parametrize("luck", [0.0, 1.0])
def test_backoff_doubles_up_to_its_end(life: Life, luck: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """1, 2, 4, ... 30 s, or half of that with other luck, but never sooner than a nudge could; then it stays there."""
    monkeypatch.setattr(random, "uniform", lambda low, high: low + (high - low) * luck)
    life.provider.answer = down()

    waits = gaps(life.run(300))

    full = [FIRST_S * 2.0**i for i in range(5)] + [LONGEST_S] * 3
    assert waits[:8] == pytest.approx([max(NUDGE_APART_S, (0.5 + luck / 2) * wait_s) for wait_s in full])
    assert max(waits) <= LONGEST_S


def test_nudges_do_not_shorten_the_backoff(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often unknown ids are met, the waits are those of the backoff."""
    monkeypatch.setattr(random, "uniform", lambda _, high: high)
    life.provider.answer = down()
    life.nudge_every(0.1, until_s=60)

    assert life.run(60) == [0, 1, 3, 7, 15, 31]


def test_backoff_begins_anew_after_an_answer(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second trouble is as fresh as the first."""
    monkeypatch.setattr(random, "uniform", lambda _, high: high)
    life.provider.answer = down()
    life.clock.at(6, lambda: setattr(life.provider, "answer", lambda: KNOWN))
    life.clock.at(8, lambda: setattr(life.provider, "answer", down()))

    asked = life.run(30)

    assert asked[:6] == [0, 1, 3, 7, 7 + INTERVAL_S, 8 + INTERVAL_S]


def test_nudge_asks_at_once(life: Life) -> None:
    """An id without a name causes a poll at once, not at the end of the interval."""
    life.clock.at(5.25, life.background.nudge)

    assert life.run(15) == [0, 5.25]


def test_nudges_are_coalesced(life: Life) -> None:
    """Ten ticks a second that each meet an unknown id cost one question a second."""
    life.nudge_every(0.1, until_s=5)

    asked = life.run(10)

    assert len(asked) == 6
    assert min(gaps(asked)) >= NUDGE_APART_S


def test_nudge_while_asking_is_not_lost(life: Life) -> None:
    """The answer that is on its way may be older than the container, so there is another poll."""

    def slow() -> Names:
        if len(life.provider.asked) == 1:
            life.clock.now += 2
            life.background.nudge()
        return KNOWN

    life.provider.answer = slow

    assert life.run(10) == [0, 3]


def test_news_asks_at_once(life: Life) -> None:
    """An event of the runtime is answered with a question, not with a wait."""
    life.clock.at(7.5, life.provider.tell)

    assert life.run(20) == [0, 7.5]


def test_bursts_of_news_are_coalesced(life: Life) -> None:
    """Fifty containers that start in five seconds cost six questions, and the last one comes after the last of them."""
    for i in range(51):
        life.clock.at(2 + i * 0.1, life.provider.tell)

    asked = life.run(14)

    assert len(asked) == 7
    assert min(gaps(asked)) >= NUDGE_APART_S
    assert asked[-1] >= 7


def test_names_outlive_their_provider_for_a_while(life: Life) -> None:
    """Five minutes after the last answer they are dropped: by then they may be another's."""
    life.background.once()
    life.provider.answer = down()
    life.clock.now = NAMES_VALID_S
    life.background.once()
    kept = life.background.names
    life.clock.now = NAMES_VALID_S + 0.1

    assert kept is KNOWN
    assert life.background.names == Names()
    assert life.background.names is life.background.names
    life.provider.answer = lambda: KNOWN
    life.background.once()
    assert life.background.names is KNOWN


def test_ids_remain_when_names_are_dropped(life: Life) -> None:
    """A provider that died costs the name in the end, never the process or its container."""
    facts = Facts(7, 1, 1000, "python3", 1000, f"0::/system.slice/docker-{C}.scope\n")
    gpu = Reading(Device(index=0, uuid="GPU-a"), residents=(Resident(7, "compute", 100),))
    tick = Tick(1, Driver(up=True), (gpu,), facts={7: facts})
    resolver = Resolver([life.background])
    life.background.once()
    named = resolver.resolve(tick).owners.by_pid[7]
    life.provider.answer = down()
    life.background.once()
    still = resolver.resolve(tick).owners.by_pid[7]
    life.clock.now = NAMES_VALID_S + 1

    owners = resolver.resolve(tick).owners

    assert named.container == "ollama"
    assert still is named
    owner = owners.by_pid[7]
    assert (owner.container, owner.container_id, owner.reason) == ("", C, NO_NAME)
    assert resolver.resolve(tick).owners.by_pid[7] is owner
    assert [health.up for health in owners.providers] == [False]


def test_health(life: Life) -> None:
    """Up, why not, since when, the last success and the counts; `since` moves only between up and down."""
    seen = [life.background.health]
    for moment, answer in enumerate([down("a"), down("b"), lambda: KNOWN, lambda: KNOWN, down("c")], start=1):
        life.clock.now, life.provider.answer = moment, answer
        life.background.once()
        seen.append(life.background.health)

    start = 1_000_000
    assert seen == [
        ProviderHealth("docker", False, Problem("not polled yet", kind="starting"), start, 0, 0, 0),
        ProviderHealth("docker", False, Problem("a"), start + 1000, 0, 1, 1),
        ProviderHealth("docker", False, Problem("b"), start + 1000, 0, 2, 2),
        ProviderHealth("docker", True, None, start + 3000, start + 3000, 3, 2),
        ProviderHealth("docker", True, None, start + 3000, start + 4000, 4, 2),
        ProviderHealth("docker", False, Problem("c"), start + 5000, start + 4000, 5, 3),
    ]


def test_log_tells_changes_once(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    """One line when it is lost, one when the reason changes, one when it is back; nothing while all stays as it is."""
    caplog.set_level(logging.INFO, "gpuledger")
    answers = [lambda: KNOWN, lambda: KNOWN, *[down("is gone")] * 3, *[down("permission denied")] * 2, lambda: KNOWN]
    for answer in [*answers, lambda: KNOWN]:
        life.provider.answer = answer
        life.background.once()

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "docker: is gone"),
        ("WARNING", "docker: permission denied"),
        ("INFO", "docker answers again"),
    ]


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), KeyError("Id"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), RecursionError()]
)
def test_any_error_of_a_provider_is_survived(life: Life, error: Exception) -> None:
    """A bug in a provider is one that is down: named with its kind, asked again, back when it works again."""

    def fail() -> Names:
        raise error

    life.provider.answer = fail
    life.background.once()
    failed = life.background.health
    life.clock.at(20, lambda: setattr(life.provider, "answer", lambda: KNOWN))
    life.run(60)

    assert not failed.up
    assert failed.reason == f"{type(error).__name__}: {error}"
    assert life.background.health.up
    assert life.background.names is KNOWN


def test_provider_that_cannot_wait_is_polled(life: Life, caplog: pytest.LogCaptureFixture) -> None:
    """An error while waiting for news costs the news, not the names; nudges still help, and the log says it once."""
    caplog.set_level(logging.INFO, "gpuledger")
    life.provider.trouble = RuntimeError("a bug")
    life.clock.at(20, life.background.nudge)
    life.clock.at(40, lambda: setattr(life.provider, "trouble", None))

    asked = life.run(60)

    assert asked == [0, 15, 20, 35, 50]
    assert life.background.health.up
    assert [record.getMessage() for record in caplog.records] == [
        "docker: event stream failed: RuntimeError: a bug; polling every 15 s",
        "docker: event stream works again",
    ]


def test_stop_lets_go_of_the_provider(life: Life) -> None:
    """Its connections are closed, and it is not asked again."""
    asked = life.run(2)

    assert life.provider.closed
    assert asked == [0]


class Hanging(Told):
    """Answers the first time; after that it hangs, as a file system can."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.hangs = threading.Event()
        self.let_go = threading.Event()

    def fetch(self) -> Names:
        """Hang until the test lets go."""
        if self.asked:
            self.hangs.set()
            self.let_go.wait(10)
        return super().fetch()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    """One that does not outlive its test."""
    provider = Hanging()
    yield provider
    provider.let_go.set()


def started(provider: Provider) -> PolledProvider:
    """In a thread, in real time."""
    background = PolledProvider(provider)
    background.start()
    return background


def test_a_hanging_provider_delays_no_caller(hanging: Hanging) -> None:
    """Names and health are there at once while it hangs, nudges return, and so does stop."""
    background = PolledProvider(hanging)
    background.once()
    background.start()
    assert hanging.hangs.wait(5)
    began = time.monotonic()

    for _ in range(1000):
        background.nudge()
        assert background.names is KNOWN
        assert background.health.up
    background.stop()

    assert time.monotonic() - began < PROMPT_S
    assert background._thread.is_alive()
    assert background._thread.daemon
    hanging.let_go.set()
    background._thread.join(5)
    assert not background._thread.is_alive()


class Patient(Told):
    """Waits for real, as all providers do that send no news."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.waits = threading.Event()

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """For the event it is given."""
        self.waits.set()
        stop.wait(timeout_s)
        return False


def test_stop_ends_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is gone at once, not when the slice is over."""
    monkeypatch.setattr(poller, "SLICE_S", 60.0)
    provider = Patient()
    background = started(provider)
    assert provider.waits.wait(5)
    began = time.monotonic()

    background.stop()
    background._thread.join(5)

    assert not background._thread.is_alive()
    assert time.monotonic() - began < PROMPT_S
    assert provider.closed


def test_stop_ends_a_backoff() -> None:
    """So it is while the provider is down."""
    provider = Patient()
    failed = threading.Event()

    def fail() -> Names:
        failed.set()
        raise ProviderError("is down")

    provider.answer = fail
    background = PolledProvider(provider)
    background._backoff = Backoff(time.monotonic, first_s=LONGEST_S)
    background.start()
    assert failed.wait(5)
    began = time.monotonic()

    background.stop()
    background._thread.join(5)

    assert not background._thread.is_alive()
    assert time.monotonic() - began < PROMPT_S


def test_one_that_never_comes_back_is_down() -> None:
    """A file system that hangs: while the question is out the provider is down, said once, and up when it returns."""
    clock = [0.0]
    asked, answer = threading.Event(), threading.Event()

    class Hangs(Provider):
        name, interval_s = "hpcdir", 5.0

        def fetch(self) -> Names:
            asked.set()
            answer.wait(10)
            return Names()

        def close(self) -> None:
            raise OSError("also broken")

    background = PolledProvider(Hangs(), monotonic=lambda: clock[0])
    thread = threading.Thread(target=background.once)
    thread.start()
    assert asked.wait(10)
    clock[0] = 61.0
    health = background.health
    assert (health.up, health.problem and health.problem.kind) == (False, "hang")
    assert health.reason == "no answer for 60 s; check whether it, or its file system, hangs"

    answer.set()
    thread.join(10)

    assert background.health.up
    background.stop()
