"""States of a shared GPU: which slots belong together, and what is known of them."""

from __future__ import annotations

from math import exp

import pytest

from gpuledger.shares.states import MEMORY_S, MOST_STATES, NEW_JITTER, RADIUS, State, States
from gpuledger.shares.times import STEADY
from gpuledger.shares.units import UNITS, Activities
from tests.builders import row

CENTRE = (0.5,) * len(UNITS)
ONE, TWO = row(1), row(2)


def changed(amount: float, *units: int) -> Activities:
    """The centre with a change in these units."""
    return tuple(number + amount * (unit in units) for unit, number in enumerate(CENTRE))


@pytest.mark.parametrize("unit", range(len(UNITS)))
@pytest.mark.parametrize("sign", [-1, 1])
def test_each_unit_tells_states_apart(unit: int, sign: int) -> None:
    """A slot belongs to a state if no unit differs by RADIUS or more."""
    near, far = States(), States()
    first, other = near.of(CENTRE, 0), far.of(CENTRE, 0)

    assert near.of(changed(sign * 0.9 * RADIUS, unit), 0) is first
    assert far.of(changed(sign * 1.1 * RADIUS, unit), 0) is not other


def test_differences_in_several_units_do_not_add_up() -> None:
    """The distance is that of the unit that differs most."""
    states = States()
    first = states.of(CENTRE, 0)

    assert states.of(changed(0.9 * RADIUS, *range(len(UNITS))), 0) is first


@pytest.mark.parametrize("unit", range(len(UNITS)))
@pytest.mark.parametrize(("amount", "nearest"), [(0.6, 0), (0.9, 1)])
def test_a_slot_between_two_states_belongs_to_the_nearest(unit: int, amount: float, nearest: int) -> None:
    """Whichever is older; they are 1.5 RADIUS apart."""
    states = States()
    both = [states.of(CENTRE, 0), states.of(changed(1.5 * RADIUS, unit), 0)]

    assert states.of(changed(amount * RADIUS, unit), 0) is both[nearest]


def grid(number: int) -> Activities:
    """A tenth of SM or DRAM activity from all other numbers."""
    return (0.1 * (number % 8), 0.0, 0.0, 0.0, 0.0, 0.0, 0.1 * (number // 8))


def test_the_least_recently_seen_state_is_evicted() -> None:
    """The first is the oldest, but it was seen again."""
    states = States()
    first, second, *others = [states.of(grid(number), number) for number in range(MOST_STATES)]
    states.of(grid(0), MOST_STATES)

    states.of(grid(MOST_STATES), MOST_STATES + 1)

    assert states.of(grid(0), MOST_STATES + 2) is first
    assert [states.of(grid(number + 2), MOST_STATES + 2) for number in range(len(others))] == others
    assert states.of(grid(1), MOST_STATES + 3) is not second


def test_samples_decay_with_the_time_since_the_last_slot() -> None:
    """A state that did not occur for t seconds has n e^(-t / MEMORY_S) of n samples; its slots alike."""
    states = States()
    state = states.of(CENTRE, 10.0)
    state.sample(ONE, 3.0)
    state.sample(ONE, 1.0)
    state.sample(TWO, 2.0)
    states.of(changed(0.5, 0), 25.0)

    states.of(CENTRE, 40.0)

    decay = exp(-30.0 / MEMORY_S)
    assert state.samples == pytest.approx({ONE: 4 * decay, TWO: 2 * decay})
    assert state.slots == pytest.approx(decay + 1)


def test_slots_of_one_interval_do_not_decay() -> None:
    """They have the same time."""
    states = States()
    state = states.of(CENTRE, 10.0)
    state.sample(ONE, 3.0)

    states.of(CENTRE, 10.0)

    assert state.samples == {ONE: 3.0}
    assert state.slots == 2


def test_a_new_state_is_neither_steady_nor_jittery() -> None:
    """One slot does not show how far slots are apart; NEW_JITTER counts as much as three slots."""
    states = States()
    assert STEADY < states.of(CENTRE, 0).jitter == NEW_JITTER < RADIUS

    assert states.of(changed(0.03, 0), 0).jitter == pytest.approx((3 * NEW_JITTER + 0.03) / 4)


@pytest.mark.parametrize("distance", [0.0, 0.005, 0.015])
def test_jitter_is_the_mean_distance_from_the_centre(distance: float) -> None:
    """Slots alternate between both sides of the centre."""
    states, state = States(), State(CENTRE, 0)
    for slot in range(200):
        state = states.of(changed(distance * (-1) ** slot, 0, 4), 0.2 * slot)

    assert state.slots > 100
    assert state.jitter == pytest.approx(distance, rel=0.05, abs=1e-6)


def test_the_centre_of_a_new_state_is_the_mean_of_its_slots() -> None:
    """All slots count alike until there are many."""
    states = States()
    for amount in (0.0, 0.02, 0.01):
        state = states.of(changed(amount, 2), 0)

    assert state.centre == pytest.approx(changed(0.01, 2))


def test_the_centre_follows_a_slow_drift() -> None:
    """A program that changes within minutes, by several RADIUS, stays in one state."""
    states = States()
    first = states.of(CENTRE, 0)

    for slot in range(1, 401):
        amount = 6 * RADIUS * slot / 400
        assert states.of(changed(amount, 0), 0.2 * slot) is first
    assert first.centre == pytest.approx(changed(6 * RADIUS, 0), abs=RADIUS)


def test_other_processes_have_other_states() -> None:
    """A process comes or goes: what the samples of a state were says nothing any more."""
    states = States()
    states.among([ONE, TWO])
    before = states.of(CENTRE, 0)

    states.among([TWO, ONE])
    assert states.of(CENTRE, 1) is before
    states.among([ONE])
    assert states.of(CENTRE, 2) is not before
