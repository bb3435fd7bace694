"""Charts as SVG, without a script: colours come from the style of the page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpuledger.report.prices import JOULES_PER_KWH
from gpuledger.report.report import number

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 260, 64, 28, 12
COLOURS = 8
"""Classes c0 to c7 of the style; more groups than that are one."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One colour of a stack: joules a bar."""

    name: str
    style: str
    bars: Sequence[float]


def stacked(layers: Sequence[Layer], labels: Sequence[str]) -> str:
    """Energy over time: a bar a label, of all layers on top of each other."""
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
                said = f"{label}: {layer.name}, {number(kwh, 3)} kWh"
                parts.append(
                    f'<rect class="{layer.style}" x="{x + wide * 0.08:.1f}" y="{y:.1f}" width="{wide * 0.84:.1f}" '
                    f'height="{tall:.1f}"><title>{escape(said)}</title></rect>'
                )
        if n % -(-len(labels) // 8) == 0:
            parts.append(f'<text x="{x + wide * 0.08:.1f}" y="{HEIGHT - 8}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"])


def _round_up(value: float) -> float:
    """To the next number that reads well."""
    if value <= 0:
        return 0.0
    size = 1.0
    while size > value:
        size /= 10
    while size * 10 <= value:
        size *= 10
    return next(size * step for step in (1, 2, 3, 4, 6, 8, 10) if size * step >= value)
