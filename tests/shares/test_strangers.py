"""Known processes beside strangers: on made-up activity whose parts are known."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.shares.fingerprint import UNITS, Activities, Means
from gpuledger.shares.strangers import Column, Explanation, log_density, separate

MATMUL = (0.95, 0.14, 0.93, 0.0, 0.0, 0.0, 0.0, 0.17)
COPY = (0.99, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.88)
LIGHT = (0.3, 0.05, 0.1, 0.0, 0.0, 0.0, 0.0, 0.1)


def behaviour(shape: Activities, watts: float = 570.0, clock: float = 1.0) -> Means:
    """A known process has been observed for a minute."""
    return Means(shape, watts, clock, seconds=60.0)


def explanation(*shapes: Activities) -> Explanation:
    """Known processes with one behaviour each."""
    return Explanation(tuple([(behaviour(shape),) for shape in shapes]))


def mixed(*parts: tuple[Activities, float]) -> Activities:
    """Activity of several programs with their parts of the time."""
    return tuple(sum(shape[i] * part for shape, part in parts) for i in range(len(UNITS)))


@pytest.mark.parametrize("amount", [0.2, 0.97])
def test_a_known_process_alone_explains_the_activity(amount: float) -> None:
    """Strangers paused."""
    assert explanation(MATMUL).amounts(mixed((MATMUL, amount))) == pytest.approx([amount], rel=1e-3)


def test_more_known_processes_than_units() -> None:
    """Any of many amounts explains the activity."""
    amounts = explanation(*[MATMUL, COPY, LIGHT] * 4).amounts(mixed((MATMUL, 0.3), (COPY, 0.6)))

    assert amounts is not None
    assert sum(amounts[0::3]) == pytest.approx(0.3, abs=0.1)


def test_two_known_processes_explain_their_sum() -> None:
    """Each with its amount."""
    amounts = explanation(MATMUL, COPY).amounts(mixed((MATMUL, 0.3), (COPY, 0.6)))

    assert amounts == pytest.approx([0.3, 0.6], abs=0.02)


@pytest.mark.parametrize("activity", [mixed((MATMUL, 0.5), (COPY, 0.5)), mixed((MATMUL, 1.3))])
def test_a_stranger_is_visible(activity: Activities) -> None:
    """In units that the known process does not use, or because it cannot work that much."""
    assert explanation(MATMUL).amounts(activity) is None


def test_a_known_process_cannot_have_more_than_the_activity() -> None:
    """The tensor cores are its alone: they were busy for half of its activity, so it had half of the time at most."""
    activity = mixed((MATMUL, 0.5), (COPY, 0.5))

    powers = separate(
        [Column(0, behaviour(MATMUL))],
        [0.75],
        0.1,
        activity=activity,
        power_w=465.0,
        busy=1.0,
        most_busy=1.0,
        clock=1.0,
    )

    assert 570 * powers.amounts[0] == pytest.approx(0.5 * 570, abs=25)
    assert powers.strangers_w == pytest.approx(0.5 * 360, abs=25)


def test_the_expected_time_decides_where_activity_says_nothing() -> None:
    """Twins: the stranger looks like the known process."""
    powers = separate(
        [Column(0, behaviour(MATMUL))], [0.3], 0.1, activity=MATMUL, power_w=570.0, busy=1.0, most_busy=1.0, clock=1.0
    )

    assert 570 * powers.amounts[0] == pytest.approx(0.3 * 570, rel=0.2)
    assert powers.known_sd_w > 0.05 * 570


def test_the_engine_is_busier_while_strangers_work() -> None:
    """Bursts next to a process that waits for its host: it keeps its time, though the engine was less busy before."""
    activity = mixed((LIGHT, 0.35), (MATMUL, 0.45))

    powers = separate(
        [Column(0, behaviour(LIGHT, 150.0))],
        [0.35],
        0.07,
        activity=activity,
        power_w=310.0,
        busy=0.6,
        most_busy=0.9,
        clock=1.0,
    )

    assert powers.amounts[0] == pytest.approx(0.35, abs=0.03)
    assert powers.strangers_time == pytest.approx(0.45 * 0.95 / 0.9, abs=0.03)


def test_a_known_process_in_the_behaviour_that_the_activity_allows() -> None:
    """It trains or evaluates; the activity has no tensor cores, so now it evaluates."""
    columns = [Column(0, behaviour(MATMUL, 570.0)), Column(0, behaviour(COPY, 360.0))]

    powers = separate(
        columns,
        [0.5],
        0.05,
        activity=mixed((COPY, 0.5), (LIGHT, 0.5)),
        power_w=200.0,
        busy=1.0,
        most_busy=1.0,
        clock=1.0,
    )

    assert 570 * powers.amounts[0] + 360 * powers.amounts[1] == pytest.approx(0.5 * 360, rel=0.25)


def test_power_per_work_grows_with_the_clock() -> None:
    """Alone at the power limit with a low clock; beside a light stranger the clock rises, and with it its power."""
    slow = Column(0, behaviour(MATMUL, clock=0.7))
    activity = mixed((MATMUL, 0.5), (LIGHT, 0.5))

    same, faster = (
        separate([slow], [0.4], 0.05, activity=activity, power_w=500.0, busy=1.0, most_busy=1.0, clock=clock)
        for clock in (0.7, 0.95)
    )

    assert faster.strangers_w < same.strangers_w


@given(
    st.lists(st.tuples(*[st.floats(0, 1)] * len(UNITS)), min_size=1, max_size=3),
    st.tuples(*[st.floats(0, 1)] * len(UNITS)),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
    st.floats(1, 700),
)
def test_any_input_gives_finite_powers(
    shapes: list[Activities], activity: Activities, busy: float, part: float, power_w: float
) -> None:
    """No power is negative, and the errors are numbers."""
    columns = explanation(*shapes).columns
    times = [busy * part * 0.95 / len(columns)] * len(columns)

    powers = separate(columns, times, 0.1, activity=activity, power_w=power_w, busy=busy, most_busy=1.0, clock=0.9)

    assert all(0 <= amount < 1e3 for amount in powers.amounts)
    assert 0 < powers.strangers_w < 1e6
    assert 0 <= powers.known_sd_w < 1e6
    assert 0 <= powers.strangers_sd_w < 1e6


def test_a_unit_is_rather_unused_than_negative() -> None:
    """The order of what is plausible."""
    assert log_density(2, 0.0) > log_density(2, 0.5) > log_density(2, -0.2)
    assert log_density(0, 0.9) > log_density(0, 0.3) > log_density(0, 1.4)
    assert log_density(4, -9.0) == pytest.approx(log(1e-12))
