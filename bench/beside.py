"""gpuledger and nvitop-exporter on the same fake driver, at the same time, in turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench import exporters
from bench.exporters import Calls, Running
from bench.processes import cpu_s, memory_mb
from bench.scrape import PLAIN, PROMETHEUS, Scraper, quantile
from bench.table import Budget, ms, ratio, table

GPUS = 8
KINDS = (PLAIN, PROMETHEUS)
WARM_UP_S = 5.0
PACE_S = 1.1  # more than a tick: each scrape finds a tick nobody has scraped before, as Prometheus does
MOST_REPEATED_S = 6.0
HEAD = ("", "gpuledger", "nvitop-exporter", "ours/theirs")


@dataclass(slots=True)
class Exporter:
    """What was measured of one exporter."""

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
    """One node."""

    processes: int
    """On each GPU."""
    latency: bool
    found: list[Exporter]
    """Ours, and theirs where it could be installed."""

    @property
    def name(self) -> str:
        return f"{GPUS} GPUs x {self.processes} processes, {'H200 latencies' if self.latency else 'zero latency'}"


def measure(theirs: list[str] | None, *, quick: bool) -> list[Case]:
    """All four nodes. Of 20 ticks two are dear ones: gpuledger reads what changes rarely in every tenth."""
    idle_s, rounds = (4.0, 4) if quick else (20.0, 13)
    commands = [exporters.gpuledger(), *([theirs] if theirs else [])]
    return [
        Case(processes, latency, _case(commands, processes, idle_s, rounds, latency=latency))
        for processes in (4, 32)
        for latency in (False, True)
    ]


def _case(
    commands: Sequence[Sequence[str]], processes: int, idle_s: float, rounds: int, *, latency: bool
) -> list[Exporter]:
    with contextlib.ExitStack() as stack:
        on = stack.enter_context(exporters.node(GPUS, GPUS * processes, latency=latency))
        names = ("gpuledger", "nvitop-exporter")
        both = [
            stack.enter_context(exporters.running(command, name, on))
            for name, command in zip(names, commands, strict=False)
        ]
        found = [Exporter() for _ in both]
        time.sleep(WARM_UP_S)
        _idle(both, found, idle_s)
        scrapers = [{kind: Scraper(one.port, kind) for kind in KINDS} for one in both]
        _in_turns(scrapers, [one.fresh for one in found], rounds, pace_s=PACE_S)
        _in_turns(scrapers, [one.repeated for one in found], 150, most_s=MOST_REPEATED_S)
        for one, result, mine in zip(both, found, scrapers, strict=True):
            result.rss_mb = memory_mb(one.pid)
            result.body_bytes = len(mine[PLAIN].body)
            result.series = len(mine[PLAIN].values())
            for scraper in mine.values():
                scraper.close()
        return found


def _idle(both: Sequence[Running], found: Sequence[Exporter], seconds: float) -> None:
    """What an exporter costs when nobody asks it anything."""
    began = [(time.monotonic(), cpu_s(one.pid), Calls.read(one.calls)) for one in both]
    time.sleep(seconds)
    for one, result, (started, cpu, calls) in zip(both, found, began, strict=True):
        result.cpu_share = (cpu_s(one.pid) - cpu) / (time.monotonic() - started)
        after = Calls.read(one.calls)
        span = after.at - calls.at
        result.rounds_per_s = (after.rounds - calls.rounds) / GPUS / span
        result.calls_per_s = (after.count - calls.count) / span
        result.driver_share = (after.ns - calls.ns) / 1e9 / span


def _in_turns(
    scrapers: Sequence[dict[str, Scraper]],
    found: Sequence[dict[str, list[float]]],
    rounds: int,
    *,
    pace_s: float = 0.0,
    most_s: float = 60.0,
) -> None:
    """Scrape one, then the other; who comes first, and in which format, changes from round to round."""
    due = time.monotonic()
    deadline = due + most_s
    for number in range(rounds):
        for kind in KINDS if number // 2 % 2 else KINDS[::-1]:
            turns = list(zip(scrapers, found, strict=True))
            for mine, times in turns if number % 2 else turns[::-1]:
                times.setdefault(kind, []).append(mine[kind].scrape())
        due += pace_s
        if time.monotonic() > deadline:
            break
        time.sleep(max(0.0, due - time.monotonic()))


def report(cases: Sequence[Case], why_not: str) -> str:
    """The section of the results."""
    parts = [
        "## Beside nvitop-exporter",
        "",
        f"nvitop-exporter {exporters.NVITOP} from PyPI with the same Python and NVML binding, on the same fake driver",
        "and the same pids, both running at once and scraped in turns. CPU is user and system time without scrapes,",
        "threads and children included. A *fresh* scrape is the first of its format since a tick, which is what",
        "Prometheus meets; a *repeated* one follows at once, and gpuledger then has the bytes ready. nvitop-exporter",
        "closes its connection after each answer, so a scrape of it includes opening one.",
    ]
    if why_not:
        parts += ["", f"**nvitop-exporter could not be installed, so there is nothing to compare with: {why_not}**"]
    for case in cases:
        parts += ["", f"### {case.name}", "", table(HEAD, _rows(case.found))]
    return "\n".join(parts)


def _rows(found: Sequence[Exporter]) -> list[list[str]]:
    rows = [
        _row("series", [float(one.series) for one in found], "{:.0f}"),
        _row("bytes of text", [float(one.body_bytes) for one in found], "{:.0f}"),
        _row("RSS, MB", [one.rss_mb for one in found], "{:.1f}"),
        _row("CPU without scrapes, % of a core", [100 * one.cpu_share for one in found], "{:.2f}"),
        _row("rounds of reading per second", [one.rounds_per_s for one in found], "{:.2f}"),
        _row("driver calls per second", [one.calls_per_s for one in found], "{:.0f}"),
        _row("time inside the driver, ms per second", [1e3 * one.driver_share for one in found], "{:.1f}"),
    ]
    for kind in KINDS:
        n = len(found[0].fresh[kind])
        rows.append(_times(f"fresh scrape, {kind}, p50 ms", [one.fresh[kind] for one in found], 0.5))
        rows.append(_times(f"fresh scrape, {kind}, slowest of {n} ms", [one.fresh[kind] for one in found], 1.0))
    for kind in KINDS:
        for q in (0.5, 0.99):
            label = f"repeated scrape, {kind}, p{q * 100:.0f} ms"
            rows.append(_times(label, [one.repeated[kind] for one in found], q))
    return rows


def _row(label: str, values: Sequence[float], shown: str) -> list[str]:
    ours, theirs = values[0], values[1] if len(values) > 1 else None
    if theirs is None:
        return [label, shown.format(ours), "-", "-"]
    return [label, shown.format(ours), shown.format(theirs), ratio(ours, theirs)]


def _times(label: str, values: Sequence[Sequence[float]], q: float) -> list[str]:
    points = [quantile(times, q) for times in values]
    theirs = [ms(points[1]), ratio(points[0], points[1])] if len(points) > 1 else ["-", "-"]
    return [label, ms(points[0]), *theirs]


def budgets(cases: Sequence[Case]) -> list[Budget]:
    """The promises are made for 8 GPUs x 4 processes."""
    promised = [case for case in cases if case.processes == 4]
    found = [Budget("RSS alone at 8 x 4, after scrapes", 30, max(case.found[0].rss_mb for case in promised), " MB")]
    for case in promised:
        driver = "H200 latencies" if case.latency else "zero latency"
        ours, theirs = case.found[0], case.found[1] if len(case.found) > 1 else None
        share = ours.cpu_share / theirs.cpu_share if theirs else None
        found.append(Budget(f"CPU over nvitop-exporter's at 8 x 4, {driver}", 0.5, share))
        for kind in KINDS:
            # The budget was set by scrapes one after another; a Prometheus every 15 s meets a fresh tick each time.
            for which, mine, other in (
                ("scrapes one after another", ours.repeated, theirs and theirs.repeated),
                ("a fresh scrape", ours.fresh, theirs and theirs.fresh),
            ):
                p50 = quantile(mine[kind], 0.5) / quantile(other[kind], 0.5) if other else None
                found.append(Budget(f"p50 of {which} over nvitop-exporter's, {kind}, {driver}", 0.1, p50))
    return found
