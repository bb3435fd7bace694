"""One Kalman update with amounts within bounds: the observations of an interval are z = H a + noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

Vector = Sequence[float]
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
    inverse: list[list[float]]
    """S^-1, where S = H P H^T + R is the covariance of the observations."""

    def residuals(self, observed: Vector) -> list[float]:
        """Observed minus estimated: z - H a."""
        rows = zip(*self.columns, strict=True)
        return [number - sum(map(mul, row, self.amounts)) for number, row in zip(observed, rows, strict=True)]

    def variance_reduction(self, gradient: Vector) -> float:
        """g^T S^-1 g: how much the observations reduce the variance of a function with gradient g."""
        product: list[float] = [sum(map(mul, row, gradient)) for row in self.inverse]
        return float(sum(map(mul, gradient, product)))


def update(observed: Vector, noise: Vector, columns: Sequence[Vector], prior: Vector, variances: Vector) -> Estimate:
    """Kalman update with 0 <= a <= WHOLE: a = prior + P H^T S^-1 (z - H prior), S = H P H^T + R.

    `noise` and `variances` are the diagonals of R and P. The amount that is farthest outside is fixed at its bound and
    the update repeated until all amounts are inside. S has the size of the observations, so the cost is linear in the
    number of processes.
    """
    free, left = list(variances), list(variances)
    start = list(prior)
    while True:
        rows = list(zip(*columns, strict=True))
        covariance: list[list[float]] = []
        for i, row in enumerate(rows):
            weighted = list(map(mul, row, free))
            covariance.append([sum(map(mul, weighted, other)) for other in rows[: i + 1]])
            covariance[i][i] += noise[i]
        inverse = invert(covariance)
        innovation = [m - sum(map(mul, row, start)) for m, row in zip(observed, rows, strict=True)]
        gain = [sum(map(mul, row, innovation)) for row in inverse]
        amounts = [
            amount + variance * sum(map(mul, column, gain)) if variance else amount
            for amount, variance, column in zip(start, free, columns, strict=True)
        ]
        outside = [max(-amount, amount - WHOLE) for amount in amounts]
        farthest = max(range(len(amounts)), key=outside.__getitem__)
        if outside[farthest] <= 0:
            return Estimate(amounts=amounts, columns=columns, variances=left, inverse=inverse)
        start[farthest], left[farthest] = (0.0, 0.0) if amounts[farthest] < 0 else (WHOLE, WHOLE_SD**2)
        free[farthest] = 0.0


def invert(lower: Sequence[Sequence[float]]) -> list[list[float]]:
    """Inverse of a symmetric, well-conditioned matrix with this lower triangle (Gauss-Jordan elimination in place)."""
    size = len(lower)
    rows = [[*row[: i + 1], *[below[i] for below in lower[i + 1 :]]] for i, row in enumerate(lower)]
    for i in range(size):
        pivot, rows[i][i] = rows[i][i], 1.0
        rows[i] = pivot_row = [value / pivot for value in rows[i]]
        for j, row in enumerate(rows):
            if j != i and (factor := row[i]):
                row[i] = 0.0
                rows[j] = [value - factor * other for value, other in zip(row, pivot_row, strict=True)]
    return rows
