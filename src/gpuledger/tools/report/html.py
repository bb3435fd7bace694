"""The report as one HTML page without scripts, fonts or network access. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger import __version__
from gpuledger.config import durations
from gpuledger.model.plaintext import plain
from gpuledger.tools.report.formats import facts
from gpuledger.tools.report.report import Report, ReportColumn, cells, columns, row_name
from gpuledger.tools.report.rows import Kind
from gpuledger.tools.text import JOULES_PER_KWH, grouped

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 260, 64, 28, 12
COLOURS = 8
"""Classes c0 to c7 of the style sheet; further groups share one colour."""
OTHER_STYLES = {Kind.IDLE: "idle", Kind.UNATTRIBUTED: "nobody"}
STYLE = "\n" + Path(__file__).with_name("report.css").read_text(encoding="utf-8")
COLOUR_STYLE = "".join(
    f".{name} {{ fill: var(--{name}); }}\n" for name in (*(f"c{n}" for n in range(COLOURS)), "rest", "idle", "nobody")
)


def escape(text: str) -> str:
    """Text for the page, without markup and control characters."""
    return html.escape(plain(text))


def to_html(report: Report) -> str:
    """The whole page."""
    of = f" of {report.of}" if report.of else ""
    title = f"GPU use{of} by {report.department or report.grouping.name}"
    begin, end = (text[:16].replace("T", " ") for text in (report.span.begin, report.span.end))
    span = f"{begin} to {end} ({report.span.zone})"
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}, {escape(span)}</title>", f"<style>{STYLE}{COLOUR_STYLE}</style>", "</head>", "<body>",
        f"<h1>{escape(title)}</h1>", f"<p>{escape(span)}</p>", *_tiles(report), *_chart(report), *_table(report),
        *_facts(report), "</body>", "</html>", "",
    ])  # fmt: skip


def _tiles(report: Report) -> Iterator[str]:
    """The totals of a bill: costs, energy, GPU-hours and emissions."""
    words = {"share": "apportioned", "entitlement": "entitled"}
    charged = f"{words.get(report.prices.hours, report.prices.hours)}_gpu_hours"
    keys = ("cost", "energy_cost", "gpu_hours_cost", "energy_kwh", charged, "carbon_kg")
    shown = {column.key: column for column in columns(report)}
    yield '<div class="tiles">'
    for column in (shown[key] for key in keys if key in shown):
        if column.value(report, report.rows.total) is not None:
            text = escape(column.texts(report)[-1])
            yield f'<div class="tile"><b>{text}</b><span>{escape(_title(column, report))}</span></div>'
    yield "</div>"


def _title(column: ReportColumn, report: Report) -> str:
    """The heading in full."""
    head = column.heading(report)
    if column.key == "gpu_hours_cost":
        return head.replace("GPU h", "GPU-hours")
    return head.replace(" h", " GPU-hours") if column.key.endswith("_gpu_hours") else head


def _chart(report: Report) -> Iterator[str]:
    layers = _layers(report)
    if not layers:
        return
    span, bar_of, bar_ms = report.span, report.span.bars, report.span.bar_ms
    moments = [span.show(span.begin_of(bar_of.index(n))) for n in range(bar_of[-1] + 1)]
    short = slice(5, 10) if bar_ms >= 86_400_000 else slice(5, 16) if span.seconds > 86400 else slice(11, 16)
    unit = {3_600_000: "hour", 86_400_000: "day", 604_800_000: "week"}.get(bar_ms, durations.show(bar_ms / 1000))
    yield f"<h2>Energy over time, kWh per {unit}</h2>"
    yield _stacked(layers, [moment[short].replace("T", " ") for moment in moments])
    yield '<div class="legend">'
    for layer in layers:
        yield f"<span>{_mark(layer.style)}{escape(layer.name)}</span>"
    yield "</div>"


def _mark(style: str) -> str:
    return f'<svg class="mark" viewBox="0 0 10 10"><rect class="{style}" width="10" height="10" rx="2"/></svg>'


def _styles(report: Report) -> list[str]:
    """The colour of each row: the largest groups have one each, all others share one."""
    styles, groups = [], 0
    for row in report.rows.rows:
        own = row.kind is Kind.GROUP and any(row.bars) and groups < COLOURS
        styles.append(f"c{groups}" if own else OTHER_STYLES.get(row.kind, "rest"))
        groups += own
    return styles


def _layers(report: Report) -> list[_Layer]:
    """The largest groups in one colour each, all others in one, then idle and unattributed energy."""
    drawn = [(row, style) for row, style in zip(report.rows.rows, _styles(report), strict=True) if any(row.bars)]
    layers = [_Layer(row_name(row, report.heads), style, row.bars) for row, style in drawn if style != "rest"]
    others = [row for row, style in drawn if style == "rest"]
    if others:
        bars = [sum(bars) for bars in zip(*[row.bars for row in others], strict=True)]
        name = row_name(others[0], report.heads) if len(others) == 1 else "(all others)"
        groups = sum(layer.style.startswith("c") for layer in layers)
        layers.insert(groups, _Layer(name, "rest", bars))
    return layers


def _table(report: Report) -> Iterator[str]:
    shown, styles = columns(report), [*_styles(report), ""]
    heads = ["/".join(report.heads), *(column.heading(report) for column in shown)]
    yield '<div class="wide"><table><thead><tr>'
    yield "".join(f"<th>{escape(head)}</th>" for head in heads) + "</tr></thead><tbody>"
    for row, style, (name, *texts) in zip(report.all_rows, styles, cells(report), strict=True):
        kind = {Kind.GROUP: "", Kind.TOTAL: ' class="total"'}.get(row.kind, ' class="nobody"')
        triples = zip(shown, heads[1:], texts, strict=True)
        values = [_cell(column, head, column.value(report, row), text, style) for column, head, text in triples]
        mark = _mark(style) if style and any(row.bars) else ""
        yield f"<tr{kind}><td>{mark}{escape(name)}</td>{''.join(values)}</tr>"
    yield "</tbody></table></div>"


def _cell(column: ReportColumn, head: str, value: float | None, text: str, style: str) -> str:
    """A cell with its heading, which a phone shows beside it."""
    head = f'data-head="{escape(head)}"'
    if column.key != "energy_share" or value is None or not style:
        return f"<td {head}>{escape(text)}</td>"
    rect = f'<rect class="{style}" width="{100 * min(1.0, value):.1f}" height="10"/>'
    return f'<td {head} class="share"><svg class="bar" viewBox="0 0 100 10">{rect}</svg>{escape(text)}</td>'


def _facts(report: Report) -> Iterator[str]:
    yield "<dl>"
    for name, text in facts(report):
        yield f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>"
    step = durations.show(report.span.step_ms / 1000)
    yield f"<dt>created by</dt><dd>gpuledger {escape(__version__)}, in steps of {step}</dd>"
    yield "</dl>"


@dataclass(frozen=True, slots=True)
class _Layer:
    """One colour of the stack: joules per bar."""

    name: str
    style: str
    bars: Sequence[float]


def _stacked(layers: Sequence[_Layer], labels: Sequence[str]) -> str:
    """Stacked bars of energy over time, as SVG; colours come from the style sheet."""
    tallest = max((sum(column) for column in zip(*[layer.bars for layer in layers], strict=True)), default=0.0)
    ceiling = _round_up(tallest / JOULES_PER_KWH) or 1.0
    room, wide = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT) / max(1, len(labels))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="energy over time">']
    for quarter in range(5):
        y = TOP + room * (1 - quarter / 4)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{ceiling * quarter / 4:.3g}</text>')
    for n, label in enumerate(labels):
        x, y = LEFT + n * wide, float(TOP + room)
        for layer in layers:
            kwh = layer.bars[n] / JOULES_PER_KWH
            tall = room * kwh / ceiling
            y -= tall
            if tall >= 0.05:
                title = f"{label}: {layer.name}, {grouped(kwh, 3)} kWh"
                parts.append(
                    f'<rect class="{layer.style}" x="{x + wide * 0.08:.1f}" y="{y:.1f}" width="{wide * 0.84:.1f}" '
                    f'height="{tall:.1f}"><title>{escape(title)}</title></rect>'
                )
        if n % -(-len(labels) // 8) == 0:
            parts.append(f'<text class="when" x="{x + wide * 0.08:.1f}" y="{HEIGHT - 8}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"])


def _round_up(value: float) -> float:
    """The next larger number with one significant digit."""
    if value <= 0:
        return 0.0
    size = 1.0
    while size > value:
        size /= 10
    while size * 10 <= value:
        size *= 10
    return next(size * step for step in (1, 2, 3, 4, 6, 8, 10) if size * step >= value)
