"""What a tick costs beyond the driver calls in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import exporters
from bench.exporters import Calls
from bench.scrape import PLAIN, Scraper
from bench.table import Budget, ms, table

GPUS, PROCESSES = 8, 4
PERIOD_S = 1.0
WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Ticked:
    """One tick, in seconds."""

    wall: float
    driver: list[float]
    """By GPU, as the exporter counts it: from the call to having its answer in Python."""


@dataclass(frozen=True, slots=True)
class Ticks:
    seen: list[Ticked]
    library_s: float
    """Inside the library for one GPU in one tick, on average, as the fake driver counts it."""
    calls: float
    """Driver calls of one GPU in one tick."""

    def median(self, of: Callable[[Ticked], float]) -> float:
        return statistics.median(of(tick) for tick in self.seen)

    @property
    def by_exporter(self) -> float:
        """Overhead as a share of the tick, median."""
        return self.median(lambda tick: 1 - max(tick.driver) / tick.wall)

    @property
    def by_library(self) -> float:
        """Overhead as a share of the tick, mean; every GPU has the same latencies here."""
        return 1 - self.library_s / statistics.mean(tick.wall for tick in self.seen)


def measure(*, quick: bool) -> Ticks:
    """Look at one tick after the other, each half-way to the next."""
    wanted = 10 if quick else 20
    with (
        exporters.node(GPUS, GPUS * PROCESSES, latency=True) as on,
        exporters.running(exporters.gpuledger(), "gpuledger", on) as ours,
    ):
        scraper = Scraper(ours.port, PLAIN)
        time.sleep(1.0 if quick else WARM_UP_S)
        scraper.scrape()
        due = scraper.values()["gpuledger_tick_timestamp_seconds"] + PERIOD_S / 2
        while due < time.time():
            due += PERIOD_S
        time.sleep(due - time.time())
        before = Calls.read(ours.calls)
        seen: dict[float, Ticked] = {}
        while len(seen) < wanted:
            due += PERIOD_S
            time.sleep(max(0.0, due - time.time()))
            scraper.scrape()
            values = scraper.values()
            driver = [value for series, value in values.items() if series.startswith("gpuledger_driver_seconds{")]
            seen[values["gpuledger_ticks_total"]] = Ticked(values["gpuledger_tick_duration_seconds"], driver)
        after = Calls.read(ours.calls)
        scraper.close()
    readings = (after.rounds - before.rounds) or 1
    return Ticks(list(seen.values()), (after.ns - before.ns) / 1e9 / readings, (after.count - before.count) / readings)


def report(found: Ticks) -> str:
    """The section of the results."""
    overhead = found.median(lambda tick: tick.wall - max(tick.driver))
    wall = statistics.mean(tick.wall for tick in found.seen)
    rows = [
        ["tick", ms(found.median(lambda tick: tick.wall)), ms(wall)],
        ["driver calls of the slowest GPU", ms(found.median(lambda tick: max(tick.driver))),
         ms(statistics.mean(max(tick.driver) for tick in found.seen))],
        ["driver calls of all GPUs together", ms(found.median(lambda tick: sum(tick.driver))),
         ms(statistics.mean(sum(tick.driver) for tick in found.seen))],
        ["beyond the slowest GPU's calls", ms(overhead),
         ms(statistics.mean(tick.wall - max(tick.driver) for tick in found.seen))],
        ["inside the library for one GPU", "-", ms(found.library_s)],
        ["beyond the time inside the library", "-", ms(wall - found.library_s)],
    ]  # fmt: skip
    return "\n".join(
        [
            "## The tick",
            "",
            f"{GPUS} GPUs x {PROCESSES} processes with H200 latencies, {len(found.seen)} ticks, milliseconds;",
            f"{found.calls:.0f} calls for each GPU and tick. Every tenth tick reads what changes rarely as well. The",
            "exporter's count of driver time runs until the answer is in Python, so waiting for the interpreter is in",
            "it; the fake driver's own count has only the time inside the library.",
            "",
            table(("", "median", "mean"), rows),
            "",
            f"Beyond the slowest GPU's calls: {100 * found.by_exporter:.1f} % of the tick,",
            f"{100 * overhead / PERIOD_S:.2f} % of the period. Beyond the library: {100 * found.by_library:.1f} %",
            f"of the tick, {100 * (wall - found.library_s) / PERIOD_S:.2f} % of the period.",
        ]
    )


def budgets(found: Ticks) -> list[Budget]:
    """The promise is about the tick, not the period."""
    return [
        Budget("time beyond driver calls, of a tick, as the exporter counts them", 5, 100 * found.by_exporter, " %"),
        Budget("time beyond driver calls, of a tick, as the library counts them", 5, 100 * found.by_library, " %"),
    ]
