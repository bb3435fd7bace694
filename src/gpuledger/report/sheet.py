"""The report as CSV, for spreadsheets and scripts. Pure."""

from __future__ import annotations

import csv
import io

from gpuledger.report.report import Report, all_lines, columns
from gpuledger.report.span import show_moment

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def sheet(report: Report) -> str:
    """A row a line, with the time and what kind of line it is; what is not known is empty."""
    shown, heads = columns(report), report.grouping.heads
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["from", "to", "line", *heads, *(column.key for column in shown)])
    span = [show_moment(report.span.begin_ms), show_moment(report.span.end_ms)]
    for line in all_lines(report):
        names = [_harmless(part) for part in line.key] or [""] * len(heads)
        values = [column.value(line) for column in shown]
        writer.writerow(
            [*span, line.kind.value, *names, *("" if value is None else f"{value:.12g}" for value in values)]
        )
    return out.getvalue()


def _harmless(text: str) -> str:
    """Names come from whoever may start a pod; a quote before it makes a formula a text."""
    return f"'{text}" if text.startswith(FORMULA) else text
