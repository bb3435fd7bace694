"""The power of MIG instances. The driver measures the activity of each instance, but only the power of the whole GPU.

Power above parked power is modelled as P = sum_i c_i m_i, m_i = size_i sum_u w_u x_iu: x_iu is the activity of unit u
in instance i, w_u the power per activity of that unit, and c_i a correction for the program that runs in the instance.
Both are fitted to the GPU's own history by Kalman updates with the measured power. While an instance works alone, its
correction is measured; an instance that begins to work later gets the correction that explains the rise in power.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import sqrt
from operator import mul

from gpuledger.shares.fingerprint import UNITS, Activities
from gpuledger.shares.strangers import USUAL_POWER

LIMIT_W = 500.0
"""Power limit of a GPU that does not report it."""
WEIGHT_SD, LEAST_SD = 0.5, 0.05
"""Prior standard deviation of a weight, relative to itself and to the power limit."""
CORRECTION_SD = 0.3
"""Prior standard deviation of a correction."""
DRIFT_S = 300.0
"""Time in which a weight or a correction becomes as uncertain as before, without observations."""
MODEL_SD, POWER_SD, LEAST_W = 0.1, 0.03, 5.0
"""Standard deviation of the power: of the model with weights only, and with corrections, relative and in watts."""
SYSTEMATIC_SD = 0.04
"""Relative standard deviation of the power of an instance that more data would not reduce."""
MOST_PROGRAMS = 1000
"""Size of the LRU of corrections."""
SHORTEST_S = 0.2
"""A shorter interval has too little energy to learn from."""


@dataclass(slots=True)
class Correction:
    """The power of a program, relative to the model, and its variance."""

    value: float = 1.0
    variance: float = CORRECTION_SD**2


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance in one interval."""

    activity: Activities
    size: float
    """Multiprocessors, relative to those of the GPU."""
    program: Hashable
    """Identifies what runs in the instance."""


def shares_of(watts: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The share of each instance in the sum of all powers, and the variance of the share."""
    total_w = sum(power_w for power_w, _ in watts.values())
    sum_variance = sum(sd_w * sd_w for _, sd_w in watts.values())
    result = {}
    for uuid, (power_w, sd_w) in watts.items():
        share = power_w / total_w
        variance = max(0.0, (1 - 2 * share) * sd_w * sd_w + share * share * sum_variance) / total_w**2
        result[uuid] = (share, variance)
    return result


class InstancePower:
    """Divides the power of one GPU among its MIG instances."""

    def __init__(self) -> None:
        self._weights_w: list[float] = []
        self._covariance: list[list[float]] = []
        self._prior: list[float] = []
        """Prior variances of the weights."""
        self._corrections: OrderedDict[Hashable, Correction] = OrderedDict()

    def divide(
        self, instances: Mapping[str, Instance], power_w: float, seconds: float, limit_w: float | None
    ) -> dict[str, tuple[float, float]]:
        """The power of each instance above parked power, and its standard deviation. Learns nothing from 0 seconds."""
        if not self._weights_w:
            self._start(limit_w or LIMIT_W)
        if seconds >= SHORTEST_S and any(any(instance.activity) for instance in instances.values()):
            self._learn_weights(instances, power_w, seconds)
            self._learn_corrections(instances, power_w, seconds)
        result = {}
        for uuid, instance in instances.items():
            correction = self._corrections.get(instance.program) or Correction()
            watts = correction.value * self._model_w(instance)
            sd = sqrt(correction.variance / max(0.1, correction.value) ** 2 + SYSTEMATIC_SD**2)
            result[uuid] = (watts, watts * sd)
        return result

    def _start(self, limit_w: float) -> None:
        self._weights_w = [usual * limit_w for usual in USUAL_POWER]
        self._prior = [(WEIGHT_SD * weight + LEAST_SD * limit_w) ** 2 for weight in self._weights_w]
        size = len(UNITS)
        self._covariance = [[self._prior[i] if i == j else 0.0 for j in range(size)] for i in range(size)]

    def _model_w(self, instance: Instance) -> float:
        return instance.size * float(sum(map(mul, self._weights_w, instance.activity)))

    def _learn_weights(self, instances: Mapping[str, Instance], power_w: float, seconds: float) -> None:
        """Kalman update of w with P = w^T X, X = sum_i c_i size_i x_i."""
        total = [0.0] * len(UNITS)
        for instance in instances.values():
            known = self._corrections.get(instance.program)
            scale = instance.size * (1.0 if known is None else known.value)
            total = [old + scale * unit for old, unit in zip(total, instance.activity, strict=True)]
        for i, prior in enumerate(self._prior):
            self._covariance[i][i] = min(prior, self._covariance[i][i] + prior * seconds / DRIFT_S)
        spread = [sum(map(mul, row, total)) for row in self._covariance]
        noise = (MODEL_SD * power_w + LEAST_W) ** 2
        variance = sum(map(mul, spread, total)) + noise
        error = power_w - sum(map(mul, self._weights_w, total))
        self._weights_w = [
            max(0.0, weight + gain / variance * error) for weight, gain in zip(self._weights_w, spread, strict=True)
        ]
        self._covariance = [
            [value - a * b / variance for value, b in zip(row, spread, strict=True)]
            for row, a in zip(self._covariance, spread, strict=True)
        ]

    def _learn_corrections(self, instances: Mapping[str, Instance], power_w: float, seconds: float) -> None:
        """Kalman update of c with P = sum_i c_i m_i; covariances between corrections are neglected."""
        models: dict[Hashable, float] = {}
        for instance in instances.values():
            correction = self._corrections.setdefault(instance.program, Correction())
            self._corrections.move_to_end(instance.program)
            drift = CORRECTION_SD**2 * seconds / DRIFT_S
            correction.variance = min(CORRECTION_SD**2, correction.variance + drift)
            models[instance.program] = models.get(instance.program, 0.0) + self._model_w(instance)
        while len(self._corrections) > MOST_PROGRAMS:
            self._corrections.popitem(last=False)
        corrections = {program: self._corrections[program] for program in models}
        variance = (POWER_SD * power_w + LEAST_W) ** 2
        variance += sum(corrections[program].variance * model * model for program, model in models.items())
        error = power_w - sum(corrections[program].value * model for program, model in models.items())
        for program, model in models.items():
            correction = corrections[program]
            gain = correction.variance * model / variance
            correction.value = max(0.05, correction.value + gain * error)
            correction.variance *= 1 - gain * model
