"""Cholesky factors of small symmetric matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from operator import mul

Triangle = list[list[float]]
"""The lower triangle of a matrix."""
TINY = 1e-12
"""Least square of a number on the diagonal of a root, against rounding."""


def root_of(matrix: Triangle) -> Triangle:
    """The Cholesky factor L of a positive definite matrix: L L^T = matrix."""
    root: Triangle = []
    for given in matrix:
        row: list[float] = []
        for number, other in zip(given, root, strict=False):
            row.append((number - sum(map(mul, row, other))) / other[-1])
        row.append(sqrt(max(TINY, given[-1] - sum(map(mul, row, row)))))
        root.append(row)
    return root


def forward(root: Triangle, vector: Sequence[float]) -> list[float]:
    """The solution y of L y = vector."""
    result: list[float] = []
    for row, number in zip(root, vector, strict=True):
        result.append((number - sum(map(mul, row, result))) / row[-1])
    return result


def solve(root: Triangle, vector: Sequence[float]) -> list[float]:
    """The solution x of L L^T x = vector."""
    result = forward(root, vector)
    for i in range(len(root) - 1, -1, -1):
        row = root[i]
        last = result[i] = result[i] / row[-1]
        for j in range(i):
            result[j] -= row[j] * last
    return result
