"""How long something was there, and how much of it, in a cell: every sample counts for the time since the one before.

The samples of a target in a cell stand for the time from the last one before it: cells meet, however many scrapes are
in each, and also where some were missed. Pure.
"""

from __future__ import annotations

TICK = "gpuledger_tick_timestamp_seconds"
TARGET = ("instance", "job")
LOOKBACK_S = 300
"""How old a sample may be for Prometheus to be that of a moment."""


def amounts(series: str, step_ms: int, ids: tuple[str, ...]) -> str:
    """Value times seconds, each series once however many scrape it."""
    return f"topk by ({', '.join(ids)}) (1, {_mean(series, step_ms)} * {_on_target()} {_covered(step_ms)})"


def shares(series: str, step_ms: int, ids: tuple[str, ...], samples: str = "sum_over_time") -> str:
    """Of a series of 1, the share of its target's scrapes in which it was there; with count_over_time, of any."""
    return f"topk by ({', '.join((*TARGET, *ids))}) (1, {_mean(series, step_ms, samples)})"


def seconds(shares: str, group: tuple[str, ...], step_ms: int) -> str:
    """GPU-seconds: a GPU counts once in a group, however many of the group are on it and however many scrape it."""
    by = tuple(dict.fromkeys(("uuid", *group)))
    one = f"clamp_max(sum by ({', '.join(dict.fromkeys((*TARGET, *by)))}) ({shares}), 1)"
    return f"max by ({', '.join(by)}) ({one} * {_on_target()} {_covered(step_ms)})"


def _mean(series: str, step_ms: int, samples: str = "sum_over_time") -> str:
    """Over the scrapes of its target in the cell, 0 where it is missing."""
    scrapes = f"max by ({', '.join(TARGET)}) (count_over_time({TICK}[{_window(step_ms)}]))"
    return f"{samples}({series}[{_window(step_ms)}]) / {_on_target()} {scrapes}"


def _covered(step_ms: int) -> str:
    """Seconds that the scrapes of each target in the cell stand for, by the clock of its exporter."""
    by, window = ", ".join(TARGET), _window(step_ms)
    before = f"max by ({by}) ({TICK} offset {step_ms}ms) or min by ({by}) (min_over_time({TICK}[{window}]))"
    passed = f"max by ({by}) (max_over_time({TICK}[{window}])) - ({before})"
    return f"clamp_max(clamp_min({passed}, 0), {step_ms / 1000 + LOOKBACK_S:.3f})"  # a clock may be set


def _on_target() -> str:
    return f"on ({', '.join(TARGET)}) group_left ()"


def _window(step_ms: int) -> str:
    """In Prometheus 2 a sample at either end of a window is in it, so in two of them."""
    return f"{max(1, step_ms - 1)}ms"
