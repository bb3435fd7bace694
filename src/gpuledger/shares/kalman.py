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
from operator import mul

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

    The deviations of a unit add to its noise, so that the units are observed one after the other: h = phi of a unit,
    s = h^T P h + noise, x += P h r / s, P -= P h h^T P / s, where P = diag v - v v^T / sum v at first.
    """
    times, squares = seen.times, seen.squares
    powers = [population.power(program.phi) for program in programs]
    if seen.power <= 0:
        return Update(times, list(map(mul, times, powers)), [LEAST_ERROR] * len(times))
    noise = list(population.measured)
    noise[POWER] = (POWER_SD * max(LEAST_POWER, seen.power) / population.sd[POWER]) ** 2
    spreads = zip(*[program.variance for program in programs], strict=True)
    noises = [n + sum(map(mul, squares, own)) for n, own in zip(noise, spreads, strict=True)]
    slopes = list(zip(*[program.phi for program in programs], strict=True))
    residual = [number - sum(map(mul, times, phi)) for number, phi in zip(seen.observed, slopes, strict=True)]
    # The sum of the times is known, so that the last uncertain one follows from the others.
    *first, last = [i for i, v in enumerate(seen.variances) if v > 0] or [0]
    v, whole = [seen.variances[i] for i in first], sum(seen.variances)
    covariance = [[(a if i == j else 0.0) - a * b / whole for j, b in enumerate(v)] for i, a in enumerate(v)]
    shift = [0.0] * len(first)
    totals, surprise = [], 0.0
    for r, n, phi in zip(residual, noises, slopes, strict=True):
        h = [phi[i] - phi[last] for i in first]
        spread = sum(map(mul, v, h))
        totals.append(n + sum([a * b * b for a, b in zip(v, h, strict=True)]) - (spread * spread / whole if v else 0.0))
        products = [sum(map(mul, row, h)) for row in covariance]
        total = n + sum(map(mul, products, h))
        innovation = r - sum(map(mul, shift, h))
        surprise += innovation * innovation / total
        shift = [old + product * innovation / total for old, product in zip(shift, products, strict=True)]
        covariance = [
            [old - product / total * other for old, other in zip(row, products, strict=True)]
            for row, product in zip(covariance, products, strict=True)
        ]
    gains = [
        (r - sum([number * (phi[i] - phi[last]) for number, i in zip(shift, first, strict=True)])) / n
        for r, n, phi in zip(residual, noises, slopes, strict=True)
    ]
    new_times, time_variances = list(times), [0.0] * len(times)
    for k, i in enumerate(first):
        new_times[i] += shift[k]
        time_variances[i] = max(0.0, covariance[k][k])
    new_times[last] -= sum(shift)
    time_variances[last] = max(0.0, sum(map(sum, covariance)))
    weights = list(map(mul, population.slopes, gains))
    new_powers: list[float] = []
    variances: list[float] = []
    for time, new_time, square, program, power, variance in zip(
        times, new_times, squares, programs, powers, time_variances, strict=True
    ):
        deviation = square * sum(map(mul, weights, program.variance))
        new_powers.append(max(LEAST_SHARE * time * power, new_time * power + deviation))
        own = [square * number for number in program.variance]
        variances.append(
            power * power * variance
            + sum(
                [
                    slope * slope * max(0.0, number - number * number / total)
                    for slope, number, total in zip(population.slopes, own, totals, strict=True)
                ]
            )
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
