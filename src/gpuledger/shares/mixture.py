"""The shares of processes that were all observed alone before, as a mixture of their fingerprints.

The observations of an interval are z = H a + noise: a_i is the part of the time in which process i, in one of its
behaviours, has the compute engine; column i of H is its activity and power while it does. The driver's samples give a
prior for a, and one Kalman update corrects it with the measured activity and power. docs/accuracy.md explains why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import add, mul
from typing import NamedTuple

from gpuledger.ledger.rows import Proportions, Row
from gpuledger.shares.activity import Mixture
from gpuledger.shares.fingerprint import Activities, Means
from gpuledger.shares.kalman import Estimate, update

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


class Part(NamedTuple):
    """A process in one of its behaviours."""

    row: Row
    prior: float
    """Expected part of the time on the compute engine."""
    prior_sd: float
    behaviour: Means
    power_sd: float
    """Relative standard deviation of the power of the behaviour."""


def by_samples(parts: Sequence[Part]) -> Estimate:
    """The prior, without an observation."""
    return Estimate(
        amounts=[part.prior for part in parts],
        columns=[()] * len(parts),
        variances=[part.prior_sd**2 for part in parts],
        root=[],
    )


def by_activity(parts: Sequence[Part], activity: Activities, power_w: float) -> Estimate:
    """The amounts that explain activity and power; residuals that are too large are added to the noise."""
    behaviours = [part.behaviour for part in parts]
    # Rows of (z, H): each used unit, then power.
    units = zip(activity, *[behaviour.shape for behaviour in behaviours], strict=True)
    table = [unit for unit in units if any(unit)]
    table.append((power_w / FULL_W, *[behaviour.watts / FULL_W for behaviour in behaviours]))
    observed, *columns = zip(*table, strict=True)
    prior = [part.prior for part in parts]
    spreads = [sqrt(part.behaviour.variance) * part.prior for part in parts]
    noise = [ACTIVITY_SD**2 + _squared(list(map(mul, spreads, amounts))) for _, *amounts in table]
    noise[-1] += (POWER_SD * power_w / FULL_W) ** 2
    variances = [part.prior_sd**2 for part in parts]
    estimate = update(observed, noise, columns, prior, variances)
    residuals = estimate.residuals(observed)
    if any(residual * residual > SURPRISE * variance for residual, variance in zip(residuals, noise, strict=True)):
        unexplained = _squared(residuals)
        noise = [variance + unexplained for variance in noise]
        estimate = update(observed, noise, columns, prior, variances)
    return estimate


def _squared(vector: Sequence[float]) -> float:
    return float(sum(map(mul, vector, vector)))


@dataclass(slots=True)
class _Moments:
    """Of one process: y_i = L^-1 H P g_i (`gain`; g_i is the gradient of p_i / P at fixed P), share and variance."""

    gain: Sequence[float]
    share: float = 0.0
    variance: float = 0.0


def share_errors(parts: Sequence[Part], estimate: Estimate, unsampled: float) -> dict[Row, float]:
    """Standard deviation over 5 s of each share s_i = p_i / P: p_i is the power of process i, P the sum of all.

    Prior: var(s_i) = ((1 - s_i)^2 var(p_i) + s_i^2 sum_{j != i} var(p_j)) / P^2. The observations reduce it by
    |y_i - s_i Y|^2, where y_i = L^-1 H P g_i and Y = sum_j y_j; the share of processes without samples adds
    (s_i x `unsampled`)^2.
    """
    total_w = sum(amount * part.behaviour.watts for amount, part in zip(estimate.amounts, parts, strict=True))
    by_row: dict[Row, _Moments] = {}
    for part, amount, column, prior in zip(parts, estimate.amounts, estimate.columns, estimate.variances, strict=True):
        slope = part.behaviour.watts / total_w
        spread = prior * slope
        gain = estimate.whitened([spread * number for number in column])
        own = by_row.get(part.row)
        if own is None:
            own = by_row[part.row] = _Moments(gain)
        else:
            own.gain = list(map(add, own.gain, gain))
        own.share += amount * slope
        own.variance += spread * slope + (amount * slope * part.power_sd) ** 2
    total_variance = sum(own.variance for own in by_row.values())
    total_gain = [sum(numbers) for numbers in zip(*[own.gain for own in by_row.values()], strict=True)]
    total_reduction = _squared(total_gain)
    errors: dict[Row, float] = {}
    for row, own in by_row.items():
        share = own.share
        reduction = _squared(own.gain) - 2 * share * sum(map(mul, own.gain, total_gain))
        variance = own.variance * (1 - 2 * share) - reduction + share * share * (total_variance - total_reduction)
        variance = max(0.0, variance) + (share * unsampled) ** 2
        errors[row] = min(1.0, round(OVER_5_S * sqrt(variance), 3))
    return errors


def weights_of(parts: Sequence[Part], estimate: Estimate) -> dict[Row, int]:
    """Power of each process, as integers."""
    weights: dict[Row, int] = {}
    for part, amount in zip(parts, estimate.amounts, strict=True):
        weights[part.row] = weights.get(part.row, 0) + round(amount * part.behaviour.watts * WEIGHT_UNIT)
    return weights


def proportions_of(parts: Sequence[Part], estimate: Estimate, observed: Activities) -> dict[Row, Proportions]:
    """Shares of the activity: the amount of each behaviour times its shape."""
    mixture = Mixture()
    for part, amount in zip(parts, estimate.amounts, strict=True):
        mixture.add(part.row, part.behaviour.shape, amount)
    return mixture.proportions(observed)
