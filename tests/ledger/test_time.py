"""Busy time of processes and GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.time import SAMPLE_US
from gpuledger.model import Sample
from tests.builders import S, World, account, run


def test_a_row_covers_the_time_since_the_newest_before() -> None:
    """Whatever time it carries itself: the driver averages all rows of an answer over the same samples."""
    books, world = Books(), World()
    books.book(world.tick(1, 2, work={1: 0}))
    newest_us = world.now_ns // 1000
    later = world.tick(1, 2)
    rows = (Sample(1, newest_us + 900_000, 50, 0), Sample(2, newest_us + 700_000, 25, 0))

    booked = books.book(replace(later, readings=(replace(later.readings[0], samples=rows),)))

    assert [use.busy_ns for use in booked.processes] == [450_000_000, 225_000_000]


@given(st.lists(st.tuples(st.floats(0.1, 9.9), st.integers(0, 100)), min_size=1, max_size=20))
def test_busy_time_is_percent_times_time(steps: list[tuple[float, int]]) -> None:
    """Tick by tick, and never longer than the time that passed and one sample."""
    books, world = Books(), World()
    books.book(world.tick(1, work={1: 0}))
    expected, elapsed = 0.0, 0.0
    for after_s, pct in steps:
        booked = books.book(world.tick(1, after_s=after_s, work={1: pct}, utilization_pct=pct))
        expected += after_s * pct / 100
        elapsed += after_s

    busy = booked.processes[0].busy_ns
    gpu = account(booked)
    assert busy is not None
    assert gpu.busy_ns is not None
    assert busy / S == pytest.approx(expected, abs=0.001)
    assert busy <= (elapsed + SAMPLE_US / 1e6) * S
    assert gpu.busy_ns / S == pytest.approx(expected, abs=0.001)
    assert gpu.in_use_ns / S == pytest.approx(elapsed, abs=0.001)


def test_a_row_counts_at_most_the_time_between_two_ticks_and_a_sample() -> None:
    """After a time without rows the newest before is long ago."""
    books, world = Books(), World()
    books.book(world.tick(1, work={1: 0}))
    for _ in range(5):
        books.book(world.tick(1))

    booked = books.book(world.tick(1, work={1: 100}))

    assert booked.processes[0].busy_ns == S + SAMPLE_US * 1000


def test_of_a_late_tick_the_last_seconds_count() -> None:
    """The driver keeps samples for 10 s; what came before them is not known."""
    books, world = Books(), World()
    books.book(world.tick(1, work={1: 0}))
    booked = books.book(world.tick(1, after_s=11, work={1: 100}, utilization_pct=100))

    assert booked.processes[0].busy_ns == 10 * S
    assert (account(booked).busy_ns, account(booked).in_use_ns) == (10 * S, 10 * S)


def test_a_row_above_all_counts_as_all() -> None:
    """No process is busy for longer than there is time."""
    books, world = Books(), World()
    books.book(world.tick(1, work={1: 0}))

    assert books.book(world.tick(1, work={1: 250})).processes[0].busy_ns == S


def test_absent_where_the_driver_does_not_say() -> None:
    """None, not 0."""
    booked = Books().book(World().tick(1, samples=False))

    assert booked.processes[0].busy_ns is None
    assert account(booked).busy_ns is None


@pytest.mark.parametrize(("pids", "expected"), [([1], True), ([], False), (None, None)])
def test_in_use(pids: list[int] | None, expected: bool | None) -> None:
    """A GPU with a process is in use, busy or not; unknown is neither."""
    more: dict[str, Any] = {"residents": None} if pids is None else {}

    assert account(Books().book(World().tick(*(pids or ()), **more))).in_use is expected


@pytest.mark.parametrize(
    ("steps", "expected_ns"),
    [([{"pids": [1]}, {}], S), ([{}, {"pids": [1]}], 0), ([{"pids": [1]}, {"residents": None}, {"pids": [1]}], 0)],
    ids=["left", "came", "unknown"],
)
def test_in_use_time(steps: list[dict[str, Any]], expected_ns: int) -> None:
    """From a tick with a process to the next tick, if that one has a process list."""
    assert account(run(*steps)).in_use_ns == expected_ns


def test_a_gpu_is_not_busier_than_all_the_time() -> None:
    """Whatever the driver says."""
    books, world = Books(), World()
    books.book(world.tick(1))

    assert account(books.book(world.tick(1, utilization_pct=104))).busy_ns == S
