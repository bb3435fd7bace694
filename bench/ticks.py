"""Time of a tick beyond its driver calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench import exporters
from bench.exporters import Calls
from bench.scrape import PLAIN, Scraper
from bench.table import ms, table

GPUS, PROCESSES = 8, 4
PERIOD_S = 1.0
WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class Ticked:
    """Times of one tick, in seconds."""

    wall: float
    driver: list[float]
    """Time in driver calls by GPU, as measured by the exporter: until the result is in Python."""


@dataclass(frozen=True, slots=True)
class Ticks:
    ticks: list[Ticked]
    library_s: float
    """Mean time inside the library per GPU and tick, as measured by the fake driver."""
    calls: float
    """Driver calls per GPU and tick."""

    def median(self, of: Callable[[Ticked], float]) -> float:
        return statistics.median(of(tick) for tick in self.ticks)

    @property
    def by_exporter(self) -> float:
        """Median overhead as a share of the tick."""
        return self.median(lambda tick: 1 - max(tick.driver) / tick.wall)

    @property
    def by_library(self) -> float:
        """Mean overhead as a share of the tick; all GPUs have the same latencies."""
        return 1 - self.library_s / statistics.mean(tick.wall for tick in self.ticks)


def measure(*, quick: bool) -> Ticks:
    """Measure consecutive ticks, each half-way to the next."""
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
        ticks: dict[float, Ticked] = {}
        while len(ticks) < wanted:
            due += PERIOD_S
            time.sleep(max(0.0, due - time.time()))
            scraper.scrape()
            values = scraper.values()
            driver = [value for series, value in values.items() if series.startswith("gpuledger_driver_seconds{")]
            ticks[values["gpuledger_ticks_total"]] = Ticked(values["gpuledger_tick_duration_seconds"], driver)
        after = Calls.read(ours.calls)
        scraper.close()
    readings = (after.rounds - before.rounds) or 1
    return Ticks(list(ticks.values()), (after.ns - before.ns) / 1e9 / readings, (after.count - before.count) / readings)


def report(result: Ticks) -> str:
    """Section of RESULTS.md."""
    overhead = result.median(lambda tick: tick.wall - max(tick.driver))
    wall = statistics.mean(tick.wall for tick in result.ticks)
    rows = [
        ["tick", ms(result.median(lambda tick: tick.wall)), ms(wall)],
        ["driver calls of the slowest GPU", ms(result.median(lambda tick: max(tick.driver))),
         ms(statistics.mean(max(tick.driver) for tick in result.ticks))],
        ["driver calls of all GPUs together", ms(result.median(lambda tick: sum(tick.driver))),
         ms(statistics.mean(sum(tick.driver) for tick in result.ticks))],
        ["beyond the slowest GPU's calls", ms(overhead),
         ms(statistics.mean(tick.wall - max(tick.driver) for tick in result.ticks))],
        ["inside the library for one GPU", "-", ms(result.library_s)],
        ["beyond the time inside the library", "-", ms(wall - result.library_s)],
    ]  # fmt: skip
    return "\n".join(
        [
            "## Tick",
            "",
            f"{GPUS} GPUs x {PROCESSES} processes with H200 latencies, {len(result.ticks)} ticks, milliseconds;",
            f"{result.calls:.0f} calls per GPU and tick. Every tenth tick also reads slow fields. Driver time of the",
            "exporter runs until the result is in Python and includes waiting for the interpreter. That of the fake",
            "driver is only the time inside the library.",
            "",
            table(("", "median", "mean"), rows),
            "",
            f"Beyond the slowest GPU's calls: {100 * result.by_exporter:.1f} % of the tick,",
            f"{100 * overhead / PERIOD_S:.2f} % of the period. Beyond the library: {100 * result.by_library:.1f} %",
            f"of the tick, {100 * (wall - result.library_s) / PERIOD_S:.2f} % of the period.",
        ]
    )
