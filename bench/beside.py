"""gpuledger and other exporters on the same fake driver, scraped in turns."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench import exporters
from bench.exporters import Calls, Running
from bench.processes import cpu_s, memory_mb
from bench.scrape import PLAIN, PROMETHEUS, Scraper, quantile
from bench.table import Budget, ratio, table

GPUS = 8
KINDS = (PLAIN, PROMETHEUS)
WARM_UP_S = 5.0
PACE_S = 1.1  # longer than a tick, so that each scrape renders a new tick, as with Prometheus
MOST_REPEATED_S = 6.0
EARLIER, NVITOP, IN_GO = "earlier", "nvitop-exporter", "nvidia_gpu_exporter"
MOST_CPU = {EARLIER: (1.75, 1.75), NVITOP: (0.7, 0.75), IN_GO: (math.inf, 0.6)}
"""Limits of our CPU time over that of others at 8 x 4: without latency, and with the latencies of an H200."""
SHARES = "all 8 GPUs are shared here; the shares of real programs take half of a tick"
MOST_SCRAPE = {"scrapes one after another": (0.1, ""), "a fresh scrape": (0.25, "after a second, caches are cold")}
"""Limits of the time of our scrapes over that of nvitop-exporter's."""


@dataclass(slots=True)
class Exporter:
    """Measurements of one exporter."""

    cpu_share: float = 0.0
    rss_mb: float = 0.0
    series: int = 0
    body_bytes: int = 0
    rounds_per_s: float = 0.0
    calls_per_s: float = 0.0
    driver_share: float = 0.0
    fresh: dict[str, list[float]] = field(default_factory=dict)
    repeated: dict[str, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Case:
    """Measurements on one node."""

    processes: int
    """Processes per GPU."""
    latency: bool
    ours: Exporter
    theirs: dict[str, Exporter]
    """Other exporters that could be installed."""

    @property
    def name(self) -> str:
        return f"{GPUS} GPUs x {self.processes} processes, {'H200 latencies' if self.latency else 'zero latency'}"


def measure(theirs: Mapping[str, Sequence[str]], *, quick: bool) -> list[Case]:
    """Measure all four nodes. Two of 20 ticks are expensive: gpuledger reads slow fields in every tenth tick."""
    idle_s, rounds = (4.0, 4) if quick else (20.0, 13)
    commands = {"gpuledger": exporters.gpuledger(), **theirs}
    cases = []
    for processes in (4, 32):
        for latency in (False, True):
            results = _case(commands, processes, idle_s, rounds, latency=latency)
            cases.append(Case(processes, latency, results.pop("gpuledger"), results))
    return cases


def _case(
    commands: Mapping[str, Sequence[str]], processes: int, idle_s: float, rounds: int, *, latency: bool
) -> dict[str, Exporter]:
    with contextlib.ExitStack() as stack:
        on = stack.enter_context(exporters.node(GPUS, GPUS * processes, latency=latency))
        running = [stack.enter_context(exporters.running(command, name, on)) for name, command in commands.items()]
        results = [Exporter() for _ in running]
        time.sleep(WARM_UP_S)
        _idle(running, results, idle_s)
        scrapers = [{kind: Scraper(exporter.port, kind) for kind in KINDS} for exporter in running]
        _in_turns(scrapers, [result.fresh for result in results], rounds, pace_s=PACE_S)
        _in_turns(scrapers, [result.repeated for result in results], 150, most_s=MOST_REPEATED_S)
        for exporter, result, mine in zip(running, results, scrapers, strict=True):
            result.rss_mb = memory_mb(exporter.pid)
            result.body_bytes = len(mine[PLAIN].body)
            result.series = len(mine[PLAIN].values())
            for scraper in mine.values():
                scraper.close()
        return dict(zip(commands, results, strict=True))


def _idle(running: Sequence[Running], results: Sequence[Exporter], seconds: float) -> None:
    """Measure the cost of each exporter without scrapes."""
    began = [(time.monotonic(), cpu_s(exporter.pid), Calls.read(exporter.calls)) for exporter in running]
    time.sleep(seconds)
    for exporter, result, (started, cpu, calls) in zip(running, results, began, strict=True):
        result.cpu_share = (cpu_s(exporter.pid) - cpu) / (time.monotonic() - started)
        after = Calls.read(exporter.calls)
        span = after.at - calls.at
        result.rounds_per_s = (after.rounds - calls.rounds) / GPUS / span
        result.calls_per_s = (after.count - calls.count) / span
        result.driver_share = (after.ns - calls.ns) / 1e9 / span


def _in_turns(
    scrapers: Sequence[dict[str, Scraper]],
    results: Sequence[dict[str, list[float]]],
    rounds: int,
    *,
    pace_s: float = 0.0,
    most_s: float = 60.0,
) -> None:
    """Scrape the exporters in turn; order and format alternate between rounds."""
    due = time.monotonic()
    deadline = due + most_s
    for number in range(rounds):
        for kind in KINDS if number // 2 % 2 else KINDS[::-1]:
            turns = list(zip(scrapers, results, strict=True))
            for mine, times in turns if number % 2 else turns[::-1]:
                times.setdefault(kind, []).append(mine[kind].scrape())
        due += pace_s
        if time.monotonic() > deadline:
            break
        time.sleep(max(0.0, due - time.monotonic()))


def report(cases: Sequence[Case], why_not: Mapping[str, str]) -> str:
    """Section of RESULTS.md."""
    parts = [
        "## Comparison with other exporters",
        "",
        f"{NVITOP} {exporters.NVITOP} from PyPI with the same Python and NVML binding, and {IN_GO}",
        f"{exporters.NVIDIA_GPU_EXPORTER}, a Go program that reads NVML every second here, including process memory.",
        "All run at the same time on the same fake driver with the same pids and are scraped in turns. CPU is user and",
        "system time of all threads and children, without scrapes. A *fresh* scrape is the first in its format after a",
        "tick, as with Prometheus. A *repeated* scrape follows immediately; gpuledger then answers from its cache.",
        f"{NVITOP} closes the connection after each response, so that its scrapes include a new connection.",
        f"{IN_GO} has no OpenMetrics and responds with text. It exposes no time, energy or owners of processes.",
        f"*{EARLIER}* is gpuledger at {exporters.EARLIER}.",
    ]
    for name, why in why_not.items():
        parts += ["", f"**{name} could not be installed, so that there is no comparison: {why}**"]
    for case in cases:
        head = ["", "gpuledger", *case.theirs, *(f"ours / {name}" for name in case.theirs)]
        parts += ["", f"### {case.name}", "", table(head, _rows([case.ours, *case.theirs.values()]))]
    return "\n".join(parts)


def _rows(results: Sequence[Exporter]) -> list[list[str]]:
    rows = [
        _row("series", [float(result.series) for result in results], "{:.0f}"),
        _row("bytes of text", [float(result.body_bytes) for result in results], "{:.0f}"),
        _row("RSS, MB", [result.rss_mb for result in results], "{:.1f}"),
        _row("CPU without scrapes, % of a core", [100 * result.cpu_share for result in results], "{:.2f}"),
        _row("rounds of reading per second", [result.rounds_per_s for result in results], "{:.2f}"),
        _row("driver calls per second", [result.calls_per_s for result in results], "{:.0f}"),
        _row("time inside the driver, ms per second", [1e3 * result.driver_share for result in results], "{:.1f}"),
    ]
    for kind in KINDS:
        n = len(results[0].fresh[kind])
        rows.append(_times(f"fresh scrape, {kind}, p50 ms", [result.fresh[kind] for result in results], 0.5))
        rows.append(_times(f"fresh scrape, {kind}, slowest of {n} ms", [result.fresh[kind] for result in results], 1.0))
    for kind in KINDS:
        for q in (0.5, 0.99):
            label = f"repeated scrape, {kind}, p{q * 100:.0f} ms"
            rows.append(_times(label, [result.repeated[kind] for result in results], q))
    return rows


def _row(label: str, values: Sequence[float], shown: str) -> list[str]:
    ours, *theirs = values
    return [label, *(shown.format(value) for value in values), *(ratio(ours, value) for value in theirs)]


def _times(label: str, values: Sequence[Sequence[float]], q: float) -> list[str]:
    return _row(label, [1e3 * quantile(times, q) for times in values], "{:.2f}")


def budgets(cases: Sequence[Case]) -> list[Budget]:
    """Budgets for 8 GPUs x 4 processes."""
    promised = [case for case in cases if case.processes == 4]
    limits = [Budget("RSS alone at 8 x 4, after scrapes", 30, max(case.ours.rss_mb for case in promised), " MB")]
    for case in promised:
        driver = "H200 latencies" if case.latency else "zero latency"
        for name, most in MOST_CPU.items():
            if most[case.latency] < math.inf and (other := case.theirs.get(name)) is not None:
                share = case.ours.cpu_share / other.cpu_share
                limits.append(
                    Budget(f"CPU over that of {name} at 8 x 4, {driver}", most[case.latency], share, "", SHARES)
                )
        theirs = case.theirs.get(NVITOP)
        if theirs is None:
            continue
        for kind in KINDS:
            # Prometheus with a 15 s interval always gets a new tick.
            for (which, (most_p50, raised)), mine, other_s in zip(
                MOST_SCRAPE.items(), (case.ours.repeated, case.ours.fresh), (theirs.repeated, theirs.fresh), strict=True
            ):
                p50 = quantile(mine[kind], 0.5) / quantile(other_s[kind], 0.5)
                limits.append(
                    Budget(f"p50 of {which} over nvitop-exporter's, {kind}, {driver}", most_p50, p50, "", raised)
                )
    return limits
