"""The shares of processes that were all observed alone before, as a mixture of their fingerprints.

The observations of an interval are z = H a + noise: a_i is the part of the time in which process i, in one of its
behaviours, has the compute engine; column i of H is its activity and power while it does. The driver's samples give a
prior for a, and one Kalman update corrects it with the measured activity and power. docs/accuracy.md explains why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from gpuledger.books.activity import Mixture
from gpuledger.books.fingerprint import Activities
from gpuledger.books.kalman import Estimate, update
from gpuledger.books.rows import Proportions, Row

SAMPLES_SD = 0.3
"""Standard deviation of a share by samples. Larger than the sampling error: samples can alias with time slices."""
ACTIVITY_SD = 0.03
"""Standard deviation of an activity between two runs of the same work."""
POWER_SD = 0.15
"""Relative standard deviation of the sum of powers: clocks fall when processes share; the H200 gave 0.82 to 1.00."""
KNOWN_SD, UNKNOWN_SD = 0.1, 0.5
"""Relative standard deviation of a process's power, with and without a fingerprint."""
SURPRISE = 9.0
"""A residual of more than this many variances (three standard deviations) means that the model does not fit."""
OVER_5_S = 0.62
"""Standard deviation of a share over 5 s, for which errors are published, relative to that of one interval."""
FULL_W = 1000.0
"""Scales power to the range of activities."""
WEIGHT_UNIT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
    """A process in one of its behaviours."""

    row: Row
    prior: float
    """Part of the time on the compute engine, by samples."""
    watts: float
    """Power above parked power while on the compute engine."""
    power_sd: float
    """Relative standard deviation of `watts`."""
    shape: Sequence[float] = ()
    """Activity while on the compute engine; empty if unknown."""
    variance: float = 0.0
    """Relative variance of the shape."""


def by_samples(parts: Sequence[Part]) -> Estimate:
    """The prior, without an observation."""
    return Estimate(
        amounts=[part.prior for part in parts],
        columns=[()] * len(parts),
        variances=[SAMPLES_SD**2] * len(parts),
        root=[],
    )


def by_activity(parts: Sequence[Part], activity: Activities, power_w: float, prior_sd: float) -> Estimate:
    """The amounts that explain activity and power; residuals that are too large are added to the noise."""
    used = [i for i, amount in enumerate(activity) if amount or any(part.shape[i] for part in parts)]
    observed = [*[activity[i] for i in used], power_w / FULL_W]
    columns = [[*[part.shape[i] for i in used], part.watts / FULL_W] for part in parts]
    prior = [part.prior for part in parts]
    noise = [ACTIVITY_SD**2] * len(observed)
    noise[-1] += (POWER_SD * power_w / FULL_W) ** 2
    for part, column in zip(parts, columns, strict=True):
        scale = part.variance * part.prior * part.prior
        noise = [sensor + scale * amount * amount for sensor, amount in zip(noise, column, strict=True)]
    variances = [prior_sd**2] * len(parts)
    estimate = update(observed, noise, columns, prior, variances)
    residuals = estimate.residuals(observed)
    if any(residual * residual > SURPRISE * variance for residual, variance in zip(residuals, noise, strict=True)):
        unexplained = sum(residual * residual for residual in residuals)
        noise = [variance + unexplained for variance in noise]
        estimate = update(observed, noise, columns, prior, variances)
    return estimate


@dataclass(slots=True)
class _Moments:
    """Share, prior variance and H P g (`gradient`) of one process."""

    gradient: list[float]
    share: float = 0.0
    variance: float = 0.0


def share_errors(parts: Sequence[Part], estimate: Estimate, unsampled: float) -> dict[Row, float]:
    """Standard deviation over 5 s of each share s_i = p_i / P: p_i is the power of process i, P the sum of all.

    Prior: var(s_i) = ((1 - s_i)^2 var(p_i) + s_i^2 sum_{j != i} var(p_j)) / P^2. The observations reduce it by
    g^T S^-1 g; the share of processes without samples adds (s_i x `unsampled`)^2.
    """
    total_w = sum(amount * part.watts for amount, part in zip(estimate.amounts, parts, strict=True))
    size = len(estimate.root)
    by_row: dict[Row, _Moments] = {}
    for part, amount, column, prior in zip(parts, estimate.amounts, estimate.columns, estimate.variances, strict=True):
        slope = part.watts / total_w
        own = by_row.get(part.row) or by_row.setdefault(part.row, _Moments([0.0] * size))
        own.share += amount * slope
        own.variance += prior * slope * slope + (amount * slope * part.power_sd) ** 2
        spread = prior * slope
        own.gradient = [old + spread * number for old, number in zip(own.gradient, column, strict=True)]
    total_variance = sum(own.variance for own in by_row.values())
    total_gradient = [sum(numbers) for numbers in zip(*(own.gradient for own in by_row.values()), strict=True)]
    errors: dict[Row, float] = {}
    for row, own in by_row.items():
        variance = own.variance * (1 - 2 * own.share) + own.share**2 * total_variance
        gradient = [g - own.share * sum_g for g, sum_g in zip(own.gradient, total_gradient, strict=True)]
        variance = max(0.0, variance - estimate.variance_reduction(gradient)) + (own.share * unsampled) ** 2
        errors[row] = min(1.0, round(OVER_5_S * sqrt(variance), 3))
    return errors


def weights_of(parts: Sequence[Part], estimate: Estimate) -> dict[Row, int]:
    """Power of each process, as integers."""
    weights: dict[Row, int] = {}
    for part, amount in zip(parts, estimate.amounts, strict=True):
        weights[part.row] = weights.get(part.row, 0) + round(amount * part.watts * WEIGHT_UNIT)
    return weights


def proportions_of(parts: Sequence[Part], estimate: Estimate, observed: Activities) -> dict[Row, Proportions]:
    """Shares of the activity: the amount of each behaviour times its shape."""
    mixture = Mixture()
    for part, amount in zip(parts, estimate.amounts, strict=True):
        if part.shape:
            mixture.add(part.row, part.shape, amount)
    return mixture.proportions(observed)
