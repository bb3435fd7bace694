"""Energy of natural programs: joules and engine time of each unit of work, by regression on programs alone.

A natural program does units of several sizes, such as prompt tokens and steps of decoding. While it is alone,
E - parked power x time = sum over units of count x joules. With joules of each unit, its log of counts becomes a log of
joules also where it shared the GPU. The same with the activity of the compute engine gives its time on the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.truth import PARKED_W, Counter

ENGINE = "1"
"""GPM: part of the time in which the compute engine was busy."""
EVENTS = "event_s"
"""In logs, the time between CUDA events; no unit of work."""
BIN_S = 1.0
LEAST_BINS = 5
ROUNDS = 500
"""Of the coordinate descent; programs have at most four units."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one unit of work needs."""

    joules: float
    engine_s: float


Rates = Mapping[str, Mapping[str, Rate]]
"""By kind of program and unit."""


def units(work: Any) -> dict[str, Counter]:
    """The counts of each unit in the log of a process."""
    names = [name for name in work["log"][-1][1] if name != EVENTS]
    return {name: Counter((time_s, counts.get(name, 0.0)) for time_s, counts in work["log"]) for name in names}


def rates(alone: Iterable[Any]) -> dict[str, dict[str, Rate]]:
    """What each unit needs, from recordings in which processes work one after another."""
    rows: dict[str, list[list[float]]] = {}
    joules: dict[str, list[float]] = {}
    engine_s: dict[str, list[float]] = {}
    names: dict[str, list[str]] = {}
    for recording in alone:
        energy, engine = Counter.of(recording), Counter.of(recording, ENGINE)
        parked_w = recording.get("parked_w") or PARKED_W
        for work in recording["truth"]:
            kind, counters = work["kind"], units(work)
            begin, end = work["log"][0][0], work["log"][-1][0]
            names.setdefault(kind, sorted(counters))
            for number in range(int((end - begin) / BIN_S)):
                span = begin + number * BIN_S, begin + (number + 1) * BIN_S
                rows.setdefault(kind, []).append([counters[name].between(*span) for name in names[kind]])
                joules.setdefault(kind, []).append(energy.between(*span) - parked_w * BIN_S)
                engine_s.setdefault(kind, []).append(engine.between(*span))
    if few := [kind for kind in names if len(rows.get(kind, ())) < LEAST_BINS]:
        raise ValueError(
            f"too short to measure units: {', '.join(few)}; record at least {LEAST_BINS * BIN_S:g} s alone"
        )
    return {
        kind: {
            name: Rate(*pair)
            for name, *pair in zip(
                of_kind, least_squares(rows[kind], joules[kind]), least_squares(rows[kind], engine_s[kind]), strict=True
            )
        }
        for kind, of_kind in names.items()
    }


def in_joules(recording: Any, rates: Rates) -> dict[str, Any]:
    """A recording whose logs are joules above parked power; counts and engine time are kept beside them."""
    if missing := sorted({work["kind"] for work in recording["truth"]} - set(rates)):
        raise ValueError(f"{recording['name']}: no recording of {', '.join(missing)} alone")
    return {**recording, "unit": "joule", "truth": [
        {
            **work,
            "log": _weighted(work, {unit: rate.joules for unit, rate in rates[work["kind"]].items()}),
            "engine_s": _weighted(work, {unit: rate.engine_s for unit, rate in rates[work["kind"]].items()}),
            "units": work["log"],
        }
        for work in recording["truth"]
    ]}  # fmt: skip


def _weighted(work: Any, weights: Mapping[str, float]) -> list[list[float]]:
    return [
        [time_s, sum(weights.get(unit, 0.0) * count for unit, count in counts.items())]
        for time_s, counts in work["log"]
    ]


def explained(recording: Any) -> float:
    """The energy of all work relative to the energy above parked power, while any of the processes worked.

    Far from 1, units need another energy next to others than alone, or the GPU did something else.
    """
    begin = min(work["log"][0][0] for work in recording["truth"])
    end = max(work["log"][-1][0] for work in recording["truth"])
    measured = Counter.of(recording).between(begin, end) - recording["parked_w"] * (end - begin)
    return float(sum(work["log"][-1][1] for work in recording["truth"]) / measured)


def least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Non-negative x that minimizes |rows x - values|^2, by coordinate descent on the normal equations."""
    size = len(rows[0])
    squares = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    products = [sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(size)]
    x = [0.0] * size
    for _ in range(ROUNDS):
        for i in range(size):
            if squares[i][i] > 0:
                rest = products[i] - sum(squares[i][j] * x[j] for j in range(size) if j != i)
                x[i] = max(0.0, rest / squares[i][i])
    return x
