"""`python -m tools.samplereport`: print the example of docs/report.md, a month of a made-up cluster."""

from __future__ import annotations

from math import sin

from gpuledger.tools.prometheus.answer import RangeSeries
from gpuledger.tools.prometheus.expression import Expression
from gpuledger.tools.report.formats import table
from gpuledger.tools.report.gather import Totals
from gpuledger.tools.report.queries import GROUPINGS, REASONS, WHOLE, Grouping, Part, Quantity, Query
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.report import Report
from gpuledger.tools.report.rows import create_rows
from gpuledger.tools.report.span import Span, parse_month
from gpuledger.tools.text import GIB, JOULES_PER_KWH

DAYS, GPUS = 31, 16
ACCOUNT = GROUPINGS["account"]
ACCOUNTS = {
    "physics": (52.0, 5.2, 0.9),
    "climate": (31.0, 3.4, 2.1),
    "biology": (24.0, 2.6, 4.0),
    "linguistics": (9.0, 1.1, 5.2),
    "chemistry": (4.5, 0.6, 0.3),
}
"""Mean kWh and allocated GPUs of a day, and the phase of its ups and downs."""
PRICES = Rates(kwh=0.30, gpu_hour=1.2, hours="share", currency="EUR", grams_per_kwh=250, pue=1.3)


def sample() -> Report:
    """The report of October 2026 by account: five accounts on sixteen GPUs."""
    begin_ms, end_ms = parse_month("2026-10")
    totals, idle, whole = Totals(DAYS, charged=Quantity.SHARED), [16.0] * DAYS, [0.0] * DAYS
    hours = [0.0] * DAYS
    for number, (name, (kwh, gpus, phase)) in enumerate(ACCOUNTS.items()):
        use = [max(0.05, 1 + 0.6 * sin(0.9 * day + phase) - 0.7 * (day % 7 in (2, 3))) for day in range(DAYS)]
        held = [gpus * 24 * min(1.3, part) for part in use]
        group = (ACCOUNT, {ACCOUNT.by[0]: name})
        _add(totals, Part.GROUP, Quantity.ENERGY, [kwh * part * JOULES_PER_KWH for part in use], group)
        _add(totals, Part.ALL_GROUPS, Quantity.ENERGY, [kwh * part * JOULES_PER_KWH for part in use])
        _add(totals, Part.GROUP, Quantity.BUSY, [3600 * h * (0.55 + 0.07 * number) for h in held], group)
        _add(totals, Part.GROUP, Quantity.RESIDENT, [3600 * h * 0.93 for h in held], group)
        _add(totals, Part.GROUP, Quantity.ALLOCATED, [3600 * h for h in held], group)
        _add(totals, Part.GROUP, Quantity.SHARED, [3600 * h * 0.97 for h in held], group)
        _add(totals, Part.GROUP, Quantity.MEMORY, [3600 * h * (40 + 9 * number) * GIB for h in held], group)
        whole = [total + kwh * part for total, part in zip(whole, use, strict=True)]
        hours = [total + h for total, h in zip(hours, held, strict=True)]
    _add(totals, Part.IDLE, Quantity.ENERGY, [kwh * JOULES_PER_KWH for kwh in idle])
    _add(totals, Part.UNATTRIBUTED, Quantity.ENERGY, [0.2 * JOULES_PER_KWH] * DAYS, (REASONS, {"reason": "gap"}))
    energy = [(a + b + 0.2) * JOULES_PER_KWH for a, b in zip(whole, idle, strict=True)]
    _add(totals, Part.WHOLE, Quantity.ENERGY, energy)
    _add(totals, Part.WHOLE, Quantity.OBSERVED, [GPUS * 86400.0] * DAYS)
    for column, part in ((Quantity.BUSY, 0.63), (Quantity.RESIDENT, 0.90), (Quantity.ALLOCATED, 0.97)):
        _add(totals, Part.WHOLE, column, [3600 * h * part for h in hours])
    _add(totals, Part.WHOLE, Quantity.MEMORY, [3600 * h * 58 * GIB for h in hours])
    return Report(Span(begin_ms, end_ms, 86_400_000), ACCOUNT, PRICES, create_rows(totals, ACCOUNT))


def _add(
    totals: Totals,
    part: Part,
    column: Quantity,
    values: list[float],
    group: tuple[Grouping, dict[str, str]] = (WHOLE, {}),
) -> None:
    """One series with a value for each day."""
    chunk = Span(0, DAYS * 1000, 1000).chunks()[0]
    points = [(day + 1.0, value) for day, value in enumerate(values)]
    totals.add(Query(column, part, group[0], Expression("")), chunk, [RangeSeries(group[1], points)])


if __name__ == "__main__":
    print(table(sample()), end="")
