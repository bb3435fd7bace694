"""Sources of snapshots, and polling."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import replace

import pytest

from gpuledger.books import Books
from gpuledger.errors import LostError
from gpuledger.model import HostUse
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.tools.top.columns import COLUMNS, View, fit
from gpuledger.tools.top.feed import Feed, Host, State, Ticks
from gpuledger.tools.top.pages import once
from gpuledger.tools.top.rows import TREE, Choice, rows
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
    """With the reason, until there is a new snapshot."""
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


def test_other_responses_keep_the_last_snapshot() -> None:
    """No snapshot, another version, a bug."""
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


def test_polling_continues_until_it_is_stopped() -> None:
    """Each poll is announced."""
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


def test_after_a_clock_is_set_back_one_snapshot_has_no_power() -> None:
    """Set back by an hour: earlier ticks are dropped, and the next snapshot has power again."""
    world, books = World(), Books()
    ticks = [world.tick(7), world.tick(7, mj=100_000, work={7: 50}), world.tick(7, mj=100_000, work={7: 50})]
    ticks += [world.tick(7, mj=100_000, after_s=after_s, work={7: 50}) for after_s in (-3600, 1, 1)]
    source = Ticks(lambda: books.book(ticks.pop(0)), "n1")

    watts = [source().processes[0].watts for _ in range(6)]

    assert watts[3] is None
    assert watts[5] is not None
    assert len(source._ticks) == 3


def test_an_exporter_without_new_snapshots_is_reported() -> None:
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


S = 10**9


def source(host: Host, *pids: int) -> Ticks:
    """Snapshots of a world with these processes."""
    world, books = World(), Books()
    return Ticks(lambda: books.book(world.tick(*pids)), "n1", host)


def test_cpu_is_a_rate_and_memory_is_not() -> None:
    """1.5 s of CPU time in a second are 150 %; the first reading has no rate; a reused pid has nothing."""
    clock = Clock()
    uses = {7: HostUse(1, 5 * S, 2 << 30), 8: HostUse(99, 5 * S, 1 << 30)}
    ticks = source(Host(uses.get, monotonic_ns=lambda: round(clock() * S)), 7, 8)

    first = rows(ticks(), Choice())
    clock.now += 1
    uses[7] = HostUse(1, 5 * S + 3 * S // 2, 3 << 30)
    second = rows(ticks(), Choice())

    assert [(row.cpu, row.host_bytes) for row in first] == [(None, 2 << 30), (None, None)]
    assert [(row.cpu, row.host_bytes) for row in second] == [(1.5, 3 << 30), (None, None)]
    uses.clear()
    assert [row.cpu for row in rows(ticks(), Choice())] == [None, None]


def test_a_process_on_two_gpus_counts_once() -> None:
    """In the row of its user, and in a tree."""
    shown = source(Host({7: HostUse(1, 0, 1 << 30)}.get), 7)()
    twice = replace(shown, processes=(shown.processes[0], replace(shown.processes[0], uuid="GPU-b")))

    (row,) = rows(twice, Choice("user"))
    branch, *leaves = rows(twice, Choice(TREE))
    assert row.host_bytes == branch.host_bytes == 1 << 30
    assert [leaf.branch for leaf in leaves] == [branch.key] * 2


def test_this_process_can_be_read() -> None:
    """The real /proc: memory of this interpreter, and the CPU time that the test burns."""
    procfs = Procfs()
    before = procfs.host_use(os.getpid())
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    after, facts = procfs.host_use(os.getpid()), procfs.look(os.getpid())

    assert before is not None
    assert after is not None
    assert facts is not None
    assert after.cpu_ns - before.cpu_ns >= 5 * 10**7
    assert 10 << 20 < after.memory_bytes < 100 << 30
    assert after.start_ticks == facts.start_ticks
    assert procfs.host_use(2**22 + 1) is None


def test_columns_of_the_host_are_there_only_for_this_host() -> None:
    """Not for another exporter nor a recording, which know nothing of it."""
    shown = source(Host({7: HostUse(1, 0, 5 << 29)}.get), 7)()

    local = once(shown, View(host=True), columns=200, colour=False, utf8=True)
    assert "HOST GiB" in local
    assert " 2.50 " in local
    assert "HOST GiB" not in once(shown, View(), columns=200, colour=False, utf8=True)
    assert {column.name for column, _ in fit("pod", 250, host=True)}.isdisjoint({"cpu", "host"})
    assert {column.name for column in COLUMNS if column.is_of_host} == {"cpu", "host"}
