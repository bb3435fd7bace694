"""Rates of a report: prices of energy and GPU-hours, emissions, and SCI. Pure.

SCI (Software Carbon Intensity, ISO/IEC 21031) is (E x I + M) / R: energy times intensity, plus embodied emissions, per
functional unit. In a report, E x I is the sum over cells of energy x PUE x intensity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuledger.tools.prices import Prices
from gpuledger.tools.report.queries import Quantity
from gpuledger.tools.report.rows import ReportRow, ReportRows
from gpuledger.tools.text import JOULES_PER_KWH

GPU_HOURS = {
    "allocated": Quantity.ALLOCATED,
    "resident": Quantity.RESIDENT,
    "busy": Quantity.BUSY,
    "share": Quantity.SHARED,
    "entitlement": Quantity.ENTITLED,
    "larger": Quantity.LARGER,
}


@dataclass(frozen=True, slots=True)
class Embodied:
    """Emissions of the production of a GPU, divided by the hours of its life."""

    kg_per_gpu: float
    lifetime_s: float

    def kg(self, gpu_seconds: float) -> float:
        """The share of these GPU-hours."""
        return self.kg_per_gpu * gpu_seconds / self.lifetime_s


@dataclass(frozen=True, slots=True)
class Rates(Prices):
    """Prices and emissions of a kWh and a GPU-hour; None if not given. `gpu_hour` is that of models without a price."""

    hours: str = "allocated"
    """The GPU-hours that are charged: a key of GPU_HOURS."""
    grams_per_kwh: float | None = None
    pue: float = 1.0
    """Power usage effectiveness: facility energy divided by IT energy."""
    models: Mapping[str, float] = field(default_factory=dict)
    """Prices of a GPU-hour by the model of the GPU."""
    carbon_query: str = ""
    """The query of the grid's intensity over time; empty if `grams_per_kwh` is used."""
    embodied: Embodied | None = None

    @property
    def charged(self) -> Quantity:
        """The GPU-hours that are charged."""
        return GPU_HOURS[self.hours]

    @property
    def has_hours(self) -> bool:
        """Whether GPU-hours are charged."""
        return self.gpu_hour is not None or bool(self.models)

    def energy_cost(self, amounts: Mapping[Quantity, float]) -> float | None:
        """The cost of the energy, including the facility's share."""
        return self._per_kwh(amounts, self.kwh)

    def hours_cost(self, row: ReportRow) -> float | None:
        """The cost of the GPU-hours."""
        seconds = row.amounts.get(self.charged)
        if seconds is None:
            return None
        if not self.models:
            return None if self.gpu_hour is None else seconds / 3600 * self.gpu_hour
        return sum([s / 3600 * (self.price_of(model) or 0.0) for model, s in row.by_model.items()])

    def row_cost(self, row: ReportRow) -> float | None:
        """The cost of energy and GPU-hours."""
        costs = [cost for cost in (self.energy_cost(row.amounts), self.hours_cost(row)) if cost is not None]
        return sum(costs) if costs else None

    def unpriced(self, rows: ReportRows) -> list[str]:
        """Models with hours and without a price."""
        used = {model for row in (*rows.rows, rows.total) for model, seconds in row.by_model.items() if seconds}
        return sorted(model for model in used if self.price_of(model) is None)

    def price_of(self, model: str) -> float | None:
        """The price of an hour of a GPU of this model."""
        return self.models.get(model, self.gpu_hour)

    @property
    def has_carbon(self) -> bool:
        """Whether emissions are known."""
        return self.grams_per_kwh is not None or bool(self.carbon_query)

    @property
    def has_sci(self) -> bool:
        """Whether SCI is shown: emissions are known better than by one mean intensity."""
        return bool(self.carbon_query) or (self.has_carbon and self.embodied is not None)

    def carbon_kg(self, amounts: Mapping[Quantity, float]) -> float | None:
        """The emissions of the energy, including the facility's share."""
        if self.carbon_query:
            carbon = amounts.get(Quantity.CARBON)
            return None if carbon is None else carbon / JOULES_PER_KWH * self.pue / 1000
        grams = self._per_kwh(amounts, self.grams_per_kwh)
        return None if grams is None else grams / 1000

    def embodied_kg(self, row: ReportRow) -> float | None:
        """The row's part of the emissions of the production of GPUs, by the GPU-hours that are charged."""
        seconds = row.amounts.get(self.charged)
        return None if self.embodied is None or seconds is None else self.embodied.kg(seconds)

    def sci(self, row: ReportRow, units: float | None) -> float | None:
        """Software Carbon Intensity, (E x I + M) / R, in grams per functional unit."""
        operational = self.carbon_kg(row.amounts)
        if operational is None or not units:
            return None
        return 1000 * (operational + (self.embodied_kg(row) or 0.0)) / units

    def _per_kwh(self, amounts: Mapping[Quantity, float], rate: float | None) -> float | None:
        joules = amounts.get(Quantity.ENERGY)
        return None if joules is None or rate is None else joules / JOULES_PER_KWH * self.pue * rate
