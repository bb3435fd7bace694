"""The report as a table for terminals, as CSV and as JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from gpuledger.model.plaintext import plain
from gpuledger.tools.report.notes import all_notes, facts, sci_text
from gpuledger.tools.report.queries import Column
from gpuledger.tools.report.report import JOULES_PER_KWH, Report, ShownColumn, cells, columns
from gpuledger.tools.report.rows import Kind, Row

BOLD, FAINT, END = "\x1b[1m", "\x1b[2m", "\x1b[0m"
LONGEST_NAME = 60
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that a spreadsheet takes for the start of a formula."""


def table(report: Report, *, colour: bool = False) -> str:
    """Aligned columns, without control characters from names."""
    head = ["/".join(report.heads), *(column.head for column in columns(report))]
    texts, styles = [head], [BOLD]
    for row, (name, *values) in zip(report.all_rows, cells(report), strict=True):
        texts.append([_short(name), *values])
        styles.append("" if row.kind is Kind.GROUP else BOLD if row.kind is Kind.TOTAL else FAINT)
    widths = [max(len(line[n]) for line in texts) for n in range(len(head))]
    lines = [f"{report.span.begin} to {report.span.end}", ""]
    for (first, *others), style in zip(texts, styles, strict=True):
        aligned = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        line = "  ".join(aligned).rstrip()
        lines.append(f"{style}{line}{END}" if colour and style else line)
    lines += ["", *(f"{name}: {plain(text)}" for name, text in facts(report))]
    return "\n".join(lines).rstrip() + "\n"


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def to_csv(report: Report) -> str:
    """CSV with one record per row; unknown values are empty, and the total has the notes."""
    shown = columns(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["from", "to", "kind", *report.heads, *(column.key for column in shown), "note"])
    for row in report.all_rows:
        names = [escape_formula(part) for part in row.key] or [""] * len(report.heads)
        values = ["" if value is None else f"{value:.12g}" for value in (column.value(row) for column in shown)]
        note = escape_formula(" | ".join(all_notes(report))) if row.kind is Kind.TOTAL else ""
        writer.writerow([report.span.begin, report.span.end, row.kind.value, *names, *values, note])
    return out.getvalue()


def escape_formula(text: str) -> str:
    """A leading quote turns a formula into text: anyone who may start a pod chooses its name."""
    return f"'{text}" if text.startswith(FORMULA) else text


def to_json(report: Report) -> str:
    """One JSON object; unknown values are null."""
    shown, prices = columns(report), report.prices
    observed = report.rows.total.amounts.get(Column.OBSERVED)
    tree = {
        "from": report.span.begin,
        "to": report.span.end,
        "step_seconds": report.span.step_ms / 1000,
        "by": report.grouping.name,
        "prices": {
            "kwh": prices.kwh,
            "gpu_hour": prices.gpu_hour,
            "gpu_hour_by_model": dict(prices.models),
            "gpu_hours": prices.hours,
            "currency": prices.currency,
            "carbon_grams_per_kwh": prices.grams_per_kwh,
            "carbon_query": prices.carbon_query,
            "embodied_kg_per_gpu": None if prices.embodied is None else prices.embodied.kg_per_gpu,
            "pue": prices.pue,
        },
        "rows": [_row(report, row, shown) for row in report.rows.rows],
        "total": _row(report, report.rows.total, shown),
        "observed_gpu_hours": None if observed is None else observed / 3600,
        "unattributed_kwh_by_reason": {name: joules / JOULES_PER_KWH for name, joules in report.rows.reasons},
        "sci": sci_text(report),
        "notes": all_notes(report),
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _row(report: Report, row: Row, shown: list[ShownColumn]) -> dict[str, Any]:
    names = dict(zip(report.heads, row.key, strict=True)) if row.kind is Kind.GROUP else {}
    return {"kind": row.kind.value, **names, **{column.key: column.value(row) for column in shown}}
