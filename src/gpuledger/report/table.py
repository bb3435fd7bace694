"""The report as a table for a terminal. Pure."""

from __future__ import annotations

from gpuledger.report.lines import Kind
from gpuledger.report.report import Report, all_lines, columns, facts, name, number
from gpuledger.report.span import show_moment

BOLD, FAINT, END = "\x1b[1m", "\x1b[2m", "\x1b[0m"
LONGEST_NAME = 60


def table(report: Report, *, colour: bool = False) -> str:
    """Lines of aligned columns; nothing in a name can command a terminal."""
    shown = columns(report)
    head = ["/".join(report.grouping.heads), *(column.head for column in shown)]
    rows, styles = [head], [BOLD]
    for line in all_lines(report):
        values = [_cell(column.key, column.value(line), column.decimals) for column in shown]
        rows.append([_short(name(line, report.grouping)), *values])
        styles.append("" if line.kind is Kind.GROUP else BOLD if line.kind is Kind.TOTAL else FAINT)
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    parts = [f"{show_moment(report.span.begin_ms)} to {show_moment(report.span.end_ms)}", ""]
    for row, style in zip(rows, styles, strict=True):
        first, *others = row
        aligned = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        text = "  ".join(aligned).rstrip()
        parts.append(f"{style}{text}{END}" if colour and style else text)
    parts += ["", *(f"{what}: {_printable(said)}" for what, said in facts(report))]
    return "\n".join(parts).rstrip() + "\n"


def _cell(key: str, value: float | None, decimals: int) -> str:
    if key == "energy_share" and value is not None:
        return f"{100 * value:.1f} %"
    return number(value, decimals)


def _short(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)
