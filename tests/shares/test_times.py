"""Time on the compute engine: fair shares, and the samples of a state."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, sqrt
from random import Random
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.shares.times import (
    ALIAS,
    FAIR_JITTERY,
    FAIR_STEADY,
    LEAST_ALONE,
    STEADY,
    STRAY,
    any_times,
    engine_times,
    fair_shares,
    steadiness,
)

JITTERY = 100 * STEADY
"""Jitter of a state that is not steady at all."""
ENGINE = st.floats(0.01, 1)
CAPS = st.lists(st.floats(0.03, 1), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("engine", "caps", "expected"),
    [
        (0.9, [1.0, 1.0, 1.0], [0.3, 0.3, 0.3]),
        (0.9, [1.0, 0.1, 1.0], [0.4, 0.1, 0.4]),
        (1.0, [0.2, 0.9, 0.3], [0.2, 0.5, 0.3]),  # with 1/3 each, the first leaves 0.13; then the third leaves 0.1
        (0.9, [0.2, 0.1], [0.6, 0.3]),  # the engine is busier than the caps allow
        (0.7, [0.1], [0.7]),
    ],
)
def test_fair_shares(engine: float, caps: list[float], expected: list[float]) -> None:
    """Equal parts; what a cap leaves goes to the others; too low caps are raised in proportion."""
    assert fair_shares(engine, caps) == pytest.approx(expected)


@given(ENGINE, CAPS)
def test_any_fair_shares_fill_the_engine(engine: float, caps: list[float]) -> None:
    """They add up to its busy time, below a cap all are equal, and none is above its cap if the caps allow that."""
    shares = fair_shares(engine, caps)

    assert sum(shares) == pytest.approx(engine)
    if sum(caps) > engine:
        assert all(share <= cap for share, cap in zip(shares, caps, strict=True))
        most = max(shares)
        assert all(share == pytest.approx(min(cap, most)) for share, cap in zip(shares, caps, strict=True))


def test_any_division_has_the_variance_of_random_divisions() -> None:
    """Three processes: the parts between two random points on a line."""
    random = Random(1)
    divisions = [sorted([random.uniform(0, 0.6), random.uniform(0, 0.6)]) for _ in range(20_000)]
    parts = [low for low, _ in divisions]

    times, variances = any_times(0.6, [1.0] * 3)

    assert times == pytest.approx([fmean(parts)] * 3, rel=0.02)
    assert variances == pytest.approx([pvariance(parts)] * 3, rel=0.03)


@pytest.mark.parametrize(("count", "variance"), [(1, 0), (2, 1 / 12), (3, 1 / 18)])
def test_variance_of_any_division(count: int, variance: float) -> None:
    """That of a uniform distribution between 0 and 1 for two processes, of a Dirichlet distribution for more."""
    assert any_times(1.0, [1.0] * count)[1] == pytest.approx([variance] * count)


def test_steadiness_falls_from_1_to_0() -> None:
    """1/2 at STEADY; no overflow beyond."""
    values = [steadiness(STEADY * factor) for factor in (0, 0.5, 1, 1.5, 2, 1e6)]

    assert values == sorted(values, reverse=True)
    assert values[0] > 0.98
    assert values[2] == 0.5
    assert values[4] < 0.02
    assert 0 <= values[5] < 1e-9


def two_times(counts: tuple[float, float], engine: float, fair: float, weight: float, alias: float) -> list[float]:
    """Mean and variance of the time of the first process, by the equations of `engine_times` for n = 2.

    The sets: the first alone, the second alone, both with the fair share `fair` of the first (of a busy time of 1).
    """
    first, total = counts[0], sum(counts)
    effective = total / (1 + alias * total)
    part, other = first / total, 1 - first / total
    both = (effective * part + weight * fair) / (effective + weight)
    logs = [
        effective * (part * log(1 - STRAY / 2) + other * log(STRAY / 2)),
        effective * (part * log(STRAY / 2) + other * log(1 - STRAY / 2)),
        effective * (part * log((1 - STRAY) * both + STRAY / 2) + other * log((1 - STRAY) * (1 - both) + STRAY / 2))
        - 0.5 * log((effective + weight) / weight),
    ]
    likelihoods = [exp(value) for value in logs]
    likelihoods[1] *= other >= LEAST_ALONE
    alone, _, together = (likelihood / sum(likelihoods) for likelihood in likelihoods)
    mean = alone + together * both
    within = together * both * (1 - both) / (effective + weight + 1)
    between = alone * 1 + together * both * both - mean * mean
    return [engine * mean, engine**2 * (within + between)]


@pytest.mark.parametrize("counts", [(8.0, 2.0), (1.0, 1.0), (60.0, 3.0), (0.3, 0.1)])
@pytest.mark.parametrize(
    ("engine", "cap", "fair"),
    [(1.0, 1.0, 0.5), (0.6, 1.0, 0.5), (0.8, 0.2, 0.25)],
)
def test_times_of_two_processes(counts: tuple[float, float], engine: float, cap: float, fair: float) -> None:
    """By the equations, in a jittery state; fair shares with a cap have the weight that they have in a steady state."""
    weight = FAIR_STEADY if cap < 1 else FAIR_JITTERY

    times, variances = engine_times(counts, JITTERY, engine, [cap, 1.0])

    expected = two_times(counts, engine, fair, weight, alias=0.0)
    assert [times[0], variances[0]] == pytest.approx(expected)
    assert variances[1] == pytest.approx(variances[0])


def test_times_in_a_steady_state() -> None:
    """The same equations with more aliasing and a greater weight of fair shares, as far as the state is steady."""
    steady = 1 / (1 + exp(-4))
    weight = exp((1 - steady) * log(FAIR_JITTERY) + steady * log(FAIR_STEADY))

    times, variances = engine_times([7.0, 2.0], 0.0, 0.9, [1.0, 1.0])

    assert [times[0], variances[0]] == pytest.approx(two_times((7.0, 2.0), 0.9, 0.5, weight, ALIAS * steady))


def test_times_of_three_processes() -> None:
    """By the equations for the sets 1, 2, 12 and 123, of ten samples in a jittery state, with q = 1 / |S|."""
    counts, k = [5.0, 3.0, 2.0], FAIR_JITTERY
    all_shares, logs = [], []
    for members in [(0,), (1,), (0, 1), (0, 1, 2)]:
        size, whole = len(members), sum(counts[i] for i in members) + k
        shares = [(counts[i] + k / size) / whole if i in members else 0.0 for i in range(3)]
        named = sum(n * log((1 - STRAY) * share + STRAY / 3) for n, share in zip(counts, shares, strict=True))
        all_shares.append(shares)
        logs.append(named - (size - 1) / 2 * log(whole / k))
    weights = [exp(value) / sum(map(exp, logs)) for value in logs]

    times, _ = engine_times(counts, JITTERY, 0.7, [1.0] * 3)

    expected = [0.7 * sum(w * shares[i] for w, shares in zip(weights, all_shares, strict=True)) for i in range(3)]
    assert times == pytest.approx(expected)


def test_a_process_without_samples_has_no_time() -> None:
    """A hundred samples name the other one."""
    times, variances = engine_times([0.0, 100.0], JITTERY, 0.8, [1.0, 1.0])

    assert times == pytest.approx([0, 0.8], abs=1e-6)
    assert variances == pytest.approx([0, 0], abs=1e-6)


def test_few_stray_samples_do_not_make_a_process_work() -> None:
    """Two of a hundred may belong to a neighbouring slot, twenty do not."""
    stray, _ = engine_times([2.0, 98.0], JITTERY, 1.0, [1.0, 1.0])
    certain, _ = engine_times([20.0, 80.0], JITTERY, 1.0, [1.0, 1.0])

    assert stray[0] < 0.01
    assert certain[0] == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("jitter", [0.0, STEADY, JITTERY])
def test_equal_samples_mean_equal_times(jitter: float) -> None:
    """Of two processes."""
    times, variances = engine_times([4.0, 4.0], jitter, 0.8, [1.0, 1.0])

    assert times == pytest.approx([0.4, 0.4])
    assert variances[0] == pytest.approx(variances[1])


def test_steady_states_are_shared_fairly() -> None:
    """40 % of the samples are rather half of the time if samples alias; in a jittery state they are 40 %."""
    steady, _ = engine_times([40.0, 60.0], 0.0, 1.0, [1.0, 1.0])
    jittery, _ = engine_times([40.0, 60.0], JITTERY, 1.0, [1.0, 1.0])

    assert 0.45 < steady[0] < 0.5
    assert jittery[0] == pytest.approx(0.4, abs=0.01)


def test_caps_limit_the_fair_share() -> None:
    """A process that waits for its host has less than half, unless many samples contradict that."""
    uncapped, _ = engine_times([5.0, 5.0], JITTERY, 1.0, [1.0, 1.0])
    few, _ = engine_times([5.0, 5.0], JITTERY, 1.0, [0.1, 1.0])
    many, _ = engine_times([500.0, 500.0], JITTERY, 1.0, [0.1, 1.0])

    assert uncapped[0] == pytest.approx(0.5)
    assert few[0] < 0.35
    assert 0.4 < many[0] < 0.5


@pytest.mark.parametrize("jitter", [0.0, JITTERY])
def test_more_samples_mean_less_variance(jitter: float) -> None:
    """Of the same proportions."""
    variances = [engine_times([3.0 * n, 2.0 * n], jitter, 1.0, [1.0, 1.0])[1][0] for n in (1, 3, 10, 30)]

    assert variances == sorted(variances, reverse=True)


def test_the_variance_is_that_of_draws() -> None:
    """Jittery samples do not alias: 20 draws of a time of 0.4 have about the sd sqrt(0.4 x 0.6 / 20)."""
    _, variances = engine_times([8.0, 12.0], JITTERY, 1.0, [1.0, 1.0])

    assert 0.8 * sqrt(0.4 * 0.6 / 20) < sqrt(variances[0]) < 1.3 * sqrt(0.4 * 0.6 / 20)


COUNTS = st.lists(st.integers(0, 5000), min_size=2, max_size=7, unique=True)
"""Hundredths of samples; processes with equal numbers could be permuted."""
JITTER = st.floats(0, 0.04)


@given(COUNTS, JITTER, ENGINE, st.data())
def test_any_times_fill_the_engine(counts: list[int], jitter: float, engine: float, data: st.DataObject) -> None:
    """They add up to its busy time, none is negative, and the variance of a part is that of 0 or 1 at most."""
    caps = data.draw(st.lists(st.floats(0.03, 1), min_size=len(counts), max_size=len(counts)))

    times, variances = engine_times([count / 100 for count in counts], jitter, engine, caps)

    assert sum(times) == pytest.approx(engine)
    assert min(times) >= 0
    for time, variance in zip(times, variances, strict=True):
        assert 0 <= variance <= time * (engine - time) + 1e-9


@given(COUNTS, JITTER, ENGINE, st.data())
def test_the_order_of_processes_does_not_matter(
    counts: list[int], jitter: float, engine: float, data: st.DataObject
) -> None:
    """Permuted processes have permuted times."""
    caps = data.draw(st.lists(st.floats(0.03, 1), min_size=len(counts), max_size=len(counts)))
    order = data.draw(st.permutations(range(len(counts))))

    def of(places: Sequence[int]) -> tuple[list[float], list[float]]:
        return engine_times([counts[i] / 100 for i in places], jitter, engine, [caps[i] for i in places])

    times, variances = of(range(len(counts)))
    permuted_times, permuted_variances = of(order)

    assert permuted_times == pytest.approx([times[i] for i in order], abs=1e-9)
    assert permuted_variances == pytest.approx([variances[i] for i in order], abs=1e-9)


@pytest.mark.parametrize("count", [3, 13, 16, 200])
def test_many_equal_processes(count: int) -> None:
    """Processes with equally many samples have equal times, however many they are."""
    times, _ = engine_times([5.0] * count, 0.0, 1.0, [1.0] * count)

    assert times == pytest.approx([1 / count] * count)
