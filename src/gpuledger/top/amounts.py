"""Numbers as people read them: three digits that matter, in one unit a column."""

from __future__ import annotations

from gpuledger.top.line import Glyphs

GIB = 1 << 30


def amount(value: float | None, glyphs: Glyphs, unit: float = 1) -> str:
    """In that unit; what is not known is a dash, never 0."""
    if value is None:
        return glyphs.none
    shown = value / unit
    if shown >= 1e6:
        return f"{shown:.2g}"
    return f"{shown:.2f}" if shown < 9.995 else f"{shown:.1f}" if shown < 999.95 else f"{shown:.0f}"


def gib(value: float | None, glyphs: Glyphs) -> str:
    """Memory."""
    return amount(value, glyphs, GIB)


def percent(ratio: float | None, glyphs: Glyphs) -> str:
    """A share, without its sign."""
    return glyphs.none if ratio is None else f"{ratio * 100:.0f}" if ratio < 1e4 else ">999999"


def whole(value: float | None, glyphs: Glyphs) -> str:
    """Watts of a GPU, degrees."""
    return glyphs.none if value is None else f"{value:.0f}" if value < 1e6 else f"{value:.1g}"


def span(seconds: float | None, glyphs: Glyphs) -> str:
    """How long something has lasted."""
    if seconds is None:
        return glyphs.none
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if days >= 10_000:
        return f">{9999}d"
    if days >= 1:
        return f"{days:.0f}d{hours % 24:02.0f}h"
    return f"{hours:.0f}h{minutes % 60:02.0f}m" if hours else f"{minutes:.0f}m{seconds % 60:02.0f}s"
