"""Shares of the energy of one interval, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from gpuledger.ledger.rows import ActivityShare, Proportions, Row
from gpuledger.ledger.split import Weights
from gpuledger.shares.activity import NOTHING, Mixture, equal_proportions
from gpuledger.shares.fingerprint import Activities, Means
from gpuledger.shares.mixture import WEIGHT_UNIT

LEAST_TOTAL_W = 1e-6
"""With less power above parked power there is nothing to divide."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the energy above parked power in one interval."""

    errors: dict[Row, float]
    """Standard deviation of each share."""
    weights: Weights | None = None
    """None if there is no better estimate than the samples of the interval."""
    proportions: Mapping[Row, Proportions] = field(default_factory=dict)
    """Shares of the activity of the device; empty without GPM."""

    def activity(self, rows: Iterable[Row]) -> dict[Row, ActivityShare]:
        """The shares of these processes in the activity of their device; processes that did not work have nothing."""
        method = "sm_time" if self.weights is None else self.weights.method
        return {
            row: ActivityShare(method, self.proportions.get(row, NOTHING), self.errors.get(row, 0.0)) for row in rows
        }


@dataclass(frozen=True, slots=True)
class Observed:
    """What was measured of a GPU or MIG instance in one interval."""

    seconds: float
    busy: float
    """Part of the interval in which the compute engine was busy."""
    activity: Activities
    slots: Sequence[Activities]
    clock: float
    """SM clock relative to its highest value."""
    power_w: float
    """Above parked power."""


@dataclass(slots=True)
class Watts:
    """Mean power above parked power of each process in an interval, and what its errors are made of."""

    known: dict[Row, float] = field(default_factory=dict)
    strangers: dict[Row, float] = field(default_factory=dict)
    known_sd: float = 0.0
    """Standard deviation of the sum of `known`."""
    strangers_sd: float = 0.0
    mixture: Mixture = field(default_factory=Mixture)

    def add(self, row: Row, behaviour: Means, amount: float) -> None:
        """Add the power and activity of a known process that had the engine for a part of the time."""
        self.known[row] += amount * behaviour.watts
        self.mixture.add(row, behaviour.shape, amount)

    def shares(
        self,
        method: str,
        observed: Activities,
        relative: Mapping[Row, float],
        *,
        scale: float,
        unsampled: float,
    ) -> Shares:
        """Shares by power. The errors combine those of known power, strangers' power and each stranger's part.

        `relative` is the relative variance of each stranger's power, `scale` a factor for the errors of the sums, and
        `unsampled` the share that other processes may have had.
        """
        known_w, strangers_w = sum(self.known.values()), sum(self.strangers.values())
        total_w = known_w + strangers_w
        if total_w < LEAST_TOTAL_W:
            return Shares(errors={})
        error = scale * sqrt((strangers_w * self.known_sd) ** 2 + (known_w * self.strangers_sd) ** 2) / total_w**2
        errors = {row: error * power / known_w for row, power in self.known.items()} if known_w else {}
        others, all_relative = len(self.strangers) - 1, sum(relative[row] for row in self.strangers)
        for row, power in self.strangers.items():
            part = power / strangers_w if strangers_w else 1 / len(self.strangers)
            both = relative[row] + (all_relative - relative[row]) / others if others else 0.0
            own = 0.5 * sqrt(part * (1 - part) * both)
            errors[row] = sqrt((error * part) ** 2 + (own * strangers_w / total_w) ** 2)
        errors = {row: min(1.0, round(sqrt(e * e + unsampled * unsampled), 3)) for row, e in errors.items()}
        weights = {row: round(power * WEIGHT_UNIT) for row, power in (self.known | self.strangers).items()}
        return Shares(errors, Weights(method, weights), self.mixture.proportions(observed))


def any_split(count: int) -> float:
    """Standard deviation of a share if any split among so many processes is as likely as another."""
    return round(sqrt((count - 1) / (count + 1)) / count, 3)


def equal_shares(rows: Sequence[Row], method: str) -> Shares:
    """Equal parts, with the error of any split."""
    errors, weights = dict.fromkeys(rows, any_split(len(rows))), dict.fromkeys(rows, 1)
    return Shares(errors, Weights(method, weights), equal_proportions(rows))
