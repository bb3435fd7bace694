"""The Kalman update of one interval, against the conditional distribution of all unknowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt
from random import Random
from statistics import pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.shares.kalman import (
    LEAST_ERROR,
    LEAST_POWER,
    LEAST_SHARE,
    POWER_SD,
    Observation,
    share_errors,
    update,
)
from gpuledger.shares.regression import Program
from gpuledger.shares.units import ALL_UNITS, GPM, POWER, Population, Units

Matrix = list[list[float]]
COUNT = len(ALL_UNITS)


def product(left: Matrix, right: Matrix) -> Matrix:
    """The matrix product."""
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def transposed(matrix: Matrix) -> Matrix:
    """Rows for columns."""
    return [list(column) for column in zip(*matrix, strict=True)]


def quotient(matrix: Matrix, right: Matrix) -> Matrix:
    """matrix^-1 right, by Gauss-Jordan elimination with pivots."""
    size = len(matrix)
    rows = [[*row, *others] for row, others in zip(matrix, right, strict=True)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda j: abs(rows[j][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [number / rows[i][i] for number in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [number - rows[j][i] * own for number, own in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


class Conditional:
    """The distribution of x and of x_i deviation_i, all unknowns in one vector, given the observations.

    A priori cov(x) = diag v - v v^T / sum v, var(x_i deviation_iu) = x_i^2 V_iu, and nothing else is correlated.
    """

    def __init__(self, seen: Observation, programs: Sequence[Program], population: Population) -> None:
        count, v = len(programs), seen.variances
        size = count + count * COUNT
        prior: Matrix = [[0.0] * size for _ in range(size)]
        observe: Matrix = [[0.0] * size for _ in ALL_UNITS]
        self.to_power: Matrix = [[0.0] * size for _ in programs]
        for i, program in enumerate(programs):
            for j in range(count):
                prior[i][j] = (v[i] if i == j else 0.0) - (v[i] * v[j] / sum(v) if any(v) else 0.0)
            self.to_power[i][i] = population.power(program.phi)
            for unit in ALL_UNITS:
                place = count + i * COUNT + unit
                prior[place][place] = seen.squares[i] * program.variance[unit]
                observe[unit][i], observe[unit][place] = program.phi[unit], 1.0
                self.to_power[i][place] = population.slopes[unit]
        mean = [[number] for number in [*seen.times, *[0.0] * (count * COUNT)]]
        noise = [*population.measured[:POWER], (POWER_SD * max(LEAST_POWER, seen.power) / population.sd[POWER]) ** 2]
        covariance = product(product(observe, prior), transposed(observe))
        for unit in ALL_UNITS:
            covariance[unit][unit] += noise[unit]
        expected = product(observe, mean)
        residual = [[number - e] for number, (e,) in zip(seen.observed, expected, strict=True)]
        weighted = quotient(covariance, residual)
        cross = product(prior, transposed(observe))
        reduced = product(cross, quotient(covariance, transposed(cross)))
        self.mean = [m + s for (m,), (s,) in zip(mean, product(cross, weighted), strict=True)]
        self.covariance = [[p - r for p, r in zip(*rows, strict=True)] for rows in zip(prior, reduced, strict=True)]
        self.times = self.mean[:count]
        self.powers = [number for (number,) in product(self.to_power, [[number] for number in self.mean])]
        self.surprise = product(transposed(residual), weighted)[0][0] / COUNT
        self.residual = [number for (number,) in residual]
        self.residual_variances = [covariance[unit][unit] for unit in ALL_UNITS]

    def power_variances(self) -> list[float]:
        """Of each process."""
        covariance = product(product(self.to_power, self.covariance), transposed(self.to_power))
        return [covariance[i][i] for i in range(len(covariance))]


def example(count: int, seed: int, *, time_sd: float = 0.1, spread: float = 0.1) -> tuple[Observation, list[Program]]:
    """Random programs, and an interval with random deviations of times and programs."""
    random = Random(f"{count} {seed}")
    programs = [
        Program(
            [random.gauss(0, 0.5) for _ in ALL_UNITS],
            [spread * random.uniform(0.2, 1) for _ in ALL_UNITS],
        )
        for _ in range(count)
    ]
    times = [random.uniform(0.2, 0.4) for _ in programs]
    variances = [(time_sd * random.uniform(0.5, 1)) ** 2 for _ in programs]
    moved = [time + random.gauss(0, sqrt(v) / 2) for time, v in zip(times, variances, strict=True)]
    observed = [
        sum(
            time * (program.phi[unit] + random.gauss(0, sqrt(program.variance[unit]) / 2))
            for time, program in zip(moved, programs, strict=True)
        )
        for unit in ALL_UNITS
    ]
    squares = [time * time for time in times]
    return Observation(times, variances, squares, observed, power=sum(times) * 0.5), programs


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 3])
def test_times_and_powers_are_conditional_means(count: int, seed: int) -> None:
    """Of all times and deviations together, given activity and power; so are the residual and its variances."""
    seen, programs = example(count, seed)
    expected = Conditional(seen, programs, GPM)
    assert min(expected.powers) > 0.02, "the lower limit would hide an error"

    estimate = update(seen, programs, GPM)

    assert estimate.times == pytest.approx(expected.times, rel=1e-5)
    assert estimate.powers == pytest.approx(expected.powers, rel=1e-5)
    assert estimate.residual == pytest.approx(expected.residual)
    assert estimate.residual_variances == pytest.approx(expected.residual_variances, rel=1e-5)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("time_sd", "spread"), [(0.1, 0.0), (0.0, 0.1)])
def test_errors_are_conditional_variances(count: int, time_sd: float, spread: float) -> None:
    """Of the powers, if only the times are uncertain, or only the programs."""
    seen, programs = example(count, 1, time_sd=time_sd, spread=spread)
    expected = Conditional(seen, programs, GPM)
    inflation = max(1.0, expected.surprise)

    estimate = update(seen, programs, GPM)

    variances = [inflation * variance for variance in expected.power_variances()]
    assert estimate.errors == pytest.approx(share_errors(expected.powers, variances), rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_of_times_is_kept(seed: int) -> None:
    """The busy time of the engine is measured; only its division is uncertain."""
    seen, programs = example(3, seed)

    assert sum(update(seen, programs, GPM).times) == pytest.approx(sum(seen.times))


A = Program([1.0, -0.5, 2.0, 0.0, 0.5, 0.0, -1.0, 1.0], [0.0] * COUNT)
B = Program([-1.0, 1.5, -0.5, 0.0, 0.0, 0.0, 2.0, -0.5], [0.0] * COUNT)
"""Programs that always do the same."""


def mixture(first: float, second: float) -> Units:
    """What A and B do in these times."""
    return [first * a + second * b for a, b in zip(A.phi, B.phi, strict=True)]


def test_wrong_times_are_corrected() -> None:
    """The activity is that of 0.2 and 0.7; the samples said 0.7 and 0.2."""
    seen = Observation([0.7, 0.2], [0.1, 0.1], [0.49, 0.04], mixture(0.2, 0.7), power=0.4)

    estimate = update(seen, [A, B], GPM)

    assert estimate.times == pytest.approx([0.2, 0.7], abs=1e-3)
    assert estimate.powers == pytest.approx([0.2 * GPM.power(A.phi), 0.7 * GPM.power(B.phi)], rel=0.01)


def test_expected_activity_changes_nothing() -> None:
    """The residual is 0, so times and powers are those expected; only the error is reduced."""
    programs = [Program(program.phi, [0.3] * COUNT) for program in (A, B)]
    seen = Observation([0.6, 0.3], [0.02, 0.02], [0.36, 0.09], mixture(0.6, 0.3), power=0.4)

    estimate = update(seen, programs, GPM)

    assert estimate.times == pytest.approx([0.6, 0.3])
    assert estimate.powers == pytest.approx([0.6 * GPM.power(A.phi), 0.3 * GPM.power(B.phi)])
    assert estimate.errors[0] < sqrt(0.02) / 0.9


def test_equal_programs_keep_their_times() -> None:
    """Activity and power do not tell them apart; the rest of the activity is divided like squared times."""
    programs = [Program(A.phi, [0.5] * COUNT)] * 2
    observed = [0.9 * number + 0.2 for number in A.phi]
    seen = Observation([0.6, 0.3], [0.05, 0.05], [0.36, 0.09], observed, power=0.4)

    estimate = update(seen, programs, GPM)

    more = [power - time * GPM.power(A.phi) for power, time in zip(estimate.powers, seen.times, strict=True)]
    assert estimate.times == pytest.approx([0.6, 0.3])
    assert more[0] == pytest.approx(4 * more[1])
    assert more[0] > 0.01


def test_surplus_power_goes_to_the_program_that_may_deviate() -> None:
    """A program that was observed for long does not draw more than usual; a new one may."""
    programs = [Program([0.0] * COUNT, [0.001] * COUNT), Program([0.0] * COUNT, [2.0] * COUNT)]
    seen = Observation([0.4, 0.4], [0.0, 0.0], [0.16, 0.16], [0.0] * POWER + [0.8], power=0.5)

    estimate = update(seen, programs, GPM)

    usual = 0.4 * GPM.average
    assert estimate.powers[0] == pytest.approx(usual, rel=0.01)
    assert estimate.powers[1] > 1.1 * usual


@given(st.lists(st.floats(-5, 5), min_size=COUNT, max_size=COUNT))
def test_certain_times_and_programs_are_kept(observed: list[float]) -> None:
    """Whatever is observed, if nothing is uncertain."""
    seen = Observation([0.6, 0.3], [0.0, 0.0], [0.36, 0.09], observed, power=0.4)

    estimate = update(seen, [A, B], GPM)

    assert estimate.times == [0.6, 0.3]
    assert estimate.powers == pytest.approx([0.6 * GPM.power(A.phi), 0.3 * GPM.power(B.phi)])
    assert estimate.errors == [LEAST_ERROR] * 2


@pytest.mark.parametrize("power", [0.0, -0.1])
def test_without_power_the_expected_powers_are_returned(power: float) -> None:
    """There is nothing to divide, and no residual to learn from."""
    seen, programs = example(3, 1)

    estimate = update(replace(seen, power=power), programs, GPM)

    expected = [time * GPM.power(program.phi) for time, program in zip(seen.times, programs, strict=True)]
    assert estimate.times == seen.times
    assert estimate.powers == expected
    assert estimate.residual == estimate.residual_variances == []


@pytest.mark.parametrize(("deviations", "inflation"), [(0.0, 1.0), (2.0, 1.0), (4.0, 2.0), (8.0, 8.0)])
def test_surprise_inflates_the_errors(deviations: float, inflation: float) -> None:
    """A unit of 8 is off by k standard deviations: k^2 / 8 times the expected variance, if that is more.

    The unit draws no power and is used alike by both programs, so times and powers do not change.
    """
    unit = 3
    population = Population([*GPM.usual[:unit], 0.0, *GPM.usual[unit + 1 :]], GPM.mean, GPM.sd)
    programs = [Program(program.phi, [0.3] * COUNT) for program in (A, B)]
    usual = Observation([0.5, 0.4], [0.02, 0.02], [0.25, 0.16], mixture(0.5, 0.4), power=0.4)
    before = update(usual, programs, population)
    observed = list(usual.observed)
    observed[unit] += deviations * sqrt(before.residual_variances[unit])

    after = update(replace(usual, observed=observed), programs, population)

    assert after.powers == pytest.approx(before.powers)
    variances = [(error**2 - LEAST_ERROR**2) * inflation for error in before.errors]
    assert after.errors == pytest.approx([sqrt(variance + LEAST_ERROR**2) for variance in variances])


@given(
    st.lists(st.floats(-20, 20), min_size=COUNT, max_size=COUNT),
    st.floats(0.001, 1),
    st.lists(st.floats(0, 0.2), min_size=3, max_size=3),
)
def test_powers_are_not_negative(observed: list[float], power: float, variances: list[float]) -> None:
    """A process draws at least a hundredth of what its time and program mean; times still add up."""
    seen, programs = example(3, 2)

    estimate = update(replace(seen, observed=observed, power=power, variances=variances), programs, GPM)

    for drawn, time, program in zip(estimate.powers, seen.times, programs, strict=True):
        assert drawn >= LEAST_SHARE * time * GPM.power(program.phi) * (1 - 1e-9)
    assert all(LEAST_ERROR <= error < inf for error in estimate.errors)
    assert sum(estimate.times) == pytest.approx(sum(seen.times), abs=1e-4)


def test_a_power_below_zero_is_limited() -> None:
    """The program that may deviate would have to return power: it has a hundredth of what its time means."""
    programs = [Program([0.0] * COUNT, [0.001] * COUNT), Program([0.0] * COUNT, [2.0] * COUNT)]
    seen = Observation([0.4, 0.2], [0.0, 0.0], [0.16, 0.04], [0.0] * POWER + [-20.0], power=0.1)

    assert update(seen, programs, GPM).powers[1] == pytest.approx(LEAST_SHARE * 0.2 * GPM.average)


def test_errors_of_shares_are_those_of_independent_powers() -> None:
    """First order: small deviations of three powers, drawn at random."""
    random, powers, sds = Random(1), [0.3, 0.15, 0.05], [0.006, 0.004, 0.002]
    draws = [[random.gauss(power, sd) for power, sd in zip(powers, sds, strict=True)] for _ in range(20_000)]

    errors = share_errors(powers, [sd * sd for sd in sds])

    for i, error in enumerate(errors):
        spread = pstdev([draw[i] / sum(draw) for draw in draws])
        assert sqrt(error**2 - LEAST_ERROR**2) == pytest.approx(spread, rel=0.03)


def test_errors_of_two_shares_are_equal() -> None:
    """One has what the other has not: s (1 - s) times the relative deviations of both, and LEAST_ERROR."""
    first, second = share_errors([3.0, 1.0], [0.3**2, 0.2**2])

    assert first == pytest.approx(second)
    assert first == pytest.approx(sqrt((0.75 * 0.25) ** 2 * (0.1**2 + 0.2**2) + LEAST_ERROR**2))


def test_errors_without_power() -> None:
    """No process draws power: the least error."""
    assert share_errors([0.0, 0.0], [0.1, 0.1]) == [LEAST_ERROR] * 2
