"""A report with one row of each kind, and with a hostile name."""

from __future__ import annotations

from gpuledger.tools.report.queries import GROUPINGS, Quantity
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.report import Report
from gpuledger.tools.report.rows import Kind, ReportRow, ReportRows
from gpuledger.tools.report.span import Span, parse_moment
from gpuledger.tools.text import GIB

KWH = 3.6e6
BAD = '=HYPERLINK("x")<script>alert(1)</script>\x1b[2J'
SHOWN = BAD.replace("\x1b", "\ufffd")
"""The same name in CSV and HTML."""
PRICES = Rates(kwh=0.30, gpu_hour=2.0, currency="EUR", grams_per_kwh=250, pue=1.3)


def report(prices: Rates = PRICES, name: str = BAD, **more: tuple[str, ...]) -> Report:
    """10 kWh: 6 of a namespace, 1 of all others, 2 idle, 1 unattributed."""
    hours = {
        Quantity.BUSY: 3600.0,
        Quantity.RESIDENT: 7200.0,
        Quantity.ALLOCATED: 10800.0,
        Quantity.MEMORY: 3600.0 * GIB,
    }
    lines = (
        ReportRow(Kind.GROUP, (name,), {Quantity.ENERGY: 6 * KWH, **hours}, [2 * KWH, 4 * KWH]),
        ReportRow(Kind.REST, (), {Quantity.ENERGY: 1 * KWH}, [0.0, KWH], 3),
        ReportRow(Kind.IDLE, (), {Quantity.ENERGY: 2 * KWH}, [KWH, KWH]),
        ReportRow(Kind.UNATTRIBUTED, (), {Quantity.ENERGY: 1 * KWH}, [KWH, 0.0]),
    )
    total = ReportRow(Kind.TOTAL, (), {Quantity.ENERGY: 10 * KWH, **hours, Quantity.OBSERVED: 9 * 3600.0})
    begin, end = (parse_moment(text) for text in ("2026-11-01", "2026-11-03"))
    found = ReportRows(lines, total, (("gap", 0.75 * KWH), ("unrecorded", 0.25 * KWH)))
    return Report(Span(begin, end, 86_400_000), GROUPINGS["namespace"], prices, found, more.get("notes", ()))
