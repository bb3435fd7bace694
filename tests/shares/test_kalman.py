"""The Kalman update with non-negative amounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.shares.kalman import solve, square_root, update

NUMBER = st.floats(0, 1)
PRIORS = st.lists(NUMBER, min_size=1, max_size=6)
COLUMN = st.lists(NUMBER, min_size=5, max_size=5)


def whole(columns: list[list[float]], amounts: list[float]) -> list[float]:
    """What these amounts add up to."""
    return [sum(a * column[place] for a, column in zip(amounts, columns, strict=True)) for place in range(5)]


@given(PRIORS, st.data())
def test_a_sure_guess_stays(amounts: list[float], data: st.DataObject) -> None:
    """Whatever is measured, if nothing of it can be believed."""
    columns = [data.draw(COLUMN) for _ in amounts]

    estimate = update(data.draw(COLUMN), [1e12] * 5, columns, amounts, [0.01] * len(amounts))

    assert estimate.amounts == pytest.approx(amounts, abs=1e-6)


@given(PRIORS, st.data())
def test_a_right_guess_stays(amounts: list[float], data: st.DataObject) -> None:
    """The measurement has nothing to add, however sure it is and however alike the columns are."""
    columns = [data.draw(COLUMN) for _ in amounts]

    estimate = update(whole(columns, amounts), [1e-4] * 5, columns, amounts, [0.1] * len(amounts))

    assert estimate.amounts == pytest.approx(amounts, abs=1e-6)


@given(PRIORS, st.data())
def test_nothing_is_below_zero(amounts: list[float], data: st.DataObject) -> None:
    """For any measurement, the only thing there is included."""
    columns = [data.draw(COLUMN) for _ in amounts]

    estimate = update(data.draw(COLUMN), [1e-3] * 5, columns, amounts, [0.1] * len(amounts))

    assert min(estimate.amounts) >= 0


def test_a_wrong_guess_is_put_right() -> None:
    """Two that differ: 0.2 and 0.7 are found though 0.9 and 0.1 were guessed."""
    columns = [[0.9, 0.1, 0.9, 0.2, 0.0], [1.0, 0.8, 0.0, 0.9, 0.0]]

    estimate = update(whole(columns, [0.2, 0.7]), [1e-6] * 5, columns, [0.9, 0.1], [0.1, 0.1])

    assert estimate.amounts == pytest.approx([0.2, 0.7], abs=1e-3)


def test_of_two_alike_only_the_sum_is_found() -> None:
    """The difference stays as guessed."""
    columns = [[0.9, 0.1, 0.9, 0.2, 0.0]] * 2

    estimate = update(whole(columns, [0.5, 0.5]), [1e-6] * 5, columns, [0.2, 0.6], [0.1, 0.1])

    assert estimate.amounts == pytest.approx([0.3, 0.7], abs=1e-3)


def test_what_is_not_in_it_is_left_out() -> None:
    """A measurement that would need less than none of one thing: none of it, and the other as it fits best."""
    columns = [[1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 0.0]]

    estimate = update([0.2, 0.6, 0.0, 0.0, 0.0], [1e-6] * 5, columns, [0.5, 0.5], [0.1, 0.1])

    assert estimate.amounts == pytest.approx([0.0, 0.4], abs=1e-2)
    assert estimate.variances[0] == 0


def test_nothing_is_above_the_whole_time() -> None:
    """Two processes alike but in power: the rest that one may not have is the other's, and both stay uncertain."""
    columns, noise = [[1.0, 0.1], [1.0, 0.5]], [1e-4, 1e-4]

    free = update([1.0, 0.2], noise, columns, [0.5, 0.5], [0.09, 0.09])
    limited = update([1.6, 0.28], noise, columns, [0.5, 0.5], [0.09, 0.09])

    assert free.amounts == pytest.approx([0.75, 0.25], abs=0.01)
    assert limited.amounts[0] == 1.0  # 1.3 without a limit
    assert 0.3 < limited.amounts[1] < 0.6
    assert limited.variances == pytest.approx([0.3**2, 0.09])


def test_a_measurement_makes_surer() -> None:
    """By nearly all of the doubt, of what it sees alone; by nothing, of what it does not see."""
    estimate = update([0.5, 0.0], [1e-6, 1e-6], [[1.0, 0.0], [0.0, 0.0]], [0.1, 0.1], [0.09, 0.09])

    assert sum(part**2 for part in estimate.whitened([0.09, 0.0])) == pytest.approx(0.09, rel=1e-3)
    assert estimate.whitened([0.0, 0.0]) == [0.0, 0.0]


@given(st.lists(COLUMN, min_size=5, max_size=5), COLUMN)
def test_solves_equations(rows: list[list[float]], right: list[float]) -> None:
    """Of any matrix that is made as ours are: times the solution, it is the right side."""
    matrix = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in rows] for a in rows]
    for place in range(5):
        matrix[place][place] += 1e-3
    root = square_root([row[: i + 1] for i, row in enumerate(matrix)])

    solution = solve(root, right[:5])

    for row, number in zip(matrix, right, strict=False):
        assert sum(x * y for x, y in zip(row, solution, strict=True)) == pytest.approx(number, abs=1e-6)
