"""A step of the wall clock, as NTP makes it, changes no account."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.books import Books
from gpuledger.model import Tick
from tests.builders import GPU, START_NS, S, World


def booked_over_a_step(step_s: float) -> Tick:
    """Ten ticks of a busy process, with a step of the wall clock in the middle; the monotonic clock goes on."""
    books, world, done = Books(), World(), None
    for number in range(10):
        tick = world.tick(1, mj=300_000, work={1: 100}, after_s=1 + step_s * (number == 5), utilization_pct=100)
        done = books.book(replace(tick, monotonic_ns=START_NS // 1000 + number * S))
    assert done is not None
    return done


@pytest.mark.parametrize("step_s", [-3600, -2, 0, 30, 86_400])
def test_a_step_of_the_wall_clock_is_no_gap(step_s: float) -> None:
    """Energy and time of the tick with the step are booked to the process that was there, as in every other tick."""
    done = booked_over_a_step(step_s)
    (use,) = done.processes

    assert done.accounts[GPU.uuid].unattributed_mj == (("before", 1_300_000),)
    assert dict(use.energy_mj) == {"exclusive": 9 * 300_000}
    assert use.busy_ns == pytest.approx(9 * S, abs=S // 4)
    assert done.accounts[GPU.uuid].busy_ns == 9 * S
