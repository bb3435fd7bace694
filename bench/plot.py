"""Cumulative distribution of the errors, as text and as SVG."""

from __future__ import annotations

from collections.abc import Mapping

MOST = 0.6
"""Upper end of the error axis."""
STEPS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
COLORS = {"equal": "#999999", "kepler": "#e09f3e", "sm_time": "#9e2a2b", "ours": "#2d6a4f"}
WIDE, HIGH, EDGE = 640, 360, 48


def text(errors: Mapping[str, list[float]]) -> str:
    """Table with one row per estimator and one column per error."""
    lines = [f"{'':10}" + "".join(f"{f'<= {step:g}':>9}" for step in STEPS)]
    for name, values in errors.items():
        parts = (sum(error <= step for error in values) / len(values) for step in STEPS)
        lines.append(f"{name:10}" + "".join(f"{part:9.0%}" for part in parts))
    return "\n".join(lines)


def svg(errors: Mapping[str, list[float]], title: str) -> str:
    """Step plot of the distribution functions; further left is better."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDE}" height="{HIGH}" fill="#ffffff"/>',
        f'<text x="{EDGE}" y="20" font-size="14">{title}</text>',
    ]
    for number in range(7):
        error = number / 10
        parts.append(f'<text x="{_x(error):.0f}" y="{HIGH - EDGE + 18}" text-anchor="middle">{error:g}</text>')
        parts.append(f'<path d="M{_x(error):.0f} {_y(0):.0f}V{_y(1):.0f}" stroke="#eeeeee"/>')
    for number in range(0, 101, 25):
        part = number / 100
        parts.append(f'<text x="{EDGE - 6}" y="{_y(part) + 4:.0f}" text-anchor="end">{number} %</text>')
        parts.append(f'<path d="M{_x(0):.0f} {_y(part):.0f}H{_x(MOST):.0f}" stroke="#eeeeee"/>')
    for place, (name, values) in enumerate(errors.items()):
        line = f"M{_x(0):.1f} {_y(0):.1f}"
        for done, error in enumerate(sorted(values), 1):
            line += f"H{_x(min(error, MOST)):.1f}V{_y(done / len(values)):.1f}"
        color = COLORS.get(name, "#000000")
        parts.append(f'<path d="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDE - 110}" y="{HIGH - 130 + 18 * place}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _x(error: float) -> float:
    return EDGE + error / MOST * (WIDE - 2 * EDGE)


def _y(part: float) -> float:
    return HIGH - EDGE - part * (HIGH - 2 * EDGE)
