"""Cost by number of GPUs and processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import exporters
from bench.processes import cpu_s, memory_mb
from bench.scrape import PLAIN, PROMETHEUS, Scraper, quantile
from bench.table import ms, table

INTERVAL_S = 0.2
WARM_UP_S = 1.5


@dataclass(frozen=True, slots=True)
class Size:
    """Cost of one node."""

    gpus: int
    processes: int
    series: int
    tick_cpu_s: float
    scrape_s: dict[str, float]
    rss_mb: float


def measure(*, quick: bool) -> list[Size]:
    """Nodes with 4 processes per GPU, then nodes with 8 GPUs."""
    nodes = [(gpus, 4 * gpus) for gpus in (1, 2, 4, 8, 16)] + [(8, processes) for processes in (0, 100, 300, 1000)]
    return [_size(gpus, processes, quick=quick) for gpus, processes in (nodes[::3] if quick else nodes)]


def _size(gpus: int, processes: int, *, quick: bool) -> Size:
    command = exporters.gpuledger("--tick.interval", f"{INTERVAL_S * 1000:.0f}ms")
    with exporters.node(gpus, processes) as on, exporters.running(command, "gpuledger", on) as ours:
        scrapers = {kind: Scraper(ours.port, kind) for kind in (PLAIN, PROMETHEUS)}
        time.sleep(WARM_UP_S)
        began = _ticks(scrapers[PLAIN]), cpu_s(ours.pid)
        time.sleep(20 * INTERVAL_S)
        used = cpu_s(ours.pid) - began[1]
        ticks = _ticks(scrapers[PLAIN]) - began[0]
        times: dict[str, list[float]] = {kind: [] for kind in scrapers}
        for _ in range(5 if quick else 10):
            time.sleep(1.1 * INTERVAL_S)
            for kind, scraper in scrapers.items():
                times[kind].append(scraper.scrape())
        series = len(scrapers[PLAIN].values())
        for scraper in scrapers.values():
            scraper.close()
        p50 = {kind: quantile(taken, 0.5) for kind, taken in times.items()}
        return Size(gpus, processes, series, used / ticks, p50, memory_mb(ours.pid))


def _ticks(scraper: Scraper) -> float:
    scraper.scrape()
    return scraper.values()["gpuledger_ticks_total"]


def report(sizes: Sequence[Size]) -> str:
    """Section of RESULTS.md."""
    rows = [
        [
            f"{size.gpus} GPU{'s' * (size.gpus > 1)}, {size.processes} processes",
            f"{size.series:,}",
            ms(size.tick_cpu_s),
            ms(size.scrape_s[PLAIN]),
            ms(size.scrape_s[PROMETHEUS]),
            f"{size.rss_mb:.1f}",
        ]
        for size in sizes
    ]
    head = ("", "series", "CPU of a tick, ms", f"fresh scrape p50, {PLAIN}, ms", f"{PROMETHEUS}, ms", "RSS MB")
    return "\n".join(
        [
            "## Growth",
            "",
            f"gpuledger alone, zero latency, one tick every {INTERVAL_S:g} s to measure many. Scrapes are the first of",
            "their tick. With one tick per second, 10 ms per tick are 1 % of a core.",
            "",
            table(head, rows),
        ]
    )
