"""One Kalman update with amounts within bounds: the observations of an interval are z = H a + noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import mul

Vector = Sequence[float]
Triangle = list[list[float]]
"""The lower triangle of a matrix."""
TINY = 1e-12
"""Least square of a number on the diagonal of a root, against rounding."""
WHOLE = 1.0
"""Largest amount: all of the time."""
WHOLE_SD = 0.3
"""Standard deviation of an amount that is fixed at WHOLE: it may be anywhere below, which is about 1 / sqrt(12)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated amounts and what is needed for their variance."""

    amounts: list[float]
    columns: Sequence[Vector]
    """H, by column."""
    variances: list[float]
    """Diagonal of the prior covariance P; 0 for amounts fixed at zero."""
    root: Triangle
    """Cholesky factor of S = H P H^T + R, the covariance of the observations."""

    def residuals(self, observed: Vector) -> list[float]:
        """Observed minus estimated: z - H a."""
        rows = zip(*self.columns, strict=True)
        return [number - sum(map(mul, row, self.amounts)) for number, row in zip(observed, rows, strict=True)]

    def whitened(self, vector: Vector) -> list[float]:
        """L^-1 v, S = L L^T. The observations reduce the variance of a function with gradient g by |L^-1 H P g|^2."""
        return forward(self.root, vector)


def update(observed: Vector, noise: Vector, columns: Sequence[Vector], prior: Vector, variances: Vector) -> Estimate:
    """Kalman update with 0 <= a <= WHOLE: a = prior + P H^T S^-1 (z - H prior), S = H P H^T + R.

    `noise` and `variances` are the diagonals of R and P. The amount that is farthest outside is fixed at its bound and
    the update repeated until all amounts are inside. S has the size of the observations, so the cost is linear in the
    number of processes.
    """
    free, left = list(variances), list(variances)
    start = list(prior)
    rows = list(zip(*columns, strict=True))
    while True:
        covariance: Triangle = []
        for i, row in enumerate(rows):
            weighted = list(map(mul, row, free))
            covariance.append([sum(map(mul, weighted, other)) for other in rows[: i + 1]])
            covariance[i][i] += noise[i]
        root = square_root(covariance)
        gain = solve(root, [m - sum(map(mul, row, start)) for m, row in zip(observed, rows, strict=True)])
        amounts = [
            amount + variance * sum(map(mul, column, gain)) if variance else amount
            for amount, variance, column in zip(start, free, columns, strict=True)
        ]
        outside = [max(-amount, amount - WHOLE) for amount in amounts]
        farthest = max(range(len(amounts)), key=outside.__getitem__)
        if outside[farthest] <= 0:
            return Estimate(amounts=amounts, columns=columns, variances=left, root=root)
        start[farthest], left[farthest] = (0.0, 0.0) if amounts[farthest] < 0 else (WHOLE, WHOLE_SD**2)
        free[farthest] = 0.0


def square_root(matrix: Triangle) -> Triangle:
    """The Cholesky factor L of a positive definite matrix: L L^T = matrix."""
    root: Triangle = []
    for given in matrix:
        row: list[float] = []
        for number, other in zip(given, root, strict=False):
            row.append((number - sum(map(mul, row, other))) / other[-1])
        row.append(sqrt(max(TINY, given[-1] - sum(map(mul, row, row)))))
        root.append(row)
    return root


def forward(root: Triangle, vector: Vector) -> list[float]:
    """The solution y of L y = vector."""
    result: list[float] = []
    for row, number in zip(root, vector, strict=True):
        result.append((number - sum(map(mul, row, result))) / row[-1])
    return result


def solve(root: Triangle, vector: Vector) -> list[float]:
    """The solution x of L L^T x = vector."""
    result = forward(root, vector)
    for i in range(len(root) - 1, -1, -1):
        row = root[i]
        last = result[i] = result[i] / row[-1]
        for j in range(i):
            result[j] -= row[j] * last
    return result
