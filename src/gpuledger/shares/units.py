"""The units of a GPU that the estimate compares, and what is usual for a program on the compute engine.

A program is described per second on the compute engine: the activity of each unit, from 0 to 1, and the power that it
draws beyond what this activity usually draws. Power is above parked power and relative to the power limit. Programs are
compared in standard deviations of all programs from their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from operator import attrgetter, mul

from gpuledger.model import Activity, Slot

UNITS = ("sm", "occupancy", "tensor", "fp64", "fp32", "fp16", "dram")
"""Not `graphics`, which takes 1.6 ms to read on an H200, and not `integer`, which no recording has."""
CLOCKED = len(UNITS) - 1
"""All units but DRAM are counted in cycles of the SM clock, which falls at the power limit."""
POWER = len(UNITS)
"""Index of power, after the units."""
ALL_UNITS = range(POWER + 1)
LIMIT_W = 500.0
"""Power limit of a GPU that does not report it."""
LEAST_POWER = 0.003
"""Least power of a program on the engine, 2 W of 700; the lightest of the recordings draws 1 W."""
ACTIVITY_SD = 0.01
"""Standard deviation of a measured activity."""

Activities = tuple[float, ...]
"""Activity of each of UNITS, from 0 to 1."""
Units = list[float]
"""A number for each of UNITS and for power, in standard deviations of all programs from their mean."""

_units = attrgetter(*(f"{unit}_pct" for unit in UNITS))


class Population:
    """All programs: mean and standard deviation of each unit and of the power beyond the usual one."""

    def __init__(
        self, usual_power: Sequence[float], mean: Sequence[float], sd: Sequence[float], signals: str = ""
    ) -> None:
        self.signals = signals
        """What is measured; empty for GPM."""
        self.usual = tuple(usual_power)
        """Power per activity of a unit."""
        self.mean, self.sd = tuple(mean), tuple(sd)
        self.lowest = (*[-m / s for m, s in zip(self.mean[:POWER], self.sd, strict=False)], -inf)
        self.highest = tuple([(1 - m) / s for m, s in zip(self.mean, self.sd, strict=True)])
        """No activity is negative or above 1, and no program draws more than the power limit."""
        self.slopes = (*[usual * s for usual, s in zip(self.usual, self.sd, strict=False)], self.sd[POWER])
        """Power of one standard deviation of each unit."""
        self.squares = tuple([slope * slope for slope in self.slopes])
        self.average = self.usual_power(self.mean[:POWER]) + self.mean[POWER]
        """Power of an average program on the engine."""
        self.measured = tuple([(ACTIVITY_SD / s) ** 2 for s in self.sd])
        """Variance of a measured activity."""

    def usual_power(self, activity: Sequence[float]) -> float:
        """Power that an activity usually draws."""
        return float(sum(map(mul, self.usual, activity)))

    def power(self, phi: Units) -> float:
        """Power of a program per time on the engine."""
        return max(LEAST_POWER, self.average + float(sum(map(mul, self.slopes, phi))))

    def bounded(self, phi: Units) -> Units:
        """A program with no impossible unit."""
        return list(map(min, self.highest, map(max, self.lowest, phi)))

    def deviations(self, activity: Sequence[float], power: float, engine: float) -> Units:
        """An activity and a power, as deviations from `engine` seconds of an average program."""
        numbers = (*activity, power - self.usual_power(activity))
        return [(number - engine * m) / s for number, m, s in zip(numbers, self.mean, self.sd, strict=True)]

    def activity(self, phi: Units) -> list[float]:
        """The activity of a program per time on the engine."""
        return [max(0.0, m + s * unit) for unit, m, s in zip(phi[:POWER], self.mean, self.sd, strict=False)]


GPM = Population(
    usual_power=(0.240, 0.059, 0.739, 0.714, 0.520, 0.087, 0.290),
    mean=(0.81, 0.33, 0.24, 0.02, 0.056, 0.006, 0.34, 0.141),
    sd=(0.16, 0.23, 0.27, 0.10, 0.08, 0.02, 0.25, 0.107),
)
"""Measured, not tuned: 25 programs on an H200 with a limit of 700 W, each alone."""
WITHOUT_GPM = Population(
    usual_power=(0, 0, 1, 0, 0, 0, 0),
    mean=(1, 0, 0.67, 0, 0, 0, 0.34, 0),
    sd=(0.05, 1, 0.25, 1, 1, 1, 0.25, 0.1),
    signals="power",
)
"""Before Hopper: utilization in place of SM, power in place of tensor, memory utilization in place of DRAM activity.

Mean and standard deviation of the power of the same programs; the other units are not used.
"""
POPULATIONS = {population.signals: population for population in (GPM, WITHOUT_GPM)}


def activities(activity: Activity | None, clock: float) -> Activities | None:
    """Activity of each unit, scaled to the highest SM clock; None without GPM, or if a value is not a number.

    Without the scaling, the activity of a process would depend on the power limit, at which clocks fall.
    """
    if activity is None or activity.sm_pct is None:
        return None
    units = [(pct or 0.0) / 100 for pct in _units(activity)]
    if not isfinite(sum(units)):
        return None
    units[:CLOCKED] = [unit * clock for unit in units[:CLOCKED]]
    return tuple(units)


def without_gpm(slot: Slot, parked_mw: int, limit_w: float, alone: float | None = None) -> Activities | None:
    """What a slot of a GPU before Hopper shows, in place of activity; None if its power or utilization is missing.

    `alone` is the power of an interval in which one process was on the GPU.
    """
    if slot.utilization_pct is None or (slot.power_mw is None and alone is None):
        return None
    power = alone if slot.power_mw is None else max(0.0, (slot.power_mw - parked_mw) / 1000 / limit_w)
    assert power is not None  # noqa: S101 - one of both is given
    return (slot.utilization_pct / 100, 0.0, power, 0.0, 0.0, 0.0, (slot.memory_utilization_pct or 0) / 100)
