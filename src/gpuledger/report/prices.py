"""From joules and seconds to what people pay and emit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.report.questions import Column

JOULES_PER_KWH = 3.6e6
HOURS = {"allocated": Column.ALLOCATED, "resident": Column.RESIDENT, "busy": Column.BUSY}


@dataclass(frozen=True, slots=True)
class Prices:
    """What a kilowatt-hour and a GPU-hour cost, and what a kilowatt-hour emits; None where that was not said."""

    kwh: float | None = None
    gpu_hour: float | None = None
    hours: str = "allocated"
    """Which GPU-hours are paid for."""
    currency: str = ""
    grams_per_kwh: float | None = None
    pue: float = 1.0
    """Energy of the whole place over energy of what computes in it."""

    def energy_cost(self, amounts: Mapping[Column, float]) -> float | None:
        """Of the energy, with the place's share."""
        return self._times_kwh(amounts, self.kwh)

    def hours_cost(self, amounts: Mapping[Column, float]) -> float | None:
        """Of the GPU-hours."""
        seconds = amounts.get(HOURS[self.hours])
        return None if seconds is None or self.gpu_hour is None else seconds / 3600 * self.gpu_hour

    def carbon_grams(self, amounts: Mapping[Column, float]) -> float | None:
        """Of the energy, with the place's share."""
        return self._times_kwh(amounts, self.grams_per_kwh)

    def _times_kwh(self, amounts: Mapping[Column, float], each: float | None) -> float | None:
        joules = amounts.get(Column.ENERGY)
        return None if joules is None or each is None else joules / JOULES_PER_KWH * self.pue * each
