"""Readings of a real H200 as ticks, for tests and for measuring; the format is in data/h200/README.md."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from gpuledger.model import Device, Driver, Facts, Reading, Resident, Sample, Tick

FOLDER = Path(__file__).parent / "data" / "h200"
GPU = Device(0, "GPU-h200", name="NVIDIA H200")


def load(path: Path) -> Any:
    """One recording."""
    with gzip.open(path) as file:
        return json.load(file)


def ticks(recording: Any, every: int = 10, most_s: float | None = None) -> list[Tick]:
    """Its readings, `every` of them together as one tick: 10 make a second, as the exporter would have read it."""
    made = []
    samples: dict[int, list[Sample]] = {}
    answers = 0
    told = {work["pid"] for work in recording["truth"]}
    for number, row in enumerate(recording["rows"]):
        answers += bool(row.get("proc_util"))
        for pid, timestamp_us, sm, memory in row.get("proc_util") or ():
            samples.setdefault(pid, []).append(Sample(pid, timestamp_us, sm, memory))
        if number % every:
            continue
        if most_s is not None and row["t"] - recording["start"] > most_s:
            break
        pids = [pid for pid, _ in row["procs"]]
        # Processes that did no work of ours: the server of MPS.
        names = {pid: "python3" if pid in told else "nvidia-cuda-mps" for pid in pids}
        reading = Reading(
            GPU,
            energy_mj=row["energy_mj"],
            power_mw=row["power_mw"],
            power_limit_mw=700_000,
            utilization_pct=row["util"][0],
            memory_utilization_pct=row["util"][1],
            residents=tuple(Resident(pid, "compute", held) for pid, held in row["procs"]),
            samples=tuple(_mean(rows, answers) for rows in samples.values()),
        )
        samples, answers = {}, 0
        facts = {pid: Facts(pid, 100, 0, name) for pid, name in names.items()}
        made.append(Tick(int(row["t"] * 1e9), Driver(up=True), (reading,), facts=facts))
    return made


def _mean(rows: list[Sample], answers: int) -> Sample:
    """What the driver says when asked less often: the mean, with the last time."""
    sm_pct = round(sum(row.sm_pct for row in rows) / answers)
    return Sample(rows[0].pid, rows[-1].timestamp_us, sm_pct, rows[-1].memory_pct)
