"""`python -m bench [--quick]`: run all benchmarks and write bench/RESULTS.md."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from bench import beside, enrichment, exporters, fleet, growth, mig, owners, page, rendering, sharing, ticks, work
from bench.table import Budget, table

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure gpuledger; writes bench/RESULTS.md.")
    parser.add_argument("--quick", action="store_true", help="shorter and less precise; writes bench/.work/RESULTS.md")
    quick: bool = parser.parse_args().quick
    signal.signal(signal.SIGTERM, _interrupted)
    exporters.WORK.mkdir(exist_ok=True)
    exporters.take_sources()
    started = time.monotonic()
    try:
        text, missed = _measure(quick=quick)
    except KeyboardInterrupt:
        print("interrupted; all started programs are stopped", file=sys.stderr)
        return 130
    path = exporters.WORK / "RESULTS.md" if quick else RESULTS
    path.write_text(text)
    print(text)
    print(f"wrote {path.relative_to(exporters.ROOT)} after {time.monotonic() - started:.0f} s, {missed} budgets missed")
    return 1 if missed else 0


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _measure(*, quick: bool) -> tuple[str, int]:
    _say("installing other exporters")
    installed = {
        beside.EARLIER: exporters.earlier(),
        beside.NVITOP: exporters.nvitop(),
        beside.IN_GO: exporters.nvidia_gpu_exporter(),
    }
    theirs = {name: command for name, (command, _) in installed.items() if command}
    why_not = {name: why for name, (_, why) in installed.items() if why}
    _say("rendering")
    rendered = rendering.measure(quick=quick)
    _say("comparison with other exporters")
    cases = beside.measure(theirs, quick=quick)
    _say("work of a tick")
    counted = work.measure()
    _say("tick")
    ticked = ticks.measure(quick=quick)
    _say("MIG")
    with_mig = mig.measure(quick=quick)
    _say("growth")
    sizes = growth.measure(quick=quick)
    _say("owners")
    owned = owners.measure()
    _say("enrichment of dcgm-exporter")
    enriched = enrichment.measure()
    _say("fingerprints")
    shared = sharing.measure(quick=quick)
    _say("fleet")
    clusters = fleet.measure(quick=quick)
    _say("page")
    page_cost = page.measure(quick=quick)
    budgets = [
        *beside.budgets(cases),
        *rendering.budgets(rendered),
        *work.budgets(counted),
        *mig.budgets(with_mig),
        *owners.budgets(owned),
        *enrichment.budgets(enriched),
        *sharing.budgets(shared),
        *fleet.budgets(clusters),
        *page.budgets(page_cost),
    ]
    missed = sum(not budget.met for budget in budgets)
    sections = [
        _header(quick=quick),
        _budgets(budgets),
        beside.report(cases, why_not),
        rendering.report(rendered),
        work.report(counted),
        ticks.report(ticked),
        mig.report(with_mig),
        growth.report(sizes),
        owners.report(owned),
        enrichment.report(enriched),
        sharing.report(shared),
        fleet.report(clusters),
        page.report(page_cost),
    ]
    return "\n\n".join(sections) + "\n", missed


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr, flush=True)


def _header(*, quick: bool) -> str:
    cores = os.cpu_count() or 0
    python = f"{platform.python_implementation()} {platform.python_version()}"
    noise = ", a noisy virtual machine" if cores == 2 else ""
    return "\n".join(
        [
            "# Benchmarks",
            "",
            f"Written by `make bench` in one run on {cores} cores{noise}, with {python} and the fake driver of",
            "`tests/fakedriver`, without a real GPU. Compare ratios, not milliseconds. 1 MB is 1,000,000 bytes.",
            *(["", "**This is a --quick run. Do not quote it.**"] if quick else []),
        ]
    )


def _budgets(budgets: list[Budget]) -> str:
    rows = [budget.row() for budget in budgets]
    return "\n".join(
        [
            "## Budgets",
            "",
            "The design sets the limits; the program compares them with the measurements.",
            "",
            table(("", "limit", "measured", "verdict", "why the limit was raised"), rows),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
