"""Recordings as ticks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import h200

NATURAL = h200.FOLDER / "natural"


def load(name: str) -> Any:
    """A recording of natural programs."""
    return h200.load(NATURAL / f"{name}.json.gz")


def test_natural_programs_are_read_as_the_exporter_would_read_them() -> None:
    """Ticks of one second with activity in slots of 0.2 s, and programs with names of their own."""
    recording = load("nat-two-trainings")
    ticks = h200.ticks(recording)
    together = ticks[100]
    (reading,) = together.readings

    assert {together.facts[resident.pid].name for resident in reading.residents or ()} == {
        "diffuse",
        "lora",
        "jaxtrain",
    }
    assert len(reading.slots) == 5
    assert [slot.ended_ms for slot in reading.slots] == pytest.approx([890, 690, 490, 290, 90], abs=10)
    assert reading.activity is not None
    assert (ticks[101].time_ns - together.time_ns) / 1e9 == pytest.approx(1, abs=0.01)


def test_without_gpm_a_reading_has_what_older_gpus_report() -> None:
    """No activity and no slots; the same energy, power, utilization and samples."""
    recording = load("nat-two-trainings")

    for with_gpm, without in zip(h200.ticks(recording), h200.ticks(recording, gpm=False), strict=True):
        (before,), (after,) = with_gpm.readings, without.readings
        assert after == replace(before, activity=None, slots=())


def test_slots_of_ticks_can_be_made_from_their_rows() -> None:
    """For a GPU with other sources than GPM. The rows of a tick begin with the last row of the tick before."""
    lengths: list[int] = []

    def slots(rows: list[Any]) -> tuple[()]:
        lengths.append(len(rows))
        return ()

    h200.ticks(load("solo-b"), slots=slots, gpm=False)

    assert lengths[0] == 1
    assert set(lengths[1:]) == {11}


def test_spans_add_up_to_the_energy_of_a_tick() -> None:
    """Five of 0.2 s, by the energy counter; the last one ends with the tick."""
    rows = load("nat-two-trainings")["rows"][1000:1011]
    spans = h200.spans(rows)

    assert [span.ended_ms for span in spans] == pytest.approx([800, 600, 400, 200, 0], abs=5)
    used_mj = rows[-1]["energy_mj"] - rows[0]["energy_mj"]
    assert sum(span.power_mw * span.seconds for span in spans) == pytest.approx(used_mj)
    assert [span.utilization_pct for span in spans] == [row["util"][0] for row in rows[2::2]]


def test_spans_use_power_samples_where_they_were_recorded() -> None:
    """Their mean replaces that of the counter."""
    rows = [
        {
            "t": 0.1 * number,
            "energy_mj": 50_000 * number,
            "util": [90, 40],
            "power_samples": [[number, 400_000 + number]],
        }
        for number in range(3)
    ]
    (span,) = h200.spans(rows)

    assert span.power_mw == 400_001.5
