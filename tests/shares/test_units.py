"""What the estimate compares: activity and power of programs, relative to all programs."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.interval import relative_clocks
from gpuledger.model import Activity, Reading, Slot
from gpuledger.shares.units import (
    ACTIVITY_SD,
    GPM,
    LEAST_POWER,
    POWER,
    UNITS,
    WITHOUT_GPM,
    Population,
    activities,
    without_gpm,
)
from tests.builders import GPU

PROGRAMS = Population(
    usual_power=(0.2, 0.1, 0.4, 0.0, 0.0, 0.0, 0.3),
    mean=(0.8, 0.4, 0.2, 0.0, 0.1, 0.0, 0.5, 0.05),
    sd=(0.1, 0.2, 0.3, 0.1, 0.05, 0.02, 0.25, 0.04),
)
AVERAGE = [0.0] * (POWER + 1)
PHI = st.lists(st.floats(-8, 8), min_size=POWER + 1, max_size=POWER + 1)
ANY_POPULATION = pytest.mark.parametrize("population", [GPM, WITHOUT_GPM, PROGRAMS])


def test_usual_power_is_a_sum_over_units() -> None:
    """0.2 of full SM activity, 0.1 of full occupancy and so on."""
    assert PROGRAMS.usual_power((1, 0, 0, 0, 0, 0, 0)) == pytest.approx(0.2)
    assert PROGRAMS.usual_power((0.5, 0.1, 1, 1, 1, 1, 0.2)) == pytest.approx(0.1 + 0.01 + 0.4 + 0.06)


def test_power_of_an_average_program() -> None:
    """The usual power of the mean activity, and the mean power beyond it."""
    usual = 0.8 * 0.2 + 0.4 * 0.1 + 0.2 * 0.4 + 0.5 * 0.3

    assert PROGRAMS.power(AVERAGE) == PROGRAMS.average == pytest.approx(usual + 0.05)


def test_power_of_a_program() -> None:
    """One standard deviation more SM activity and two less power than usual."""
    phi = [1.0, 0, 0, 0, 0, 0, 0, -2.0]

    assert PROGRAMS.power(phi) == pytest.approx(PROGRAMS.average + 0.1 * 0.2 - 2 * 0.04)


def test_both_tables_describe_the_same_programs() -> None:
    """An average program draws the same power, whether its activity is measured or only its power."""
    assert pytest.approx(WITHOUT_GPM.average, abs=0.01) == GPM.average


def test_no_program_draws_nothing() -> None:
    """Whatever was learned."""
    assert PROGRAMS.power([0, 0, 0, 0, 0, 0, 0, -1000.0]) == LEAST_POWER


@ANY_POPULATION
def test_an_average_program_does_not_deviate(population: Population) -> None:
    """Half of the time of an average program has half of its activity and power."""
    activity = [0.5 * mean for mean in population.mean[:POWER]]

    assert population.deviations(activity, 0.5 * population.average, 0.5) == pytest.approx(AVERAGE)


@given(PHI, st.floats(0, 1))
def test_deviations_are_time_times_program(phi: list[float], time: float) -> None:
    """The activity and power x (mean + sd phi) deviate by x phi, so deviations of several programs add up."""
    activity = [time * (mean + sd * unit) for mean, sd, unit in zip(PROGRAMS.mean[:7], PROGRAMS.sd, phi, strict=False)]
    power = PROGRAMS.usual_power(activity) + time * (0.05 + 0.04 * phi[POWER])

    assert PROGRAMS.deviations(activity, power, time) == pytest.approx([time * unit for unit in phi], abs=1e-9)


@ANY_POPULATION
@pytest.mark.parametrize("power", [0.2, 0.7])
def test_a_program_alone_draws_the_measured_power(population: Population, power: float) -> None:
    """Its deviations on a busy engine are the program."""
    phi = population.deviations((0.9, 0.1, 0.5, 0.0, 0.2, 0.0, 0.3), power, 1.0)

    assert population.power(phi) == pytest.approx(power)
    assert population.activity(phi) == pytest.approx([0.9, 0.1, 0.5, 0.0, 0.2, 0.0, 0.3])


@ANY_POPULATION
@given(phi=PHI)
def test_bounded_programs_are_possible(population: Population, phi: list[float]) -> None:
    """No activity below 0 or above 1, and no more power beyond the usual one than the power limit."""
    bounded = population.bounded(phi)

    raw = [mean + sd * unit for mean, sd, unit in zip(population.mean, population.sd, bounded, strict=True)]
    assert all(-1e-9 <= activity <= 1 + 1e-9 for activity in raw[:POWER])
    assert raw[POWER] <= 1 + 1e-9


def test_bounds_do_not_change_what_is_possible() -> None:
    """SM activity of 1.3 is too high, DRAM activity of -0.25 too low; power may be below the usual one."""
    phi = [5.0, 1.0, 1.0, 1.0, -2.0, 0.5, -3.0, -7.0]

    assert PROGRAMS.bounded(phi) == pytest.approx([2.0, 1.0, 1.0, 1.0, -2.0, 0.5, -2.0, -7.0])
    assert PROGRAMS.lowest[POWER] == -inf


def test_activity_is_not_negative() -> None:
    """0.8 + 0.1 of SM, 0.2 - 0.9 of tensor cores."""
    expected = [0.9, 0.4, 0.0, 0.0, 0.1, 0.0, 0.5]

    assert PROGRAMS.activity([1.0, 0, -3.0, 0, 0, 0, 0, 0]) == pytest.approx(expected)


def test_variance_of_a_measurement_in_standard_deviations() -> None:
    """A unit in which programs differ much is measured precisely."""
    assert PROGRAMS.measured[0] == pytest.approx((ACTIVITY_SD / 0.1) ** 2)
    assert PROGRAMS.measured[2] == pytest.approx((ACTIVITY_SD / 0.3) ** 2)


MEASURED = Activity(
    sm_pct=90.0, occupancy_pct=20.0, tensor_pct=50.0, fp64_pct=1.0, fp32_pct=2.0, fp16_pct=3.0, dram_pct=40.0
)


def test_activities_are_in_the_order_of_units() -> None:
    """As parts, at the highest clock."""
    found = activities(MEASURED, 1.0)

    assert found is not None
    assert dict(zip(UNITS, found, strict=True)) == pytest.approx({
        "sm": 0.9, "occupancy": 0.2, "tensor": 0.5, "fp64": 0.01, "fp32": 0.02, "fp16": 0.03, "dram": 0.4,
    })  # fmt: skip


def test_activities_are_scaled_by_the_clock() -> None:
    """All but DRAM, which has its own clock."""
    assert activities(MEASURED, 0.5) == pytest.approx((0.45, 0.1, 0.25, 0.005, 0.01, 0.015, 0.4))


def test_units_that_are_not_measured_are_not_active() -> None:
    """Some GPUs have no fp64 counter."""
    assert activities(Activity(sm_pct=50.0), 1.0) == (0.5, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "activity",
    [None, Activity(dram_pct=40.0), Activity(sm_pct=nan), Activity(sm_pct=9.0, dram_pct=nan), Activity(sm_pct=inf)],
)
def test_unknown_activities(activity: Activity | None) -> None:
    """No GPM, no SM activity, or a counter that is not a number."""
    assert activities(activity, 1.0) is None


def slot(power_mw: int | None = 300_000, utilization: int | None = 80, memory: int | None = 30) -> Slot:
    """A slot without GPM."""
    return Slot(Activity(), power_mw=power_mw, utilization_pct=utilization, memory_utilization_pct=memory)


def test_power_and_utilization_in_place_of_activity() -> None:
    """Power above parked power relative to the limit in place of tensor, memory utilization in place of DRAM."""
    assert without_gpm(slot(), 100_000, 500.0) == pytest.approx((0.8, 0, 0.4, 0, 0, 0, 0.3))


def test_power_below_parked_power_is_none() -> None:
    """Parked power is an estimate; memory utilization may be missing."""
    assert without_gpm(slot(power_mw=90_000, memory=None), 100_000, 500.0) == pytest.approx((0.8, 0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("missing", [slot(power_mw=None), slot(utilization=None)])
def test_slots_without_power_or_utilization(missing: Slot) -> None:
    """They show nothing."""
    assert without_gpm(missing, 100_000, 500.0) is None


@pytest.mark.parametrize(
    ("now_mhz", "highest_mhz", "given_mhz", "expected"),
    [
        (990, 1980, None, 0.5),
        (990, 1980, 1485, 0.75),  # that of a slot
        (990, 1980, 0, 0.5),  # a slot without a clock
        (990, None, None, 1.0),
        (990, 0, None, 1.0),
        (None, 1980, None, 1.0),
        (None, 1980, 1485, 0.75),
    ],
)
def test_relative_clock(now_mhz: int | None, highest_mhz: int | None, given_mhz: int | None, expected: float) -> None:
    """The SM clock over its highest value; 1 if one of them is unknown. Other clocks do not count."""
    reading = Reading(
        GPU,
        clocks_mhz=(("memory", 3201), *([("sm", now_mhz)] if now_mhz is not None else [])),
        max_clocks_mhz=(("memory", 3201), *([("sm", highest_mhz)] if highest_mhz is not None else [])),
    )

    assert relative_clocks(reading, [given_mhz]) == [expected]
