"""How much of each of several things is in a mixture, from a guess and a measurement of the whole.

Both may be wrong, and it is known by how much: the answer lies between them, nearer to the one that is surer. This is
one step of a Kalman filter, with nothing below zero. The work grows with the number of things and not with its square,
for what is solved has only as many unknowns as the measurement has numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class Mix:
    """The amounts found, and how sure they are."""

    amounts: list[float]
    columns: Sequence[Vector]
    doubts: list[float]
    """Variances before the measurement; 0 of what is not in it."""
    inverse: list[list[float]]
    """Of the variances of what is measured."""

    def misses(self, measured: Vector) -> list[float]:
        """What the amounts found do not explain."""
        rows = zip(*self.columns, strict=True)
        return [number - sum(map(mul, row, self.amounts)) for number, row in zip(measured, rows, strict=True)]

    def told(self, slopes: Vector) -> float:
        """By how much the measurement makes a sum of the amounts surer, given its slopes along what is measured."""
        along: list[float] = [sum(map(mul, row, slopes)) for row in self.inverse]
        return sum(slope * number for slope, number in zip(slopes, along, strict=True))


def solve(measured: Vector, noise: Vector, columns: Sequence[Vector], guess: Vector, doubts: Vector) -> Mix:
    """Amounts whose columns add up to the measurement, near the guess, and not below zero.

    `noise` and `doubts` are variances: of each number measured, and of each amount guessed.
    """
    left = list(doubts)
    start = list(guess)
    while True:
        rows = list(zip(*columns, strict=True))
        weighted = [list(map(mul, row, left)) for row in rows]
        spread = [[sum(map(mul, a, b)) for b in rows] for a in weighted]
        for place, variance in enumerate(noise):
            spread[place][place] += variance
        inverse = invert(spread)
        missing = [m - sum(map(mul, row, start)) for m, row in zip(measured, rows, strict=True)]
        gain = [sum(map(mul, row, missing)) for row in inverse]
        amounts = [
            amount + doubt * sum(map(mul, column, gain)) if doubt else 0.0
            for amount, doubt, column in zip(start, left, columns, strict=True)
        ]
        lowest = min(range(len(amounts)), key=amounts.__getitem__)
        if amounts[lowest] >= 0:
            return Mix(amounts, columns, left, inverse)
        left[lowest] = start[lowest] = 0.0  # there is none of it; without it, the others again


def invert(matrix: list[list[float]]) -> list[list[float]]:
    """Of a symmetric matrix with a positive diagonal that is not all but singular, as noise on it makes it."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = one = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i and (factor := rows[j][i]):
                rows[j] = [value - factor * other for value, other in zip(rows[j], one, strict=True)]
    return [row[size:] for row in rows]
