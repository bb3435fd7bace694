"""The power of MIG instances. The driver measures the activity of each instance, but only the power of the whole GPU.

Power above parked power is divided in proportion to size x the power of an average program with this activity. Two
Kalman filters with ten constants were not better (0.017 on the recording of two instances, where this has 0.020).
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.shares.kalman import share_errors
from gpuledger.shares.units import GPM, POWER, Activities

BEYOND = GPM.mean[POWER] / GPM.mean[0]
"""Power of an average program beyond the usual power of its activity, per activity of the SMs."""
POWER_SD = GPM.sd[POWER] / GPM.average
"""Relative standard deviation of the power of an activity, over all programs."""


def instance_shares(instances: Mapping[str, tuple[float, Activities]]) -> dict[str, tuple[float, float]]:
    """The share of each instance in the power, and its standard deviation; empty if no instance is active.

    The size of an instance is relative to that of the GPU.
    """
    powers = [size * (GPM.usual_power(units) + BEYOND * units[0]) for size, units in instances.values()]
    total = sum(powers)
    if total <= 0:
        return {}
    errors = share_errors(powers, [(POWER_SD * power) ** 2 for power in powers])
    return {uuid: (power / total, error) for uuid, power, error in zip(instances, powers, errors, strict=True)}
