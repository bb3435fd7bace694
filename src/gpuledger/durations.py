"""Durations as people write them: 500ms, 10s, 5m, 1h30m."""

from __future__ import annotations

import re

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
WHOLE = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


def parse(text: str) -> float:
    """Seconds; ValueError says what would be right."""
    if not WHOLE.fullmatch(text):
        raise ValueError("is not a duration; write it as 500ms, 10s or 5m")
    return sum(float(number) * UNITS_S[unit] for number, unit in PART.findall(text))


def show(seconds: float) -> str:
    """The shortest way to write it."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:g}ms"
