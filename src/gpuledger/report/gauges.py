"""How long something was there, and how much of it, in a cell: every sample counts for the time to the next. Pure."""

from __future__ import annotations

TICK = "gpuledger_tick_timestamp_seconds"
SPACING_MS = 900_000
"""Where there are no two scrapes in a cell, they are looked for in this time before its end."""


def amounts(series: str, window_ms: int, ids: tuple[str, ...], samples: str = "sum_over_time") -> str:
    """Value times seconds, each series once however many scrape it; with count_over_time, seconds."""
    weighed = f"{samples}({series}[{window_ms}ms]) * on (instance, job) group_left () {_spacing(window_ms)}"
    return f"topk by ({', '.join(ids)}) (1, {weighed})"


def seconds(vector: str, group: tuple[str, ...], step_s: float) -> str:
    """GPU-seconds of `amounts` of 1: a GPU counts once in a group, however many of the group are on it."""
    by = ", ".join(dict.fromkeys(("uuid", *group)))
    return f"clamp_max(sum by ({by}) ({vector}), {step_s:.3f})"


def _spacing(window_ms: int) -> str:
    """Seconds between two samples of each target; where a cell has one, in the time before, but a cell's at most."""
    if window_ms >= SPACING_MS:
        return _between(window_ms)
    return f"({_between(window_ms)} or clamp_max({_between(SPACING_MS)}, {(window_ms + 1) / 1000:.3f}))"


def _between(window_ms: int) -> str:
    """By the clock of its exporter."""
    passed = f"max_over_time({TICK}[{window_ms}ms]) - min_over_time({TICK}[{window_ms}ms])"
    return f"max by (instance, job) (({passed}) / ((count_over_time({TICK}[{window_ms}ms]) > 1) - 1))"
