"""Rendering compared with prometheus_client, and the server with 100,000 series."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench.exporters import OURS, WORK, run_json
from bench.processes import memory_mb, started
from bench.scrape import PLAIN, PROMETHEUS, Scraper, quantile
from bench.table import Budget, ms, ratio, table

FORMATS = ("text", "OpenMetrics")
CHILD = [sys.executable, "-m", "bench.child"]
BIG = 100_000


@dataclass(frozen=True, slots=True)
class Rendered:
    """Both renderers at one size in one format."""

    fmt: str
    ours: dict[str, float]
    theirs: dict[str, float]


@dataclass(frozen=True, slots=True)
class Served:
    """The server with a large tick."""

    renewed: bool
    series: int
    start_mb: float
    peak_mb: dict[str, float]
    times: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Rendering:
    same: bool
    rendered: list[Rendered]
    served: list[Served]


def measure(*, quick: bool) -> Rendering:
    """Measure each value in its own process."""
    sizes = (1_000, 10_000) if quick else (1_000, 10_000, BIG)
    rendered = [
        Rendered(
            fmt,
            run_json("bench.child", "render", "gpuledger", fmt, size),
            run_json("bench.child", "render", "prometheus_client", fmt, size),
        )
        for size in sizes
        for fmt in FORMATS
    ]
    served = [_serve(renewed=renewed, rounds=3 if quick else 6) for renewed in (False, True)]
    return Rendering(bool(run_json("bench.child", "same", 1_000)["same"]), rendered, served)


def _serve(*, renewed: bool, rounds: int) -> Served:
    with started([*CHILD, "serve", str(BIG)], OURS, WORK / "served.log") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not (line := process.stdout.readline()):
            raise RuntimeError("the server with a big tick did not start; see bench/.work/served.log")
        port = int(line)
        start_mb = memory_mb(process.pid)
        peak_mb: dict[str, float] = {}
        times: dict[str, list[float]] = {}
        series = 0
        for kind in (PLAIN, PROMETHEUS):
            scraper = Scraper(port, kind)
            times[kind] = []
            for _ in range(rounds):
                if renewed:
                    process.stdin.write("tick\n")
                    process.stdin.flush()
                    process.stdout.readline()
                times[kind].append(scraper.scrape())
            series = len(scraper.values())
            scraper.close()
            peak_mb[kind] = memory_mb(process.pid, "VmHWM")
        return Served(renewed, series, start_mb, peak_mb, times)


def report(result: Rendering) -> str:
    """Section of RESULTS.md."""
    agreed = "are identical" if result.same else "**DIFFER: the comparison is void**"
    head = ("", "gpuledger first", "gpuledger again", "prometheus_client", "again/theirs",
            "peak RSS MB ours", "theirs", "ours/theirs")  # fmt: skip
    rows = []
    for case in result.rendered:
        ours, theirs = case.ours, case.theirs
        rows.append([
            f"{ours['series']:,} series, {case.fmt}, {ours['bytes'] / 1e6:.2f} MB",
            f"{ours['first_us']:.2f}", f"{ours['again_us']:.2f}", f"{theirs['again_us']:.2f}",
            ratio(ours["again_us"], theirs["again_us"]),
            f"{ours['peak_mb']:.1f} (held {ours['before_mb']:.1f})",
            f"{theirs['peak_mb']:.1f} (held {theirs['before_mb']:.1f})",
            ratio(ours["peak_mb"], theirs["peak_mb"]),
        ])  # fmt: skip
    return "\n".join(
        [
            "## Rendering",
            "",
            "CPU microseconds per series, best of several, and peak RSS. Each value comes from its own process, which",
            "holds one tick of processes with nine labels. *first*: new labels; *again*: labels of the previous",
            "tick. Owners are not resolved, so that five of the nine labels are empty.",
            f"The series of both renderers {agreed}.",
            "",
            table(head, rows),
            "",
            "The server with such a tick and the modules of `gpuledger serve`, scraped over HTTP. *a new tick each*:",
            "the old tick is in memory while the new one is created, as in the exporter.",
            "",
            _served(result.served),
        ]
    )


def _served(served: Sequence[Served]) -> str:
    rows = [
        [
            f"{case.series:,} series, {'a new tick each' if case.renewed else 'one tick'}, {kind}",
            f"{case.start_mb:.1f}",
            f"{case.peak_mb[kind]:.1f}",
            ms(quantile(case.times[kind], 0.5)),
        ]
        for case in served
        for kind in (PLAIN, PROMETHEUS)
    ]
    return table(("", "RSS before MB", "peak RSS MB", "scrape p50 ms"), rows)


def budgets(result: Rendering) -> list[Budget]:
    """Budgets for the peak RSS over both formats; the compressed format is scraped last."""
    return [
        Budget(
            f"peak RSS of the server with 100,000 series, {'a new tick each scrape' if case.renewed else 'one tick'}",
            75,
            max(case.peak_mb.values()),
            " MB",
            "43 MB before the first scrape, with one tick",
        )
        for case in result.served
    ]
