"""Durations as people write them: 500ms, 10s, 5m, 1h30m. Exact to the microsecond."""

from __future__ import annotations

import re

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST_S = 36500 * UNITS_S["d"]
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])")
WHOLE = re.compile(rf"(?:{PART.pattern})+")


def parse(text: str) -> float:
    """Seconds; ValueError with the expected format."""
    if not WHOLE.fullmatch(text):
        raise ValueError("is not a duration; write it as 500ms, 10s or 5m")
    seconds = sum(float(number) * UNITS_S[unit] for number, unit in PART.findall(text))
    if seconds > LONGEST_S:
        raise ValueError("is too long; write at most 36500d")
    return round(seconds, 6)


def show(seconds: float) -> str:
    """The duration in the largest unit that gives a whole number, 0 as `0s`; the inverse of `parse`."""
    if not seconds:
        return "0s"
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    milliseconds = f"{seconds * 1000:.3f}".rstrip("0").rstrip(".")
    return f"{milliseconds}ms"
