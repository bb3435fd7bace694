"""The work of a tick, in numbers that do not depend on the load of the machine.

`python -m bench.work` prints Python calls, and instructions under valgrind. With valgrind, ticks and slots are four
times as long, so that it takes every sample between two ticks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from shutil import which

from bench import exporters
from bench.exporters import Node
from bench.table import Budget, table
from tests import fakedriver

SIZES = ((8, 4), (8, 1), (8, 0))
"""GPUs, and processes on each."""
SLOWDOWN = 4
WARM_UP, MEASURED = 8, 10
"""Ticks. Energy is deferred after six of them; the values that change rarely are read in every tenth tick."""
MILLION = 1_000_000
MOST_CALLS = {(8, 4): 8_500, (8, 1): 2_800, (8, 0): 2_000}
"""A tenth more than in November 2026; tests/test_work.py fails above."""
MOST_INSTRUCTIONS = {(8, 4): 48, (8, 1): 11, (8, 0): 7}
"""Millions."""
RAISED = {(8, 4): "the shares of 8 shared GPUs take 27 of 44 million"}


@dataclass(frozen=True, slots=True)
class Work:
    """Mean work of a tick."""

    calls: float
    """Python calls, in all threads."""
    instructions: float | None = None
    """Of the whole process; None without valgrind."""


def measure(sizes: Sequence[tuple[int, int]] = SIZES, *, instructions: bool = True) -> dict[tuple[int, int], Work]:
    """The work of a tick, by GPUs and processes on each."""
    valgrind = which("valgrind") if instructions else None
    fakedriver.build()
    with ThreadPoolExecutor() as pool:
        return dict(zip(sizes, pool.map(lambda size: _work(size[0], size[1], valgrind), sizes), strict=True))


def _work(gpus: int, processes: int, valgrind: str | None) -> Work:
    with exporters.node(gpus, gpus * processes) as on:
        calls = float(_child(on, [], "calls", WARM_UP + MEASURED, 1).stdout)
        if valgrind is None:
            return Work(calls)
        few, many = (_instructions(on, valgrind, ticks) for ticks in (WARM_UP, WARM_UP + MEASURED))
        return Work(calls, (many - few) / MEASURED)


def _instructions(on: Node, valgrind: str, ticks: int) -> int:
    """Instructions of a process that makes so many ticks."""
    command = [valgrind, "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = _child(on, command, "ticks", ticks, SLOWDOWN)
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None:
        raise RuntimeError(f"valgrind printed no number of instructions: {done.stderr}")
    return int(found[1].replace(",", ""))


def _child(on: Node, prefix: list[str], what: str, ticks: int, slowdown: int) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "bench.work", what, str(ticks), str(slowdown)]
    environment = {**os.environ, **fakedriver.environment(on.scenario), **exporters.BLOCKING, **exporters.OURS}
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=exporters.ROOT, env=environment)


def _run(what: str, ticks: int, slowdown: int) -> None:
    """Make ticks as `gpuledger serve` does; print the Python calls of each after the first ones."""
    from gpuledger.cli import build
    from gpuledger.config.exporter import Config
    from gpuledger.driver import source
    from gpuledger.driver.gpm import SLOT_S

    made = source.NvmlSource
    source.NvmlSource = lambda **options: made(slot_s=SLOT_S * slowdown, **options)  # type: ignore[misc,assignment]
    counted = [0]

    def count(_frame: object, event: str, _argument: object) -> None:
        counted[0] += event == "call"

    if what == "calls":
        threading.setprofile(count)
    loop = build.loop(Config(tick_interval=1.0 * slowdown, driver_energy_interval=5.0 * slowdown))
    due = time.monotonic()
    if what == "calls":
        sys.setprofile(count)
    before = 0
    for tick in range(ticks):
        if tick == WARM_UP:
            before = counted[0]
        loop.once()
        due += slowdown
        time.sleep(max(0.0, due - time.monotonic()))
    sys.setprofile(None)
    print((counted[0] - before) / max(1, ticks - WARM_UP))
    loop.stop()


def budgets(works: dict[tuple[int, int], Work]) -> list[Budget]:
    """Limits of both numbers."""
    result = []
    for (gpus, processes), work in works.items():
        size = f"{gpus} x {processes}"
        result.append(Budget(f"Python calls of a tick, {size}", MOST_CALLS[gpus, processes], work.calls, ""))
        if work.instructions is not None:
            millions = work.instructions / MILLION
            limit, raised = MOST_INSTRUCTIONS[gpus, processes], RAISED.get((gpus, processes), "")
            result.append(Budget(f"instructions of a tick, {size}", limit, millions, " million", raised))
    return result


def report(works: dict[tuple[int, int], Work]) -> str:
    """Section of RESULTS.md."""
    rows = [
        [
            f"{gpus} GPUs x {processes} processes",
            f"{work.calls:,.0f}",
            "-" if work.instructions is None else f"{work.instructions / MILLION:.1f}",
        ]
        for (gpus, processes), work in works.items()
    ]
    return "\n".join([
        "## Work of a tick",
        "",
        "Counted, not timed, so that it does not depend on the load of the machine. Without latency and scrapes.",
        "",
        table(("", "Python calls", "instructions, millions"), rows),
    ])  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        exporters.WORK.mkdir(exist_ok=True)
        exporters.take_sources()
        print(report(measure()))
