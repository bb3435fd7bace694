"""Readings of a real H200 as ticks, for tests and for measuring; the format is in data/h200/README.md."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.model import Activity, Device, Driver, Facts, Reading, Resident, Sample, Slot, Tick

FOLDER = Path(__file__).parent / "data" / "h200"
GPU = Device(0, "GPU-h200", name="NVIDIA H200")


def load(path: Path) -> Any:
    """One recording."""
    with gzip.open(path) as file:
        return json.load(file)


def ticks(
    recording: Any,
    every: int = 10,
    most_s: float | None = None,
    later_s: float = 0.0,
    *,
    slots: Callable[[list[Any]], tuple[Slot, ...]] | None = None,
    gpm: bool = True,
) -> list[Tick]:
    """Its readings, `every` of them together as one tick: 10 make a second, as the exporter would have read it.

    `later_s` moves it in time, so that several can be played one after the other. A process has the name of its kind
    of work: the same program with another load has the same name. Without `gpm`, the readings have no activity, as on
    GPUs before Hopper. `slots` makes the slots of a tick from its rows and the one before them; by default they are
    the recorded activities, or none without `gpm`.
    """
    made = []
    samples: dict[int, list[Sample]] = {}
    answers = 0
    told = names(recording)
    start_ticks = int(recording["start"] * 100)  # pids come again in other recordings; these are not the same processes
    activities = _activities(recording["rows"])
    make_slots = slots or (_slots if gpm else _no_slots)
    since = 0
    for number, row in enumerate(recording["rows"]):
        answers += bool(row.get("proc_util"))
        for pid, timestamp_us, sm, memory in row.get("proc_util") or ():
            samples.setdefault(pid, []).append(Sample(pid, timestamp_us + int(later_s * 1e6), sm, memory))
        if number % every:
            continue
        if most_s is not None and row["t"] - recording["start"] > most_s:
            break
        pids = [pid for pid, _ in row["procs"]]
        reading = Reading(
            GPU,
            energy_mj=row["energy_mj"],
            power_mw=row["power_mw"],
            power_limit_mw=700_000,
            clocks_mhz=(("sm", row["sm_mhz"]),) if "sm_mhz" in row else (),
            max_clocks_mhz=(("sm", 1980),),
            utilization_pct=row["util"][0],
            memory_utilization_pct=row["util"][1],
            activity=_activity(activities[since + 1 : number + 1]) if gpm else None,
            slots=make_slots(recording["rows"][since : number + 1]),
            residents=tuple(Resident(pid, "compute", held) for pid, held in row["procs"]),
            samples=tuple(_mean(rows, answers) for rows in samples.values()),
        )
        samples, answers, since = {}, 0, number
        # Processes that did no work of ours: the server of MPS.
        facts = {
            pid: Facts(
                pid,
                start_ticks,
                0,
                told.get(pid, ""),
                mps_server="" if pid in told else "root",
                program=told.get(pid, ""),
            )
            for pid in pids
        }
        made.append(Tick(int((row["t"] + later_s) * 1e9), Driver(up=True), (reading,), facts=facts))
    return made


def names(recording: Any) -> dict[int, str]:
    """By pid, the kind of its work, without how often it pauses: `big` of `big@0.3`, both of one that changes."""
    kinds: dict[int, list[str]] = {}
    for work in recording["truth"]:
        kinds.setdefault(work["pid"], []).append(work["kind"].partition("@")[0])
    return {pid: ">".join(of) for pid, of in kinds.items()}


def _mean(rows: list[Sample], answers: int) -> Sample:
    """What the driver says when asked less often: the mean, with the last time."""
    sm_pct = round(sum(row.sm_pct for row in rows) / answers)
    return Sample(rows[0].pid, rows[-1].timestamp_us, sm_pct, rows[-1].memory_pct)


GPM = {
    "1": "graphics_pct", "2": "sm_pct", "3": "occupancy_pct", "5": "tensor_pct", "10": "dram_pct",
    "11": "fp64_pct", "12": "fp32_pct", "13": "fp16_pct",
}  # fmt: skip


def _activities(rows: list[Any]) -> list[dict[str, float] | None]:
    """For each row the activity it lies in: every fifth tells that of itself and the four before."""
    found: list[dict[str, float] | None] = [None] * len(rows)
    since = 0
    for number, row in enumerate(rows):
        if "gpm" in row:
            found[since : number + 1] = [row["gpm"]] * (number + 1 - since)
            since = number + 1
    return found


def _no_slots(_: list[Any]) -> tuple[Slot, ...]:
    return ()


def _slots(rows: list[Any]) -> tuple[Slot, ...]:
    """The recorded activities that end in a tick; none if there is only one."""
    slots = []
    for row in rows[1:]:
        if (activity := _activity([row.get("gpm")])) is not None:
            ended_ms = max(0, round((rows[-1]["t"] - row.get("t_gpm", row["t"])) * 1000))
            slots.append(Slot(activity, row.get("sm_mhz"), row["power_mw"], ended_ms))
    return tuple(slots) if len(slots) > 1 else ()


@dataclass(frozen=True, slots=True)
class Span:
    """What every GPU reports for a part of a tick, about 0.2 s."""

    seconds: float
    power_mw: float
    """Mean: of the driver's power samples if they were recorded, else by the energy counter."""
    utilization_pct: int
    """At its end, as the others."""
    memory_utilization_pct: int
    sm_clock_mhz: int | None
    ended_ms: int
    """How long before the tick it ended."""


def spans(rows: list[Any], every: int = 2) -> list[Span]:
    """The parts of a tick, of `every` rows each; `rows` begin with the row before the tick."""
    made = []
    for last in range(every, len(rows), every):
        part = rows[last - every : last + 1]
        before, after = part[0], part[-1]
        seconds = after.get("t_energy", after["t"]) - before.get("t_energy", before["t"])
        samples = [power_mw for row in part[1:] for _, power_mw in row.get("power_samples") or ()]
        by_counter = (after["energy_mj"] - before["energy_mj"]) / seconds
        power_mw = sum(samples) / len(samples) if samples else by_counter
        utilization_pct, memory_pct = after["util"]
        ended_ms = round((rows[-1]["t"] - after["t"]) * 1000)
        made.append(Span(seconds, power_mw, utilization_pct, memory_pct, after.get("sm_mhz"), ended_ms))
    return made


def power_slots(rows: list[Any]) -> tuple[Slot, ...]:
    """The slots of a tick as the exporter reads them from a GPU before Hopper; none while fewer than two share it."""
    if len(rows[-1]["procs"]) < 2:
        return ()
    return tuple(
        Slot(
            Activity(),
            power_mw=round(span.power_mw),
            ended_ms=span.ended_ms,
            utilization_pct=span.utilization_pct,
            memory_utilization_pct=span.memory_utilization_pct,
        )
        for span in spans(rows)
    )


def _activity(parts: list[dict[str, float] | None]) -> Activity | None:
    """What GPM says of a longer time: the mean."""
    told = [part for part in parts if part is not None]
    if not told:
        return None
    return Activity(**{name: sum(part[key] for part in told) / len(told) for key, name in GPM.items()})  # type: ignore[arg-type]


MIG_UNITS = {
    "graphics_active": "graphics_pct", "sm_active": "sm_pct", "sm_occupancy": "occupancy_pct",
    "tensor_active": "tensor_pct", "dram_active": "dram_pct", "integer_active": "integer_pct",
    "fp64_active": "fp64_pct", "fp32_active": "fp32_pct", "fp16_active": "fp16_pct",
}  # fmt: skip


def mig_ticks(recording: Any) -> list[Tick]:
    """Readings of a GPU with MIG instances, one tick per row; an instance without activity has None."""
    start_ticks = int(recording["rows"][0]["t"] * 100)
    told = names(recording)
    made = []
    for row in recording["rows"]:
        residents: dict[str, list[Resident]] = {}
        for pid, uuid, *_ in row["procs"]:
            residents.setdefault(uuid, []).append(Resident(pid, "compute"))
        gpu = Reading(
            GPU,
            energy_mj=row["energy_mj"],
            power_mw=int(row["power_w"] * 1000),
            power_limit_mw=700_000,
            clocks_mhz=(("sm", row["sm_mhz"]),),
            max_clocks_mhz=(("sm", 1980),),
            residents=(),
        )
        instances = [
            Reading(
                Device(
                    0,
                    uuid,
                    name=GPU.name,
                    parent_uuid=GPU.uuid,
                    gpu_instance_id=number + 1,
                    mig_profile=instance["profile"],
                    multiprocessors=instance["multiprocessors"],
                ),
                memory_used_bytes=instance["memory_used_bytes"],
                residents=tuple(residents.get(uuid, ())),
                activity=_mig_activity(instance),
            )
            for number, (uuid, instance) in enumerate(row["instances"].items())
        ]
        facts = {pid: Facts(pid, start_ticks, 0, told.get(pid, "python")) for pid, *_ in row["procs"]}
        made.append(Tick(int(row["t"] * 1e9), Driver(up=True), (gpu, *instances), facts=facts))
    return made


def _mig_activity(instance: Any) -> Activity | None:
    if "sm_active" not in instance:
        return None
    return Activity(**{name: instance[key] * 100 for key, name in MIG_UNITS.items() if key in instance})
