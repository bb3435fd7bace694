"""`python -m bench.mig`: cost of MIG instances, whose GPM samples take 8 to 15 ms of CPU time each on an H200."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import exporters
from bench.exporters import Node
from bench.processes import cpu_s, sleepers
from bench.scrape import PLAIN, Scraper
from bench.table import Budget, ms, table
from tests.fakedriver import Gpu, Mig, Process, Scenario

INSTANCES = 7
SAMPLE_S, FIRST_S = 0.0084, 0.2
"""Time of a GPM sample of an instance, and of its first one, as measured on an H200."""
WARM_UP_S = 15.0
CHANGES, CHANGES_S = 12, 10.0
"""Changes of power, and the seconds between them."""


@dataclass(frozen=True, slots=True)
class MigCost:
    """Cost of a GPU with MIG instances, beside a GPU without."""

    first_s: float
    """Longest of the first ticks."""
    ticks_s: list[float]
    cpu: float
    """CPU time as a share of one core, with the time inside the samples, in which the fake driver sleeps."""
    samples: float
    """GPM samples of instances per second."""


@contextlib.contextmanager
def _node() -> Iterator[tuple[Node, Scenario]]:
    exporters.WORK.mkdir(exist_ok=True)
    with sleepers(INSTANCES) as pids:
        scenario = Scenario(
            gpus=[Gpu(index=0, watts=400, mig=1), Gpu(index=1, watts=100)],
            migs=[Mig(gpu=0, gi=gi, extra={"gpm.sm": 10.0 * gi}) for gi in range(1, INSTANCES + 1)],
            processes=[Process(gpu=0, pid=pid, gi=gi, ci=0) for gi, pid in enumerate(pids, 1)],
            profile="h200",
            extra=[
                f"latency nvmlGpmMigSampleGet us={FIRST_S * 1e6:.0f} count={INSTANCES}",
                f"latency nvmlGpmMigSampleGet us={SAMPLE_S * 1e6:.0f}",
            ],
        )
        yield Node(scenario.write(exporters.WORK / "mig.scenario"), 2, INSTANCES), scenario


def measure(*, quick: bool) -> MigCost:
    """Measure from the first tick on; every ten seconds the power changes, so that all instances are sampled."""
    first: list[float] = []
    ticks: dict[float, float] = {}
    with _node() as (on, scenario), exporters.running(exporters.gpuledger(), "gpuledger", on) as ours:
        scraper = Scraper(ours.port, PLAIN)
        until = time.monotonic() + WARM_UP_S
        while time.monotonic() < until:
            first.append(_tick(scraper)[1])
            time.sleep(0.25)
        scenario.extra = scenario.extra[1:]
        began_at, began_cpu_s, began = time.monotonic(), cpu_s(ours.pid), _samples(ours.calls)
        for number in range(2 if quick else CHANGES):
            scenario.set_watts(0, 250.0 if number % 2 else 500.0)
            scenario.write(on.scenario)
            until = time.monotonic() + CHANGES_S
            while time.monotonic() < until:
                count, duration_s = _tick(scraper)
                ticks[count] = duration_s
                time.sleep(1.0)
        seconds = time.monotonic() - began_at
        samples = (_samples(ours.calls) - began) / seconds
        cpu = (cpu_s(ours.pid) - began_cpu_s) / seconds + samples * SAMPLE_S
        scraper.close()
    return MigCost(max(first), list(ticks.values()), cpu, samples)


def _tick(scraper: Scraper) -> tuple[float, float]:
    scraper.scrape()
    values = scraper.values()
    return values["gpuledger_ticks_total"], values["gpuledger_tick_duration_seconds"]


def _samples(calls: Path) -> int:
    rows = [line.split() for line in calls.read_text().splitlines()]
    return sum(int(count) for name, count, _ in rows if name == "nvmlGpmMigSampleGet")


def report(cost: MigCost) -> str:
    """Section of RESULTS.md."""
    rows = [
        ["tick, median, ms", ms(statistics.median(cost.ticks_s))],
        ["tick, longest, ms", ms(max(cost.ticks_s))],
        ["longest of the first ticks, ms", ms(cost.first_s)],
        ["samples of instances per second", f"{cost.samples:.1f}"],
        ["CPU, % of one core", f"{100 * cost.cpu:.1f}"],
    ]
    return "\n".join(
        [
            "## MIG",
            "",
            f"A GPU with {INSTANCES} instances beside a GPU without. As on an H200, the GPM sample of an instance",
            f"takes {1000 * SAMPLE_S:g} ms, the first one {1000 * FIRST_S:g} ms. Power changes every {CHANGES_S:g} s.",
            "CPU includes the time inside these samples, in which the fake driver sleeps and the real one works.",
            "",
            table(("", "measured"), rows),
        ]
    )


def budgets(cost: MigCost) -> list[Budget]:
    """The limits for seven instances."""
    return [
        Budget("tick with seven MIG instances, median", 25, 1000 * statistics.median(cost.ticks_s), " ms"),
        Budget("CPU with seven MIG instances, of one core", 3, 100 * cost.cpu, " %"),
        Budget("first ticks with seven MIG instances, longest", 250, 1000 * cost.first_s, " ms"),
    ]


if __name__ == "__main__":
    exporters.take_sources()
    result = measure(quick=False)
    print(report(result))
    print(table(("", "limit", "measured", "verdict"), [budget.row() for budget in budgets(result)]))
