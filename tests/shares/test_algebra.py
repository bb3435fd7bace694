"""Cholesky factors and the solutions of linear equations, by the equations themselves."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from random import Random

import pytest

from gpuledger.shares.algebra import TINY, Triangle, forward, root_of, solve

Matrix = list[list[float]]
SIZES = [1, 2, 3, 5, 8]


def positive_definite(size: int) -> Matrix:
    """B B^T + I / 10 with random numbers B."""
    random = Random(size)
    factors = [[random.gauss(0, 1) for _ in range(size)] for _ in range(size)]
    matrix = [[dot(row, other) for other in factors] for row in factors]
    for i in range(size):
        matrix[i][i] += 0.1
    return matrix


def lower(matrix: Matrix) -> Triangle:
    """The lower triangle."""
    return [row[: i + 1] for i, row in enumerate(matrix)]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    """The product of two vectors; a triangle's row ends early."""
    return sum(x * y for x, y in zip(left, right, strict=False))


def vector(size: int) -> list[float]:
    """Random numbers."""
    random = Random(100 + size)
    return [random.gauss(0, 1) for _ in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_the_product_of_the_factors_is_the_matrix(size: int) -> None:
    """L L^T = A, with a positive diagonal."""
    matrix = positive_definite(size)

    root = root_of(lower(matrix))

    for row, expected in zip(root, lower(matrix), strict=True):
        assert [dot(row, other) for other in root[: len(row)]] == pytest.approx(expected)
    assert all(row[-1] > 0 for row in root)


@pytest.mark.parametrize("size", SIZES)
def test_forward_solves_for_the_factor(size: int) -> None:
    """L y = v."""
    root, right = root_of(lower(positive_definite(size))), vector(size)

    solution = forward(root, right)

    assert [dot(row, solution) for row in root] == pytest.approx(right)


@pytest.mark.parametrize("size", SIZES)
def test_solve_solves_for_the_matrix(size: int) -> None:
    """A x = v, and the vector is not changed."""
    matrix, right = positive_definite(size), vector(size)

    solution = solve(root_of(lower(matrix)), right)

    assert [dot(row, solution) for row in matrix] == pytest.approx(right)
    assert right == vector(size)


@pytest.mark.parametrize("size", SIZES)
def test_forward_gives_the_quadratic_form_of_the_inverse(size: int) -> None:
    """v^T A^-1 v = |y|^2 with L y = v: the variance that an observation explains."""
    root, right = root_of(lower(positive_definite(size))), vector(size)

    half = forward(root, right)

    assert dot(half, half) == pytest.approx(dot(right, solve(root, right)))


def test_a_singular_matrix_is_solved_for_a_vector_in_its_range() -> None:
    """Three equal rows: x1 + x2 + x3 = 5."""
    root = root_of(lower([[1.0] * 3] * 3))

    assert sum(solve(root, [5.0] * 3)) == pytest.approx(5)


@pytest.mark.parametrize("shift", [-1e-13, 0.0, 1e-13])
def test_rounding_errors_in_a_singular_matrix_are_harmless(shift: float) -> None:
    """The diagonal is too small by a rounding error: the factor has a least diagonal, and solutions are finite."""
    matrix = [[1.0, 1.0, 2.0], [1.0, 1.0 + shift, 2.0], [2.0, 2.0, 4.0 + shift]]

    root = root_of(lower(matrix))

    assert min(row[-1] ** 2 for row in root) >= TINY * (1 - 1e-9)
    assert all(map(isfinite, solve(root, [1.0, -1.0, 1.0])))


def test_no_equations_have_no_solution() -> None:
    """No process is on the GPU."""
    assert solve(root_of([]), []) == []
