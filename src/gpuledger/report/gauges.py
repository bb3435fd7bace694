"""How long something was there, and how much of it, in a cell: every sample counts for the time to the next. Pure."""

from __future__ import annotations

TICK = "gpuledger_tick_timestamp_seconds"


def amounts(series: str, window: str, ids: tuple[str, ...], samples: str = "sum_over_time") -> str:
    """Value times seconds, each series once however many scrape it; with count_over_time, seconds."""
    weighed = f"{samples}({series}[{window}]) * on (instance, job) group_left () {_spacing(window)}"
    return f"topk by ({', '.join(ids)}) (1, {weighed})"


def seconds(vector: str, group: tuple[str, ...], step_s: float) -> str:
    """GPU-seconds of `amounts` of 1: a GPU counts once in a group, however many of the group are on it."""
    by = ", ".join(dict.fromkeys(("uuid", *group)))
    return f"clamp_max(sum by ({by}) ({vector}), {step_s:g})"


def _spacing(window: str) -> str:
    """Seconds between two samples of each target, by the clock of its exporter."""
    passed = f"max_over_time({TICK}[{window}]) - min_over_time({TICK}[{window}])"
    return f"max by (instance, job) (({passed}) / ((count_over_time({TICK}[{window}]) > 1) - 1))"
