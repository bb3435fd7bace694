"""The truth of recordings: energy by the work that was done."""

from __future__ import annotations

from typing import Any

import pytest
from bench import attribution, truth
from bench.truth import find_cycle

from tests import h200

INFER = "timelines/tl-infer-infer-sort.json.gz"
"""Its units are of three sizes, in turns of two seconds."""


def alone(joules_of_second: list[float]) -> Any:
    """A process that does ten units per second, each second with another energy per unit, after a second of rest."""
    energy_mj, rows = 0.0, []
    for second, joules in enumerate([0.0, *joules_of_second, joules_of_second[-1]]):
        power_mw = 100_000 if second == 0 else 0
        rows.append({"t": float(second), "energy_mj": energy_mj, "power_mw": power_mw, "procs": [[1]], "util": [0, 0]})
        energy_mj += joules * 10_000
    log = [[float(second), 10 * (second - 1)] for second in range(1, len(joules_of_second) + 2)]
    return {"name": "made-up", "truth": [{"kind": "work", "pid": 1, "log": log}], "rows": rows, "parked_w": 1e-9}


def test_units_of_one_size() -> None:
    """One energy per unit."""
    timeline = truth.Timeline(alone([2.0] * 12), {})

    assert timeline.missing() == []
    assert timeline.used(3.0, 5.0) == {1: pytest.approx(40.0)}


def test_units_whose_sizes_repeat() -> None:
    """The energy of a unit depends on its place in the cycle."""
    timeline = truth.Timeline(alone([1.0, 1.0, 1.0, 5.0, 5.0, 5.0] * 4), {})

    assert timeline.missing() == []
    assert timeline.used(7.0, 10.0) == {1: pytest.approx(30.0)}
    assert timeline.used(10.0, 13.0) == {1: pytest.approx(150.0)}


def test_units_whose_sizes_do_not_repeat_have_no_truth() -> None:
    """They grow and grow."""
    timeline = truth.Timeline(alone([1.1**second for second in range(20)]), {})

    assert timeline.missing() == ["work"]


def test_the_cycle_of_a_recording() -> None:
    """It is six seconds long, and with it the work explains the energy in every window."""
    recording = h200.load(h200.FOLDER / INFER)
    timeline = truth.Timeline(recording, {})
    (score,), left_out = attribution.evaluate_timelines([], [recording], [5.0])

    (cycle,) = timeline._cycles.values()
    assert len(cycle) * truth.BIN_S == 6.0
    assert max(cycle) > 10 * min(cycle)
    assert not left_out
    assert score.errors["ours"]
    assert score.unknown == 0


def test_a_cycle_must_be_seen_twice() -> None:
    """A single rise is no cycle, nor is a constant, nor what repeats after three quarters of the time."""
    assert find_cycle([(number, float(number)) for number in range(20)]) == []
    assert find_cycle([(number, float(number % 15)) for number in range(20)]) == []
    assert find_cycle([(number, 1.0) for number in range(20)]) == []
    assert find_cycle([]) == []
    assert find_cycle([(number, float(number % 5)) for number in range(20)]) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_windows_without_truth_are_counted() -> None:
    """Units that need more energy next to others than alone."""
    recording = h200.load(h200.FOLDER / "timelines" / "tl-attention-scatter-decode.json.gz")
    solo = [h200.load(path) for path in sorted((h200.FOLDER / "work").glob("solo-*.gz"))]

    (score,), _ = attribution.evaluate_timelines(solo, [recording], [5.0])

    assert score.unknown == 2
    assert len(score.errors["ours"]) == 5
