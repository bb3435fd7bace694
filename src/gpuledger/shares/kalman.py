"""One Kalman update of an interval: the times and the deviations of programs that explain its activity and power.

The unknowns are the time x_i of each process on the engine (variance v_i; the sum of all times is known) and how far
its program deviates from phi in this interval (variance V_i). The observations are y = sum_i x_i (phi_i + deviation_i):

    S = Phi^T (diag v - v v^T / sum v) Phi + sum_i x_i^2 V_i + R,    gain = S^-1 (y - sum_i x_i phi_i)

The power of process i is x_i p_i plus that of its deviation: unexplained power is divided by the variances V_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from operator import add, mul, truediv

from gpuledger.shares.algebra import forward, root_of, solve
from gpuledger.shares.regression import Program
from gpuledger.shares.units import POWER, Population, Units

POWER_SD = 0.08
"""Relative standard deviation of measured power: the counter moves every 0.1 s, activity is read at other times."""
LEAST_POWER = 0.03
"""Power to which POWER_SD refers at least, relative to the power limit."""
LEAST_ERROR = 0.01
"""Standard deviation of a share that no observation reduces."""
LEAST_SHARE = 0.01
"""Least power of a process, relative to that of its time and program."""
TUNED = ("POWER_SD",)
"""Chosen on tests/data/h200; `bench.sensitivity` prints what halving and doubling them changes."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An interval: means over its slots, weighted by their length."""

    times: list[float]
    """Of each process: x."""
    variances: list[float]
    """Of the times: v."""
    squares: list[float]
    """Mean of x^2 over the slots."""
    observed: Units
    """y"""
    power: float
    """Above parked power, relative to the power limit."""


@dataclass(frozen=True, slots=True)
class Update:
    """The estimate, by process."""

    times: list[float]
    powers: list[float]
    errors: list[float]
    """Standard deviation of the share of the power."""
    residual: Units = field(default_factory=list)
    """r = y - sum_i x_i phi_i; empty without power."""
    residual_variances: Units = field(default_factory=list)
    """Diagonal of S."""


def update(seen: Observation, programs: Sequence[Program], population: Population) -> Update:
    """The update; without power, the times and powers that were expected.

    The sum of the times is known, so that the most uncertain one, the last, follows from the others. With
    h_i = phi_i - phi_last, the diagonal noise N = sum_i x_i^2 V_i + R, and r = y - sum_i x_i phi_i:

        A_ij = 1 / v_last + [i = j] / v_i + h_i^T N^-1 h_j,    x += A^-1 (h_i^T N^-1 r),    covariance = A^-1
    """
    times, squares = seen.times, seen.squares
    powers = [population.power(program.phi) for program in programs]
    if seen.power <= 0:
        return Update(times, list(map(mul, times, powers)), [LEAST_ERROR] * len(times))
    noises = list(population.measured)
    noises[POWER] = (POWER_SD * max(LEAST_POWER, seen.power) / population.sd[POWER]) ** 2
    residual = seen.observed
    for time, square, (phi, variance) in zip(times, squares, programs, strict=True):
        residual = [r - time * unit for r, unit in zip(residual, phi, strict=True)]
        noises = [n + square * v for n, v in zip(noises, variance, strict=True)]
    uncertain = sorted([i for i, v in enumerate(seen.variances) if v > 0] or [0], key=seen.variances.__getitem__)
    last_phi, last_variance = programs[uncertain[-1]].phi, seen.variances[uncertain[-1]]
    slopes = [[unit - last for unit, last in zip(programs[i].phi, last_phi, strict=True)] for i in uncertain[:-1]]
    weighted = [list(map(truediv, slope, noises)) for slope in slopes]
    root = root_of([
        [
            1 / last_variance + (1 / seen.variances[i] if j == k else 0.0) + sum(map(mul, weighted[k], slopes[j]))
            for j in range(k + 1)
        ]
        for k, i in enumerate(uncertain[:-1])
    ])  # fmt: skip
    innovations = [sum(map(mul, row, residual)) for row in weighted]
    shift = solve(root, innovations)
    new_times, time_variances = list(times), [0.0] * len(times)
    for k, i in enumerate(uncertain[:-1]):
        new_times[i] += shift[k]
        column = forward(root, [0.0] * k + [1.0] + [0.0] * (len(shift) - k - 1))
        time_variances[i] = sum(map(mul, column, column))
    new_times[uncertain[-1]] -= sum(shift)
    whole_column = forward(root, [1.0] * len(shift))
    time_variances[uncertain[-1]] = sum(map(mul, whole_column, whole_column))
    # r^T S^-1 r, by the matrix inversion lemma, then the diagonal of S.
    surprise = sum(map(truediv, map(mul, residual, residual), noises)) - sum(map(mul, innovations, shift))
    totals, spread, whole = noises, [0.0] * len(noises), sum(seen.variances) or 1.0
    for i, slope in zip(uncertain, slopes, strict=False):
        scaled = [seen.variances[i] * h for h in slope]
        totals = list(map(add, totals, map(mul, scaled, slope)))
        spread = list(map(add, spread, scaled))
    totals = [total - part * part / whole for total, part in zip(totals, spread, strict=True)]
    gains = residual
    for number, slope in zip(shift, slopes, strict=True):
        gains = [gain - number * h for gain, h in zip(gains, slope, strict=True)]
    weights = list(map(truediv, map(mul, population.slopes, gains), noises))
    relative = list(map(truediv, population.squares, totals))
    new_powers: list[float] = []
    variances: list[float] = []
    for time, new_time, square, program, power, variance in zip(
        times, new_times, squares, programs, powers, time_variances, strict=True
    ):
        own = program.variance
        deviation = square * sum(map(mul, weights, own))
        new_powers.append(max(LEAST_SHARE * time * power, new_time * power + deviation))
        # Of its time, and of its deviations, which the observations reduce: x^2 V (1 - x^2 V / S).
        reduction = square * sum(map(mul, relative, map(mul, own, own)))
        variances.append(
            power * power * variance + square * max(0.0, sum(map(mul, population.squares, own)) - reduction)
        )
    # More surprise than expected: S, and so every variance, was too small.
    inflation = max(1.0, surprise / len(residual))
    errors = share_errors(new_powers, [inflation * variance for variance in variances])
    return Update(new_times, new_powers, errors, residual, totals)


def share_errors(powers: Sequence[float], variances: Sequence[float]) -> list[float]:
    """Of s_i = p_i / P: var(s_i) = ((1 - 2 s_i) var(p_i) + s_i^2 sum_j var(p_j)) / P^2 + LEAST_ERROR^2."""
    total, whole = sum(powers), sum(variances)
    if total <= 0:
        return [LEAST_ERROR] * len(powers)
    errors = []
    for power, variance in zip(powers, variances, strict=True):
        share = power / total
        errors.append(sqrt(max(0.0, (1 - 2 * share) * variance + share * share * whole) / total**2 + LEAST_ERROR**2))
    return errors
