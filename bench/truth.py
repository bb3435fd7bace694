"""Ground truth of a recording: the energy of each process, from the work it did."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

Joules = dict[str, float]
"""Joules above parked power per unit of work, by kind."""


def kind(work: Any) -> str:
    """Kind without its load: `big@0.3` does the same units as `big`."""
    return str(work["kind"].partition("@")[0])


def pids(recording: Any) -> list[int]:
    """Pids with known work, without duplicates: a process that changes its work has two lines."""
    return list(dict.fromkeys(work["pid"] for work in recording["truth"]))


def joules_per_unit(recordings: Iterable[Any]) -> Joules:
    """Energy per unit from recordings of single processes; continuous work takes precedence over work with pauses."""
    joules_by_kind: Joules = {}
    for recording in sorted(recordings, key=lambda recording: "@" in recording["truth"][0]["kind"]):
        if len(recording["truth"]) == 1:
            joules_by_kind.setdefault(kind(recording["truth"][0]), _joules_per_unit(recording))
    return joules_by_kind


def _joules_per_unit(recording: Any) -> float:
    """Energy above parked power per unit. Parked power is the power before the work began."""
    (work,) = recording["truth"]
    begin, end = work["log"][0][0], work["log"][-1][0]
    first = recording["rows"][0]["t_energy"]
    parked_w = (_joules_at(recording, begin) - _joules_at(recording, first)) / (begin - first)
    above = _joules_at(recording, end) - _joules_at(recording, begin) - parked_w * (end - begin)
    units = work["log"][-1][1] - work["log"][0][1]
    return float(above / units) if units else 0.0


def used(recording: Any, joules: Joules, begin: float, end: float) -> dict[int, float]:
    """Joules above parked power between two times, by pid."""
    joules_by_pid = dict.fromkeys(pids(recording), 0.0)
    for work in recording["truth"]:
        units = _between(work["log"], end) - _between(work["log"], begin)
        joules_by_pid[work["pid"]] += units * joules.get(kind(work), 0.0)
    return joules_by_pid


def _joules_at(recording: Any, time_s: float) -> float:
    return _between([(row["t_energy"], row["energy_mj"]) for row in recording["rows"]], time_s) / 1000


def _between(points: list[Any], time_s: float) -> float:
    """Linear interpolation at a time; constant before the first and after the last point."""
    if time_s <= points[0][0]:
        return float(points[0][1])
    for (before, low), (after, high) in pairwise(points):
        if before <= time_s <= after:
            return float(low + (high - low) * (time_s - before) / ((after - before) or 1.0))
    return float(points[-1][1])
