"""The background: what it has, what it says of itself, and when it lets go."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from gpuledger.errors import UpstreamError
from gpuledger.integrations.dcgmexporter.poll import Poll, Polling
from gpuledger.integrations.exposition import ScrapedFamily
from gpuledger.integrations.scrape import Answer, Page
from gpuledger.model import Driver, Owners, ProviderHealth, Tick
from gpuledger.net.address import parse_place
from tests.integrations.dcgmexporter.server import page, upstream
from tests.integrations.dcgmexporter.world import GPUS, body, given, labelled, parsed, tick

GOOD = parsed(body("whole"))
LLAMA, OTHER = tick(*given(GPUS[0], "ml/llama-0/main")), tick(*given(GPUS[0], "ml/other/main"))


class World:
    """A poll over an answer, a tick and a time that the test sets."""

    def __init__(self, **polling: float) -> None:
        self.answer: list[ScrapedFamily] | UpstreamError | None = GOOD
        self.age_s = 0.0
        self.reads = 0
        self.tick: Tick | None = LLAMA
        self.now_s = 1000.0
        self.poll = Poll(
            self,
            lambda: self.tick,
            Polling(**polling),  # type: ignore[arg-type]
            monotonic=lambda: self.now_s,
            now_ns=lambda: int(self.now_s * 1e9),
        )

    def read(self) -> Answer:
        """As the source of the poll."""
        self.reads += 1
        if isinstance(self.answer, UpstreamError):
            raise self.answer
        return Answer(self.answer, self.age_s)

    def at(self, now_s: float) -> None:
        """A step at that time."""
        self.now_s = now_s
        self.poll.step()


def test_one_reading_an_interval() -> None:
    """And one labelling: the same object is served until something changes."""
    world = World(interval_s=15.0)
    world.at(1000)
    served = world.poll.served
    for second in range(1001, 1015):
        world.at(second)

    assert world.reads == 1
    assert world.poll.served is served
    assert served == labelled(body("whole"), LLAMA)
    world.at(1015)
    assert world.reads == 2
    assert world.poll.served is not served


def test_another_holder_means_other_labels_at_once() -> None:
    """Without reading again, and also while the dcgm-exporter is down."""
    world = World(interval_s=15.0)
    world.at(1000)
    world.answer = UpstreamError("no answer", kind="timeout")
    world.at(1015)
    world.tick = OTHER
    world.at(1016)

    assert world.reads == 2
    assert world.poll.served == labelled(body("whole"), OTHER)


def test_a_driver_that_is_down_takes_no_labels_away() -> None:
    """It lists no devices, but the kubelet does; if neither does, the last holders stay."""
    world = World()
    world.at(1000)
    world.tick = replace(OTHER, driver=Driver(up=False), readings=(), owners=Owners())
    world.at(1016)
    assert world.poll.served == labelled(body("whole"), LLAMA)

    world.tick = replace(OTHER, driver=Driver(up=False), readings=())
    world.at(1032)
    assert world.poll.served == labelled(body("whole"), OTHER)
    assert world.reads == 3


def test_nothing_before_the_first_tick() -> None:
    """The holders are not known yet, and series without pods would be wrong."""
    world = World()
    world.tick = None
    world.at(1000)

    assert (world.reads, world.poll.served) == (0, None)
    assert (world.poll.state.up, world.poll.state.reason) == (False, "not read yet")


def test_nothing_before_the_first_answer_of_the_kubelet() -> None:
    """For ten seconds at most: a provider that hangs must not delay the metrics any longer."""
    hangs = ProviderHealth(
        "podresources", up=False, problem=None, since_ns=10**9, last_success_ns=0, fetches=0, failures=0
    )
    world = World()
    world.tick = replace(LLAMA, time_ns=2 * 10**9, owners=replace(LLAMA.owners, providers=(hangs,)))
    world.at(1000)
    assert world.reads == 0
    world.tick = replace(world.tick, time_ns=12 * 10**9)
    world.at(1001)
    assert world.reads == 1


def test_the_last_good_answer_stays_and_expires(caplog: pytest.LogCaptureFixture) -> None:
    """One log line for each kind of trouble, one when it is over; numbers for each failure."""
    caplog.set_level(logging.INFO)
    world = World(interval_s=10.0, max_age_s=30.0)
    world.at(1000)
    world.answer = UpstreamError("no complete answer", kind="timeout")
    world.at(1010)
    assert world.poll.served == labelled(body("whole"), LLAMA)
    assert (world.poll.state.up, world.poll.state.series) == (False, 13)
    world.at(1020)
    world.answer = UpstreamError("line 7", kind="format")
    world.at(1030)
    world.answer = UpstreamError("line 8", kind="format")
    assert world.poll.served is not None
    world.at(1040)
    assert world.poll.served is None

    state = world.poll.state
    assert (state.up, state.series, state.with_pod, state.reason) == (False, 0, 0, "line 8")
    assert state.failures == (("format", 2), ("timeout", 2))
    assert state.last_success_ns == 1000 * 10**9
    world.answer = GOOD
    world.at(1050)
    assert world.poll.state.up
    assert [record.message for record in caplog.records] == [
        "dcgm-exporter: no complete answer",
        "dcgm-exporter: line 7",
        "dcgm-exporter responds again",
    ]


def test_the_age_of_a_file_counts() -> None:
    """A file that was written 25 s ago is served for 5 s more, not for 30, also if it does not change."""
    world = World(interval_s=10.0, max_age_s=30.0)
    world.age_s = 25.0
    world.at(1000)
    world.now_s = 1005
    assert world.poll.served is not None
    world.now_s = 1006
    assert world.poll.served is None

    again = World(interval_s=10.0, max_age_s=30.0)
    again.at(1000)
    again.answer = None
    for second in range(1010, 1100, 10):
        again.at(second)
    assert again.poll.served == labelled(body("whole"), LLAMA)


def test_state_of_a_good_answer() -> None:
    """What the metrics show."""
    world = World()
    world.answer = parsed(body("whole") + b"d 1\nd 1\n")
    world.at(1000)
    world.at(1015)

    state = world.poll.state
    assert (state.up, state.series, state.with_pod, state.duplicates) == (True, 14, 6, 2)


def test_a_thread_that_reads_a_real_server() -> None:
    """From start to stop, while no other thread waits for it."""
    with upstream(page(body("whole"))) as server:
        poll = Poll(Page(parse_place(server.url), 5.0), lambda: LLAMA, Polling())
        poll.start()
        deadline = time.monotonic() + 10
        while poll.served is None and time.monotonic() < deadline:
            time.sleep(0.01)
        poll.stop()

    assert poll.served == labelled(body("whole"), LLAMA)
    assert poll.state.duration_ns > 0


def test_duplicates_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """However often they come; and that there are none any more."""
    caplog.set_level(logging.INFO)
    world = World(interval_s=15.0)
    twice, once = parsed(b'a{x="1"} 1\na{x="1"} 2\n'), parsed(b"a 1\n")
    for step, answer in enumerate((once, twice, twice, once, once)):
        world.answer = answer
        world.at(1000 + 15 * step)

    assert [record.message for record in caplog.records if "series" in record.message] == [
        "dcgm-exporter: 1 series with duplicate labels are dropped",
        "dcgm-exporter: no more duplicate series",
    ]
    assert world.poll.state.duplicates == 2
