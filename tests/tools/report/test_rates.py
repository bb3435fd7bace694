"""Carbon intensity over the cells of a report, embodied emissions, and SCI."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.errors import PrometheusError
from gpuledger.tools.report.formats import table, to_json
from gpuledger.tools.report.gather import averaged, fill
from gpuledger.tools.report.queries import Quantity
from gpuledger.tools.report.rates import Embodied, Rates
from gpuledger.tools.report.rows import Kind, ReportRow
from tests.tools.report.made import PRICES, report


def test_a_cell_without_a_value_gets_the_nearest() -> None:
    """Earlier or later, whichever is nearer; the report says how much was filled."""
    filled, notes = fill([None, 100.0, None, None, 200.0, None], "q")

    assert list(filled) == [100, 100, 100, 200, 200, 200]
    assert notes == ["--carbon-query has no value in 66.7 % of the time; the nearest one is used"]
    assert fill([0.0, 5.0], "q")[1] == []


@pytest.mark.parametrize(("values", "message"), [([None], "has no values"), ([-1.0], "is no"), ([9000.0], "is no")])
def test_what_is_no_intensity(values: list[float | None], message: str) -> None:
    """Nothing, a negative number, or kilograms and the like."""
    with pytest.raises(PrometheusError, match=message):
        fill(values, "q")


def test_the_query_is_averaged_over_the_cell() -> None:
    """In twenty points, without the moment at which the cell before it ends."""
    assert str(averaged("a + b", 600_000)) == "avg_over_time((a + b)[599999ms:30000ms])"


def test_emissions_of_a_row() -> None:
    """Operational emissions by the cells, embodied ones by the charged hours, and SCI of both."""
    prices = Rates(carbon_query="q", pue=1.5, embodied=Embodied(100.0, 1000 * 3600.0))
    amounts = {Quantity.ENERGY: 3.6e6, Quantity.CARBON: 3.6e6 * 400, Quantity.ALLOCATED: 10 * 3600.0}
    row = ReportRow(Kind.GROUP, ("a",), amounts)

    assert prices.carbon_kg(amounts) == pytest.approx(0.6)
    assert prices.embodied_kg(row) == pytest.approx(1.0)
    assert prices.sci(row, 10.0) == pytest.approx(160.0)
    assert prices.sci(row, 0.0) is None


def test_sci_is_printed_with_its_components() -> None:
    """(E x I + M) / R, in the table and in JSON."""
    made = report(replace(PRICES, embodied=Embodied(150.0, 5000 * 3600.0)))
    line = "(E 13.000 kWh x I 250.0 g/kWh + M 90.0 g) / R 3.000 GPU-hour (allocated)s = 1,113.333 g CO2e per GPU-hour"

    assert line.replace("GPU-hour (allocated)s", "GPU-hours (allocated)") in table(made)
    assert "SCI g/GPU h" in table(made)
    assert '"sci": "(E 13.000 kWh' in to_json(made)
