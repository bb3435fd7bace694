"""`python -m bench.sharing`: CPU time of fingerprints in a tick, on GPUs that many processes share.

Processes are first alone for some seconds, so that they get a fingerprint: all of them, or all but half of them, which
remain strangers. Then all processes work at the same time, and the activity differs between the slots of a tick.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import sub

from bench.table import Budget, table

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import Activity, Device, Driver, Facts, Reading, Resident, Sample, Slot, Tick

CASES = ((8, 4), (8, 8), (8, 64))
LIMIT_MS, RAISED = 6.0, "2 ms sufficed for shares that were off by 0.15 with real programs, in place of 0.06"
TICKS = 200
ROUNDS = 3
"""The fastest round counts: a busy machine only adds time."""
ALONE = 6
"""Ticks in which each process is alone."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of the book stage per tick, in milliseconds."""

    gpus: int
    processes: int
    sm_time_ms: float
    fingerprint_ms: float
    strangers_ms: float
    """With half of the processes never alone."""
    added_ms: float
    """What fingerprints add, in the more expensive case: the median difference between ticks measured in turns."""


def measure(*, quick: bool = False) -> list[Cost]:
    """Measure all cases, with and without fingerprints."""
    times, rounds = (TICKS // 10, 1) if quick else (TICKS, ROUNDS)
    return [
        min((_measure(gpus, each, times) for _ in range(rounds)), key=lambda cost: cost.sm_time_ms)
        for gpus, each in CASES
    ]


def _measure(gpus: int, each: int, times: int) -> Cost:
    """Ticks of all three kinds in turns, so that a machine that slows down slows all of them."""
    ticks = zip(
        _ticks_ms(gpus, each, each, "sm_time", times),
        _ticks_ms(gpus, each, each, "fingerprint", times),
        _ticks_ms(gpus, each, each // 2, "fingerprint", times),
        strict=True,
    )
    by_time, known, half = zip(*ticks, strict=True)
    return Cost(
        gpus,
        each,
        sm_time_ms=statistics.median(by_time),
        fingerprint_ms=statistics.median(known),
        strangers_ms=statistics.median(half),
        added_ms=max(statistics.median(map(sub, taken, by_time)) for taken in (known, half)),
    )


def _ticks_ms(gpus: int, each: int, known: int, method: str, times: int) -> Iterator[float]:
    """CPU time of each tick in which all processes work; some of them were alone before."""
    chance = random.Random(1)
    books = Books(policy=Policy(method=method))
    shapes = {pid: [chance.random() for _ in range(5)] for pid in range(1, gpus * each + 1)}
    now_s = 1_700_000_000
    energy_mj = 0
    for step in range(ALONE * known + times):
        now_s += 1
        energy_mj += 500_000
        alone = step // ALONE if step < ALONE * known else None
        readings = tuple(
            _reading(gpu, range(gpu * each + 1, (gpu + 1) * each + 1), alone, shapes, now_s, energy_mj, chance)
            for gpu in range(gpus)
        )
        facts = {pid: Facts(pid, 1, 0, f"work{pid}", program=f"{pid}") for pid in shapes}
        tick = Tick(now_s * 10**9, Driver(up=True), readings, facts=facts)
        started = time.process_time()
        booked = books.book(tick)
        taken = time.process_time() - started
        if alone is None:
            yield taken * 1000
    used = {name for use in booked.processes for name, _ in use.energy_mj}
    if method not in used:
        raise AssertionError(f"nothing was split by {method}: {used}")


def _reading(
    gpu: int, pids: range, alone: int | None, shapes: dict[int, list[float]], now_s: int, energy_mj: int,
    chance: random.Random,
) -> Reading:  # fmt: skip
    """Reading with one process, or with all processes and changing activity."""
    present = pids if alone is None else pids[alone : alone + 1]
    parts = {pid: chance.random() for pid in present}
    whole = sum(parts.values())
    activity = _activity(parts, shapes)
    slots = [_activity({pid: part * chance.random() for pid, part in parts.items()}, shapes) for _ in range(5)]
    return Reading(
        Device(gpu, f"GPU-{gpu}", name="bench"),
        energy_mj=energy_mj,
        utilization_pct=100,
        activity=activity,
        slots=tuple(Slot(slot) for slot in slots) if alone is None else (),
        residents=tuple(Resident(pid, "compute") for pid in present),
        samples=tuple(Sample(pid, now_s * 10**6, round(100 * part / whole), 0) for pid, part in parts.items()),
    )


def _activity(parts: dict[int, float], shapes: dict[int, list[float]]) -> Activity:
    whole = sum(parts.values())
    sm, occupancy, tensor, dram, fp32 = (
        100 * sum(part / whole * shapes[pid][place] for pid, part in parts.items()) for place in range(5)
    )
    return Activity(sm_pct=sm, occupancy_pct=occupancy, tensor_pct=tensor, dram_pct=dram, fp32_pct=fp32)


def budgets(costs: list[Cost]) -> list[Budget]:
    """Budget for the CPU time of fingerprints."""
    return [
        Budget(f"CPU that fingerprints add to a tick, {cost.gpus} GPUs x {cost.processes} sharing processes",
               LIMIT_MS, cost.added_ms, " ms", RAISED)
        for cost in costs if cost.processes == 8
    ]  # fmt: skip


def report(costs: list[Cost]) -> str:
    """Section of RESULTS.md."""
    rows = [
        (f"{cost.gpus} x {cost.processes}", f"{cost.sm_time_ms:.2f} ms", f"{cost.fingerprint_ms:.2f} ms",
         f"{cost.strangers_ms:.2f} ms", f"{cost.added_ms:.2f} ms")
        for cost in costs
    ]  # fmt: skip
    return "\n".join([
        "## Fingerprints", "",
        "Median CPU time of the book stage while all processes work: by SM time, with a fingerprint of each, and with",
        "fingerprints of half of them.", "",
        table(("GPUs x processes", "by SM time", "all known", "half known", "difference"), rows),
    ])  # fmt: skip


if __name__ == "__main__":
    print(report(measure(quick="--quick" in sys.argv)))
