"""Recordings of a real H200 in which one process prepares its bill: parts of recordings, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tests import h200

PARKED_MW = 122_000
FIRST = 1_000_000
"""First pid of those that are made up."""


def part(recording: Any, seconds: float, pids: Mapping[int, int], power: float = 1.0) -> Any:
    """The first seconds of work in a recording, by other pids, and with this part of its power above parked power."""
    begin = min(work["log"][0][0] for work in recording["truth"])
    rows = [copy.deepcopy(row) for row in recording["rows"] if begin <= row["t"] <= begin + seconds]
    first = rows[0]
    for row in rows:
        for row_list in ("procs", "proc_util"):
            for entry in row.get(row_list) or ():
                entry[0] = pids.get(entry[0], entry[0])
        parked_mj = PARKED_MW * (row["t"] - first["t"])
        row["energy_mj"] = int(parked_mj + power * (row["energy_mj"] - first["energy_mj"] - parked_mj))
    return {**recording, "rows": rows}


def followed(before: Any, recording: Any) -> Any:
    """A recording right after another one, on the same GPU and with the same processes."""
    recording = copy.deepcopy(recording)
    last, first = before["rows"][-1], recording["rows"][0]
    shift_s = first["t"] - 0.1 - last["t"]
    energy_mj = first["energy_mj"] - last["energy_mj"] - (first["power_mw"] // 10)
    rows = copy.deepcopy(before["rows"])
    for row in rows:
        for key in ("t", "t_gpm", "t_energy"):
            if key in row:
                row[key] += shift_s
        row["energy_mj"] += energy_mj
        for sample in row.get("proc_util") or ():
            sample[1] += int(shift_s * 1e6)
    return {**recording, "rows": rows + recording["rows"]}


def load(name: str) -> Any:
    """A recording of tests/data/h200."""
    return h200.load(h200.FOLDER / f"{name}.json.gz")


def pid_of(recording: Any, kind: str) -> int:
    """The pid of a kind of work."""
    return next(int(work["pid"]) for work in recording["truth"] if work["kind"] == kind)


def between_samples(recording: Any, pid: int, every: int = 0) -> Any:
    """A recording in which no sample names a process: it works between the samples, whose times it can read.

    With `every`, one of so many samples names it.
    """
    recording = copy.deepcopy(recording)
    times = sorted(
        {sample[1] for row in recording["rows"] for sample in row.get("proc_util") or () if sample[0] == pid}
    )
    kept = set(times[every - 1 :: every]) if every else set()
    for row in recording["rows"]:
        row["proc_util"] = [of for of in row.get("proc_util") or () if of[0] != pid or of[1] in kept]
    return recording


def beside_an_idle_process(recording: Any, pid: int) -> Any:
    """A recording with one more process, which never works."""
    recording = copy.deepcopy(recording)
    for row in recording["rows"]:
        row["procs"] += [[FIRST, *entry[1:]] for entry in row["procs"] if entry[0] == pid]
    return recording


def in_short_processes(recording: Any, pid: int, life_s: float) -> Any:
    """A recording in which the work of one process is that of many, one after the other; their pids are new."""
    recording = copy.deepcopy(recording)
    start = recording["rows"][0]["t"]

    def at(time_s: float) -> int:
        return FIRST + max(0, int((time_s - start) / life_s))

    for row in recording["rows"]:
        for entry in row["procs"]:
            entry[0] = at(row["t"]) if entry[0] == pid else entry[0]
        for sample in row.get("proc_util") or ():
            sample[0] = at(sample[1] / 1e6) if sample[0] == pid else sample[0]
    line = next(work for work in recording["truth"] if work["pid"] == pid)
    pids = sorted({entry[0] for row in recording["rows"] for entry in row["procs"] if entry[0] >= FIRST})
    recording["truth"] += [{**line, "pid": other} for other in pids]
    return recording
