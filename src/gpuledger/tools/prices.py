"""Prices of energy and GPU-hours. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a kWh and of a GPU-hour; None if not given."""

    kwh: float | None = None
    gpu_hour: float | None = None
    currency: str = ""

    @classmethod
    def of(cls, kwh: str, gpu_hour: str, currency: str) -> Prices:
        """The prices in texts that `amount` and `currency` have checked."""
        return cls(float(kwh) if kwh else None, float(gpu_hour) if gpu_hour else None, currency)

    def cost(self, gpu_hours: float, kwh: float | None) -> float | None:
        """The cost of hours and energy; None without prices, or if the energy is priced and unknown."""
        if (self.kwh is None and self.gpu_hour is None) or (self.kwh is not None and kwh is None):
            return None
        return (self.kwh or 0.0) * (kwh or 0.0) + (self.gpu_hour or 0.0) * gpu_hours


def amount(text: str) -> str:
    """An amount of 0 or more; may be empty."""
    if text and not NUMBER.fullmatch(text):
        raise ValueError("is not an amount; write it as 0.30")
    return text


def currency(text: str) -> str:
    """A short word."""
    if len(text) > 8 or not text.isprintable():
        raise ValueError("is not a currency; write it as EUR")
    return text
