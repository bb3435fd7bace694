"""The report as JSON. Pure."""

from __future__ import annotations

import json
from typing import Any

from gpuledger.report.lines import Kind, Line
from gpuledger.report.prices import JOULES_PER_KWH
from gpuledger.report.questions import Column
from gpuledger.report.report import Report, Shown, columns
from gpuledger.report.span import show_moment


def document(report: Report) -> str:
    """One object; what is not known is null."""
    shown, prices = columns(report), report.prices
    seen = report.lines.total.amounts.get(Column.SEEN)
    tree = {
        "from": show_moment(report.span.begin_ms),
        "to": show_moment(report.span.end_ms),
        "step_seconds": report.span.step_ms / 1000,
        "by": report.grouping.name,
        "prices": {
            "kwh": prices.kwh,
            "gpu_hour": prices.gpu_hour,
            "gpu_hours": prices.hours,
            "currency": prices.currency,
            "carbon_grams_per_kwh": prices.grams_per_kwh,
            "pue": prices.pue,
        },
        "lines": [_line(report, line, shown) for line in report.lines.lines],
        "total": _line(report, report.lines.total, shown),
        "seen_gpu_hours": None if seen is None else seen / 3600,
        "unattributed_kwh_by_reason": {name: joules / JOULES_PER_KWH for name, joules in report.lines.reasons},
        "notes": list(report.notes),
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _line(report: Report, line: Line, shown: list[Shown]) -> dict[str, Any]:
    names = dict(zip(report.grouping.heads, line.key, strict=True)) if line.kind is Kind.GROUP else {}
    return {"line": line.kind.value, **names, **{column.key: column.value(line) for column in shown}}
