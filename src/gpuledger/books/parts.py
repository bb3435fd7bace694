"""Processes in a mix: how much of each, by the driver's samples and the activity of the GPU, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from gpuledger.books.fingerprint import Activities, Behaviour
from gpuledger.books.mix import Mix, solve
from gpuledger.books.rows import Row

SAMPLES_PER_S = 5
"""Each says who had the engine at that instant; a second of them is wrong by 22 points where two share alike."""
SAMPLES_DOUBT = 0.3
"""Standard deviation of a share by samples: they also fall in step with the time slices, for as long as it lasts."""
ACTIVITY_DOUBT = 0.03
"""Of an activity: how far that of the same work is apart from one time to the next."""
POWER_DOUBT = 0.15
"""Of the sum of powers alone, in parts of the power together: clocks differ, the H200 gave 0.82 to 1.00."""
KNOWN_DOUBT, UNKNOWN_DOUBT = 0.1, 0.5
"""Of the power of a process, in parts of it: seen alone, and not."""
SURPRISE = 9.0
"""From this many variances on a measurement is not explained: three standard deviations."""
FULL_W = 1000.0
"""Brings power to the scale of activities."""


@dataclass(slots=True)
class Part:
    """A process in a mix, in one of its behaviours."""

    row: Row
    guess: float
    """Its part of the time of the engine, by samples."""
    watts: float
    """Above parked power, while it has the engine."""
    doubt: float
    """Standard deviation of that, in parts of it."""
    behaviour: Behaviour | None = None


@dataclass(slots=True)
class Doubt:
    """How far a process's share may be off, or that of all of them."""

    measured: list[float]
    """How it moves with what is measured."""
    share: float = 0.0
    variance: float = 0.0


def by_samples(parts: Sequence[Part]) -> Mix:
    """As guessed: nothing is measured."""
    return Mix([part.guess for part in parts], [()] * len(parts), [SAMPLES_DOUBT**2] * len(parts), [])


def by_activity(parts: Sequence[Part], seen: Activities, power_w: float) -> Mix:
    """Explain the activity and the power; where what is known does not explain it, believe it less."""
    shapes = [part.behaviour.shape() if part.behaviour is not None else [] for part in parts]
    used = [place for place, amount in enumerate(seen) if amount or any(shape[place] for shape in shapes)]
    measured = [*(seen[place] for place in used), power_w / FULL_W]
    columns = [
        [*(shape[place] for place in used), part.watts / FULL_W] for shape, part in zip(shapes, parts, strict=True)
    ]
    guess = [part.guess for part in parts]
    noise = [ACTIVITY_DOUBT**2] * len(measured)
    noise[-1] += (POWER_DOUBT * power_w / FULL_W) ** 2
    for part, column in zip(parts, columns, strict=True):
        doubt = part.behaviour.doubt() if part.behaviour is not None else 0.0
        noise = [known + doubt * (part.guess * amount) ** 2 for known, amount in zip(noise, column, strict=True)]
    doubts = [SAMPLES_DOUBT**2] * len(parts)
    mix = solve(measured, noise, columns, guess, doubts)
    misses = mix.misses(measured)
    if any(miss * miss > SURPRISE * variance for miss, variance in zip(misses, noise, strict=True)):
        missed = sum(miss * miss for miss in misses)
        noise = [variance + missed for variance in noise]
        mix = solve(measured, noise, columns, guess, doubts)
    return mix


def errors(parts: Sequence[Part], mix: Mix, hidden: float) -> dict[Row, float]:
    """Standard deviation of each share, from that of the amounts and the powers.

    A share is a power over the sum of all: of what its own power may be off, a part of itself goes to the others, and
    of what theirs may be off, it takes its part.
    """
    whole_w = sum(amount * part.watts for amount, part in zip(mix.amounts, parts, strict=True))
    own: dict[Row, Doubt] = {}
    everybody = Doubt([0.0] * len(mix.inverse))
    for part, amount, column, doubt in zip(parts, mix.amounts, mix.columns, mix.doubts, strict=True):
        slope = part.watts / whole_w
        variance = doubt * slope * slope + (amount * slope * part.doubt) ** 2
        for one in (everybody, own.setdefault(part.row, Doubt([0.0] * len(mix.inverse)))):
            one.share += amount * slope
            one.variance += variance
            one.measured = [old + doubt * slope * number for old, number in zip(one.measured, column, strict=True)]
    found: dict[Row, float] = {}
    for row, one in own.items():
        guessed = one.variance * (1 - 2 * one.share) + one.share**2 * everybody.variance
        slopes = [mine - one.share * all_ for mine, all_ in zip(one.measured, everybody.measured, strict=True)]
        variance = max(0.0, guessed - mix.told(slopes)) + (one.share * hidden) ** 2
        found[row] = min(1.0, round(sqrt(variance), 3))
    return found
