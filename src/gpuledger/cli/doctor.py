"""`gpuledger doctor`: checks this host, with ticks as `serve` would read them, and prints how to fix problems.

A check that hangs becomes a finding; its thread is abandoned. All time limits together are under 15 s.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuledger.cli import build, explain, logs, terminal, web
from gpuledger.cli.providers import providers
from gpuledger.config.exporter import Config
from gpuledger.errors import UsageError
from gpuledger.loop import Loop
from gpuledger.model import Driver, Tick
from gpuledger.model.plaintext import escaped
from gpuledger.model.problem import HANG_FIX
from gpuledger.owners.kernel.access import probe
from gpuledger.owners.kernel.cgroupfs import nodes_in_containers
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.runtime.deadline import Deadline
from gpuledger.tools.doctor import bundle, checks, preflight
from gpuledger.tools.doctor.finding import LEVELS, OK, PROBLEM, WARNING, Finding, exit_code, explained, unused
from gpuledger.tools.doctor.preflight import Bounded
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

COLOURS = {OK: "\x1b[32m", WARNING: "\x1b[33m", PROBLEM: "\x1b[31m"}
PLAIN = "\x1b[0m"
CALL_S, UPSTREAM_S = 2.0, 4.0
"""Time limits of a driver call and of the dcgm-exporter."""
NAMES_S = 6.5
"""Time limit of the providers of names, from the start; the API server may take 5 s."""
READING_S, QUICK_S = 11.0, 5.0
"""Time limits of all ticks together and of any other check."""
MAX_PAUSE_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not settings."""
    parser.add_argument(
        "--prometheus.url",
        dest="prometheus_url",
        default="",
        metavar="URL",
        help="also check the rules of this Prometheus for names that dcgm-exporter 4.9 removes",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--bundle", metavar="FILE", help="also write an archive for a bug report, without names and secrets"
    )


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 0 if all checks passed, 1 with warnings, 2 with problems."""
    log = logs.CapturingHandler(settings.log_level)
    findings, tick = examine(settings, arguments.prometheus_url)
    versions = checks.versions(Driver(up=False) if tick is None else tick.driver)
    if arguments.json:
        terminal.write(bundle.report(findings, versions).encode())
    else:
        _print(findings)
    if arguments.bundle:
        metrics = b"" if tick is None else b"".join(Renderer().chunks(tick, Format.TEXT))
        contents = bundle.Contents(findings, settings, versions, metrics.decode(), tuple(log.lines))
        bundle.write(arguments.bundle, contents)
        print(f"wrote {arguments.bundle}; inspect it before you send it", file=sys.stderr)
    return exit_code(findings)


def _print(findings: list[Finding]) -> None:
    has_colour = terminal.has_colour()
    width = max(len(escaped(finding.name)) for finding in findings)
    for finding in findings:
        level = f"{finding.level:8}"
        if has_colour:
            level = f"{COLOURS[finding.level]}{level}{PLAIN}"
        terminal.write(f"{level} {escaped(f'{finding.name:{width}}  {finding.text}')}\n".encode())
        if finding.fix:
            terminal.write_line(f"{'':8} {'':{width}}  fix: {finding.fix}")
    counts = Counter(finding.level for finding in findings)
    terminal.write_line(
        ", ".join(f"{counts[level]} {level}{'s' * (level != OK and counts[level] != 1)}" for level in LEVELS)
    )


def examine(settings: Config, prometheus_url: str = "") -> tuple[list[Finding], Tick | None]:
    """Check everything that `serve` needs with these settings; also returns the tick that a scrape would show."""
    limited = replace(
        settings,
        driver_timeout=min(settings.driver_timeout, CALL_S),
        dcgm_exporter_timeout=min(settings.dcgm_exporter_timeout, UPSTREAM_S),
    )
    url = limited.dcgm_exporter_url
    addresses = () if limited.web_systemd_socket else limited.web_listen_address
    reading = Bounded("reading", lambda: _read(limited), READING_S, HANG_FIX)
    others = [  # while the driver is read
        _quick("listen", lambda: preflight.ports(addresses, lambda address: _is_ours(address, limited))),
        _quick(preflight.JOURNAL, lambda: _journal(limited)),
        _quick(preflight.UPSTREAM, lambda: preflight.upstream(url, lambda: build.upstream_source(limited))),
    ]
    if prometheus_url:
        others.append(_quick(preflight.RULES, lambda: preflight.rules(prometheus_url)))
    outcome = reading.outcome()
    findings, tick = ([outcome], None) if isinstance(outcome, Finding) else outcome
    return [*findings, *(finding for check in others for finding in preflight.findings(check))], tick


def _quick(name: str, check: Callable[[], list[Finding]]) -> Bounded[list[Finding]]:
    return Bounded(name, check, QUICK_S, "check whether the file system or the network hangs")


def _is_ours(address: str, settings: Config) -> bool:
    """Whether a gpuledger listens there; one behind a password counts if a web configuration is set."""
    return explain.fetch_fingerprints((address,)) is not None or (
        bool(settings.web_config_file) and explain.is_guarded(address)
    )


def _journal(settings: Config) -> list[Finding]:
    if settings.journal_path and settings.source != "nvml":
        return [unused(preflight.JOURNAL, "a recording has no totals to restore")]
    addresses = settings.web_listen_address if settings.journal_path else ()
    is_running = any(_is_ours(address, settings) for address in addresses)
    boot_id = Procfs(Path(settings.path_procfs)).boot_id()
    return preflight.journal(settings.journal_path, boot_id, is_running=is_running)


def _read(settings: Config) -> tuple[list[Finding], Tick | None]:
    """The findings from ticks, and the last tick."""
    findings, settings = _settings(settings)
    try:
        loop = build.loop(settings)
    except UsageError as error:
        return [*findings, explained("source", error.problem)], None
    try:
        wall_ns, steady_ns = time.time_ns(), time.monotonic_ns()
        first, before, last = _ticks(loop, settings)
        wall_ns, steady_ns = time.time_ns() - wall_ns, time.monotonic_ns() - steady_ns
        sample_us = _newest_sample_us(last) if last.driver.up and settings.source == "nvml" else None
    finally:
        loop.stop()
    if settings.source != "nvml":
        return [*findings, checks.recording(last)], last
    root = Path(settings.path_procfs)
    return [
        *findings,
        *checks.of_ticks(first, before, last, probe(root), settings),
        *checks.cgroups(Procfs(root).cgroup(1)),
        *checks.nested(nodes_in_containers(root), last, settings.owners_nested),
        *checks.clock(last.time_ns, wall_ns, steady_ns, sample_us),
    ], last


def _settings(settings: Config) -> tuple[list[Finding], Config]:
    """The settings that `serve` would refuse, and settings without them, so that everything else can be checked."""
    findings: list[Finding] = []
    attempts: tuple[tuple[Callable[[Config], object], dict[str, object]], ...] = (
        (lambda config: build.choices(config, os.environ), {"dcgm_counters": ""}),
        (build.proc_root, {"path_procfs": "/proc"}),
        (lambda config: providers(config, os.environ), {"kubernetes_api": False}),
        (lambda config: config.web_config_file and web.load_web_file(config.web_config_file), {"web_config_file": ""}),
    )
    for attempt, default in attempts:
        try:
            attempt(settings)
        except UsageError as error:
            findings.append(explained("settings", error.problem))
            settings = replace(settings, **default)  # type: ignore[arg-type]  # each of its own type
    return findings, settings


def _ticks(loop: Loop, settings: Config) -> tuple[Tick, Tick, Tick]:
    """The first tick and the last two."""
    deadline = Deadline(NAMES_S)
    first = before = loop.once()
    # As in `once`: utilization is relative to the previous tick, and names are fetched in the background.
    time.sleep(min(settings.tick_interval, MAX_PAUSE_S))
    while not loop.has_answers() and deadline.remaining_s:
        time.sleep(0.05)
    tick = loop.once()
    # An idle driver may need seconds to initialise, and a stuck counter is known only after seconds.
    while (_hangs(tick) or _stands_still(before, tick)) and deadline.remaining_s:
        time.sleep(0.25)
        before, tick = tick, loop.once()
    return first, before, tick


def _newest_sample_us(tick: Tick) -> int | None:
    """The time of the sample nearest to now, because the driver also returns rows with invented times."""
    samples = Bounded("samples", lambda: preflight.samples_us(tick.readings), CALL_S, "").outcome()
    now_us = tick.time_ns // 1000
    known = [] if isinstance(samples, Finding) else samples
    return min(known, key=lambda sample_us: abs(sample_us - now_us), default=None)


def _hangs(tick: Tick) -> bool:
    return checks.hangs(tick.driver) or any(map(checks.hangs, tick.readings))


def _stands_still(before: Tick, tick: Tick) -> bool:
    """Whether an energy counter did not move since the previous tick, and it is not known yet whether it is stuck."""
    earlier = {reading.device.uuid: reading.energy_mj for reading in before.readings}
    return any(
        reading.energy_mj is not None
        and reading.energy_mj == earlier.get(reading.device.uuid)
        and bool(reading.power_mw)
        and not (account is not None and account.counter_stuck)
        for reading in tick.readings
        for account in (tick.accounts.get(reading.device.uuid),)
    )
