"""Shares of the energy of one interval, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from gpuledger.ledger.rows import ActivityShare, Proportions, Row
from gpuledger.ledger.split import Weights
from gpuledger.shares.activity import NOTHING, equal_proportions

WINDOW_SAMPLES = 25
"""Samples of the driver in 5 s, for which errors are published."""
PROGRAM_SD = 0.37
"""Relative standard deviation of the power of a program on the engine, over all programs."""


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


def any_split(count: int) -> float:
    """Standard deviation of a share if any split among so many processes is as likely as another."""
    return round(sqrt((count - 1) / (count + 1)) / count, 3)


def sampled_shares(busy_ns: Mapping[Row, int]) -> Shares | None:
    """By the samples of the interval: only the error. None if fewer than two processes were sampled.

    var(s) = s (1 - s) / WINDOW_SAMPLES + 2 (s (1 - s) PROGRAM_SD)^2: of the time, and of the powers of both sides.
    """
    total = sum(busy_ns.values())
    if sum(1 for ns in busy_ns.values() if ns) < 2:
        return None
    errors = {}
    for row, ns in busy_ns.items():
        spread = ns / total * (1 - ns / total)
        errors[row] = round(sqrt(spread / WINDOW_SAMPLES + 2 * (spread * PROGRAM_SD) ** 2), 3)
    return Shares(errors)


def equal_shares(rows: Sequence[Row], method: str) -> Shares:
    """Equal parts, with the error of any split."""
    errors, weights = dict.fromkeys(rows, any_split(len(rows))), dict.fromkeys(rows, 1)
    return Shares(errors, Weights(method, weights), equal_proportions(rows))
