"""Processes that were never observed alone, next to processes that were: how much of the GPU the known ones had.

The activity that the known processes do not explain is that of the strangers. So the known processes can have had only
as much of the engine as leaves a plausible activity for the strangers: not negative, not above what a unit can do, and
zero in units that many programs do not use at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from operator import mul
from typing import NamedTuple

from gpuledger.shares.fingerprint import Activities, Means
from gpuledger.shares.kalman import Triangle, solve, square_root

UNUSED = (0.02, 0.2, 0.5, 0.1, 0.9, 0.4, 0.7, 0.05)
"""Prior probability that a program does not use a unit, in the order of UNITS."""
HIGHEST = (1.0, 0.7, 0.95, 0.7, 0.9, 0.5, 0.4, 0.95)
"""Highest activity of a unit, by any program."""
LOG_USED = tuple(log((1 - unused) / highest) for unused, highest in zip(UNUSED, HIGHEST, strict=True))
UNUSED_SD = 0.015
"""Standard deviation of the activity of an unused unit."""
FAR = 6 * UNUSED_SD
"""A higher activity is not that of an unused unit."""
ROOT = sqrt(2 * pi)
RIDGE = 1e-4
"""Keeps the least-squares problem of similar columns well-conditioned."""
SM, SM_SD, SM_ANY = 0.9, 0.08, 0.3
"""Most programs keep this part of the SMs active while on the engine; with the last probability it may be any."""
USUAL_POWER = (0.5, 0.0, 0.6, 0.1, 0.6, 0.4, 0.4, 0.3)
"""Power above parked power per activity of a unit, relative to the power limit: a fit to many programs on an H200."""
TEMPER = 0.1
"""Weight of the plausibility: units do not vary independently."""
POINTS = 12
"""Points of the grid on which the time of the known processes is estimated."""
EXPLAINED = 0.03
"""Activity counts as explained if no unit differs by more."""
MOST_AMOUNT = 1.15
"""Known processes cannot explain activity with more than this amount of time."""
CLOCK_POWER = 1.0
"""Power per unit of work grows with this power of the clock."""
POWER_SD = 0.15
"""Relative standard deviation of the power of known processes when they share."""
STRANGER_SD = 0.35
"""Relative standard deviation of the power of a program on the engine, without any knowledge of it."""
SYSTEMATIC_SD = 0.185
"""Relative standard deviation that more data would not reduce: caches, clocks and phases of a program."""
USUAL_SD = 0.2
"""Relative standard deviation of the power that an activity usually draws."""
LEAST_POWER = 0.05
"""Least part of the power that strangers get while they work."""

Behaviours = tuple[tuple[Means, ...], ...]
"""The reliable behaviours of each known process."""
UsedUnit = tuple[int, float, float]
"""A unit that any process uses: its number, its activity, and that of the known processes per time on the engine."""


class Column(NamedTuple):
    """A known process in one of its behaviours."""

    number: int
    """Number of the process."""
    behaviour: Means


@dataclass(frozen=True, slots=True)
class Powers:
    """The work of the known processes, and power above parked power, in watts."""

    amounts: list[float]
    """Work of each column: part of the time x relative clock / clock at which it was observed."""
    strangers_w: float
    """Of all strangers together."""
    strangers_time: float
    """Part of the time in which strangers had the engine."""
    known_sd_w: float = 0.0
    """Standard deviation of the power of all known processes together."""
    strangers_sd_w: float = 0.0


class Explanation:
    """Explains activity by known processes alone: a = (H^T H + e I)^-1 H^T z = H^T (H H^T + e I)^-1 z.

    Of the two forms, the one with the smaller matrix is used. `behaviours` has the behaviours of each process.
    """

    def __init__(self, behaviours: Behaviours) -> None:
        self.behaviours = behaviours
        self.columns = [Column(number, behaviour) for number, own in enumerate(behaviours) for behaviour in own]
        self._shapes = [column.behaviour.shape for column in self.columns]
        units = list(zip(*self._shapes, strict=True))
        self._gains: Sequence[Sequence[float]]
        if len(self.columns) <= len(units):
            root = _root_of_products(self._shapes)
            self._gains = list(zip(*(solve(root, unit) if any(unit) else unit for unit in units), strict=True))
        else:
            root = _root_of_products(units)
            self._gains = [solve(root, shape) for shape in self._shapes]

    def amounts(self, activity: Activities) -> list[float] | None:
        """The amount of each column; None if known processes do not explain the activity."""
        amounts = [max(0.0, sum(map(mul, row, activity))) for row in self._gains]
        if sum(amounts) > MOST_AMOUNT:
            return None
        for number, *unit in zip(activity, *self._shapes, strict=True):
            if abs(number - sum(map(mul, amounts, unit))) > EXPLAINED:
                return None
        return amounts


def hidden_sd(activity: Activities) -> float:
    """The share that strangers may have had while known processes explain the activity, as a root mean square.

    Each unit may differ by up to EXPLAINED, so it is any share up to EXPLAINED / activity.
    """
    return EXPLAINED / max(EXPLAINED, *activity) / sqrt(3)


def vary(slots: Sequence[Activities]) -> bool:
    """Whether the activity of a unit differs between slots."""
    return any(max(unit) - min(unit) > EXPLAINED for unit in zip(*slots, strict=True))


def _root_of_products(vectors: Sequence[Sequence[float]]) -> Triangle:
    """Cholesky factor of the matrix of all inner products, with a ridge."""
    gram = [[sum(map(mul, a, b)) for b in vectors[: i + 1]] for i, a in enumerate(vectors)]
    for row in gram:
        row[-1] += RIDGE
    return square_root(gram)


def separate(
    columns: Sequence[Column],
    times: Sequence[float],
    time_sd: float,
    *,
    activity: Activities,
    power_w: float,
    busy: float,
    most_busy: float,
    clock: float,
) -> Powers:
    """Split power above parked power into that of the known processes and that of all strangers.

    `times` are the expected parts of the time that each known process had the engine, `time_sd` the standard deviation
    of their sum, and `clock` the relative SM clock. The engine was busy for at least `busy`, the mean of the interval.
    While strangers work it is busier: for the expected times and for the time that the remaining SM activity takes, up
    to `most_busy`.
    """
    known_time = max(1e-6, sum(times))
    behaviours = [column.behaviour for column in columns]
    works = _works(columns, times, activity, clock)
    known = [sum(map(mul, works, unit)) for unit in zip(*[behaviour.shape for behaviour in behaviours], strict=True)]
    busier = min(most_busy, known_time + (activity[0] - known[0]) / clock / SM)
    busy = min(1.0, max(busy, busier, activity[0] / clock / SM))
    used = [
        (unit, amount, part / known_time)
        for unit, (amount, part) in enumerate(zip(activity, known, strict=True))
        if amount or part
    ]
    grid = [busy * (i + 0.5) / POINTS for i in range(POINTS)]
    logs = [
        TEMPER * _plausibility(used, time, busy - time) - 0.5 * ((time - known_time) / time_sd) ** 2 for time in grid
    ]
    highest = max(logs)
    weights = [exp(value - highest) for value in logs]
    whole = sum(weights)
    mean = sum(weight * time for weight, time in zip(weights, grid, strict=True)) / whole
    variance = sum(weight * (time - mean) ** 2 for weight, time in zip(weights, grid, strict=True)) / whole
    amounts = [work / known_time * mean for work in works]
    known_w = now_w = 0.0
    for behaviour, amount in zip(behaviours, amounts, strict=True):
        # Known power at the clock alone, as for other shares; only the rest is what the strangers draw at this clock.
        known_w += amount * behaviour.watts
        now_w += amount * behaviour.watts * (clock / behaviour.clock) ** CLOCK_POWER
    rest_w, rest_variance = power_w - now_w, (POWER_SD * now_w) ** 2 + variance * (now_w / mean) ** 2
    usual_w = power_w * _usual(used, mean)
    usual_variance = (USUAL_SD * usual_w) ** 2
    total_variance = (rest_variance + usual_variance) or 1.0  # both are 0 without power
    strangers_w = (rest_w * usual_variance + usual_w * rest_variance) / total_variance
    strangers_w = max(LEAST_POWER * power_w, strangers_w)
    return Powers(
        amounts=amounts,
        strangers_w=strangers_w,
        strangers_time=busy - mean,
        known_sd_w=sqrt(variance / mean**2 + SYSTEMATIC_SD**2) * known_w,
        strangers_sd_w=sqrt(rest_variance * usual_variance / total_variance + (SYSTEMATIC_SD * strangers_w) ** 2),
    )


def _usual(used: Iterable[UsedUnit], known: float) -> float:
    """The part of the power that the activity of the strangers usually draws."""
    total = rest = 0.0
    for unit, amount, part in used:
        total += USUAL_POWER[unit] * amount
        rest += USUAL_POWER[unit] * max(0.0, amount - known * part)
    return rest / total if total else 0.5


def _works(columns: Sequence[Column], times: Sequence[float], activity: Activities, clock: float) -> list[float]:
    """Expected work of each column: a process is rather in a behaviour that the activity allows."""
    if len(columns) == len(times):  # one behaviour each
        return [time * clock / behaviour.clock for time, (_, behaviour) in zip(times, columns, strict=True)]
    weights = [behaviour.seconds * _bound(behaviour.shape, activity) for _, behaviour in columns]
    sums = [0.0] * len(times)
    for (number, _), weight in zip(columns, weights, strict=True):
        sums[number] += weight
    return [
        times[number] * weight / sums[number] * clock / behaviour.clock
        for (number, behaviour), weight in zip(columns, weights, strict=True)
    ]


def _bound(shape: Activities, activity: Activities) -> float:
    """The largest amount of a shape that an activity can contain, at most 1."""
    return min([1.0, *[(amount + 0.01) / part for amount, part in zip(activity, shape, strict=True) if part > 0.03]])


def _plausibility(used: Sequence[UsedUnit], known: float, rest: float) -> float:
    """Log density of the activity, if known processes had the engine for `known` and strangers for `rest`."""
    result = -len(used) * log(rest)  # Jacobian: activity = known part + rest x activity of the strangers
    for unit, amount, part in used:
        number = (amount - known * part) / rest
        result += LOG_USED[unit] if unit and FAR < number <= HIGHEST[unit] else log_density(unit, number)
    return result


def log_density(unit: int, activity: float) -> float:
    """Log prior density of a program's activity on the engine in one unit."""
    density = 1.0
    if activity < 0:
        density = _bell(activity, UNUSED_SD)
    elif activity > HIGHEST[unit]:
        density = _bell(activity - HIGHEST[unit], 0.05)
    if unit == 0:
        density = (1 - SM_ANY) * _bell(activity - SM, SM_SD) / (ROOT * SM_SD) + SM_ANY * density
    else:
        density /= HIGHEST[unit]
    density *= 1 - UNUSED[unit]
    if abs(activity) < FAR:
        density += UNUSED[unit] * 2 * _bell(activity, UNUSED_SD) / (ROOT * UNUSED_SD)
    return log(density + 1e-12)


def _bell(distance: float, sd: float) -> float:
    return exp(-0.5 * (distance / sd) ** 2)
