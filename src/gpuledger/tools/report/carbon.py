"""Carbon over time: the grid's intensity in each cell of a report, embodied emissions, and SCI. Pure.

SCI (Software Carbon Intensity, ISO/IEC 21031) is (E x I + M) / R: energy times intensity, plus embodied emissions, per
functional unit. In a report, E x I is the sum over cells of energy x PUE x intensity.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.errors import PrometheusError
from gpuledger.tools.prometheus.expression import Expression
from gpuledger.tools.report.promql import whole_window

POINTS = 20
"""Points that are averaged in a cell; grids publish a value every 5 to 60 minutes."""
LARGEST = 5000.0
"""Grams per kWh; no grid exceeds a third of it. Other values are likely in another unit."""


@dataclass(frozen=True, slots=True)
class Embodied:
    """Emissions of the production of a GPU, divided by the hours of its life."""

    kg_per_gpu: float
    lifetime_s: float

    def kg(self, gpu_seconds: float) -> float:
        """The share of these GPU-hours."""
        return self.kg_per_gpu * gpu_seconds / self.lifetime_s


def averaged(query: str, step_ms: int) -> Expression:
    """The mean of a user's query over the cell that ends now."""
    step = f"{max(1, step_ms // POINTS)}ms"
    return Expression(query, metric=query).sampled("avg_over_time", whole_window(step_ms), step)


def fill(values: Sequence[float | None], query: str) -> tuple[array[float], list[str]]:
    """Grams per kWh of each cell, with notes. A cell without a value gets that of the nearest cell with one."""
    known = [cell for cell, value in enumerate(values) if value is not None]
    if not known:
        fix = "check that it returns grams of CO2 equivalent per kWh in this span"
        raise PrometheusError(f"--carbon-query: {query!r} has no values", fix, "empty")
    for value in values:
        if value is not None and not 0 <= value <= LARGEST:
            fix = "return grams of CO2 equivalent per kWh"
            raise PrometheusError(f"--carbon-query: {value:g} is no carbon intensity of a grid", fix, "format")
    filled, nearest = array("d"), 0
    for cell in range(len(values)):
        while nearest + 1 < len(known) and abs(known[nearest + 1] - cell) <= abs(known[nearest] - cell):
            nearest += 1
        filled.append(values[known[nearest]] or 0.0)
    missing = len(values) - len(known)
    part = f"{100 * missing / len(values):.1f} %"
    notes = [f"--carbon-query has no value in {part} of the time; the nearest one is used"] if missing else []
    return filled, notes
