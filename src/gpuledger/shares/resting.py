"""The power of a GPU on which no process works: without a process (idle), and with waiting processes (parked)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, sqrt
from operator import mul

from gpuledger.shares.fingerprint import Activities
from gpuledger.shares.strangers import USUAL_POWER

FALL_NS = 4_000_000_000
RISE_NS = 60_000_000_000
FIT_S = 300.0
"""Time constant of the fit."""
LEAST_SPREAD = 0.05
"""Least standard deviation of the modelled power, relative to the power limit, for a fit."""
MOST_ERROR = 0.02
"""Largest standard error of a fitted parked power, relative to the power limit."""
MODELS_MW = {"H200": 122_000}
"""Parked power by GPU model, as measured."""
OF_LIMIT = 0.17
"""Parked power of other models, relative to the power limit."""
OF_LOWEST = 0.9
"""Parked power is at most this part of the lowest power at which a process worked."""


def resting_power(known_mw: int | None, power_mw: int, elapsed_ns: int) -> int:
    """Update the power of a GPU at rest with that of one quiet interval: falls within 4 s, rises within 60 s.

    Not the minimum: the counter moves every 0.1 s, so a single interval may be 10 % off, and new clock settings change
    the power at rest.
    """
    if known_mw is None:
        return power_mw
    step_mw = power_mw - known_mw
    pace_ns = RISE_NS if step_mw > 0 else FALL_NS
    return known_mw + step_mw * min(elapsed_ns, pace_ns) // pace_ns


@dataclass(slots=True)
class ParkedPower:
    """Parked power of one GPU: measured at rest, else fitted, else as learned earlier, else usual for the GPU model."""

    measured_mw: int | None = None
    earlier_mw: int | None = None
    """From the journal."""
    lowest_mw: int | None = None
    """Lowest power of an interval in which a process worked, over the last minutes."""
    sums: list[float] = field(default_factory=lambda: [0.0] * 6)
    """Of 1, m, p, m^2, m p and p^2 x seconds, with exponential decay: m is the modelled power, p the measured one."""

    def rest(self, power_mw: int, elapsed_ns: int) -> None:
        """Learn from an interval in which all processes waited."""
        self.measured_mw = resting_power(self.measured_mw, power_mw, elapsed_ns)

    def work(self, activity: Activities | None, power_mw: int, seconds: float) -> None:
        """Learn from an interval in which a process worked."""
        lowest_mw = power_mw if self.lowest_mw is None else self.lowest_mw
        rise_mw = int((power_mw - lowest_mw) * min(1.0, seconds / FIT_S))
        self.lowest_mw = min(power_mw, lowest_mw + max(0, rise_mw))
        if activity is None:
            return
        model = sum(map(mul, USUAL_POWER, activity))
        decay, power = exp(-seconds / FIT_S), power_mw / 1000
        terms = (1.0, model, power, model * model, model * power, power * power)
        self.sums = [old * decay + term * seconds for old, term in zip(self.sums, terms, strict=True)]

    def best(self, model: str, limit_mw: int | None) -> tuple[int | None, str]:
        """Parked power and its source: `measured`, `fitted`, `earlier`, `model`, or none."""
        if self.measured_mw is not None:
            return self.measured_mw, "measured"
        if limit_mw is not None and (fitted_mw := self._fitted(limit_mw)) is not None:
            return fitted_mw, "fitted"
        if self.earlier_mw is not None:
            return self.earlier_mw, "earlier"
        usual_mw = next((mw for name, mw in MODELS_MW.items() if name in model), None)
        if usual_mw is None and limit_mw is not None:
            usual_mw = int(OF_LIMIT * limit_mw)
        if usual_mw is None or self.lowest_mw is None:
            return None, ""
        return min(usual_mw, int(OF_LOWEST * self.lowest_mw)), "model"

    def learned_mw(self, limit_mw: int | None) -> int | None:
        """Parked power for the journal: anything but the usual one of the model."""
        power_mw, source = self.best("", limit_mw)
        return None if source == "model" else power_mw

    def _fitted(self, limit_mw: int) -> int | None:
        """Intercept of p = p0 + k m by least squares; None if the load varied too little to tell."""
        seconds = self.sums[0]
        if seconds < FIT_S / 10 or self.lowest_mw is None:
            return None
        mean_m, mean_p, mean_mm, mean_mp, mean_pp = (term / seconds for term in self.sums[1:])
        var_m, var_p = mean_mm - mean_m**2, mean_pp - mean_p**2
        if var_m < LEAST_SPREAD**2:
            return None
        slope = (mean_mp - mean_m * mean_p) / var_m
        intercept = mean_p - slope * mean_m
        residual = max(0.0, var_p - slope**2 * var_m)
        error = sqrt(residual / seconds * (1 + mean_m**2 / var_m))
        if error * 1000 > MOST_ERROR * limit_mw or not 0 < intercept * 1000 < self.lowest_mw:
            return None
        return int(intercept * 1000)
