"""The examination behind `gpuledger doctor`: ticks as `serve` would read them, and all checks on them.

Whatever hangs is left behind in a thread of its own, and is a finding. All limits together stay under 15 s.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuledger.cli import build, learned, web
from gpuledger.cli.providers import providers
from gpuledger.config import Config
from gpuledger.doctor import clock, dcgm, driver, gpus, host, journal, memory, names, port, upstream
from gpuledger.doctor.bounded import Bounded, findings
from gpuledger.doctor.finding import Finding, explained, ok, problem, unused
from gpuledger.errors import UsageError
from gpuledger.loop import Loop
from gpuledger.model import Driver, Tick
from gpuledger.owners.access import probe
from gpuledger.owners.procfs import Procfs
from gpuledger.view.advice import HANG_FIX, HANGS

CALL_S, ANSWER_S = 2.0, 4.0
"""The longest that a driver call, and the dcgm-exporter, may take here."""
NAMES_S = 6.5
"""From the start, until everybody who knows names must have answered. The API server may take 5 s."""
READING_S, QUICK_S = 11.0, 5.0
"""The longest that all readings, and any other check, may take."""
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, and what a scrape would have shown."""

    findings: list[Finding]
    versions: dict[str, str]
    tick: Tick | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The first tick and the last two, what went by on both clocks, and a sample of the driver's."""

    first: Tick
    before: Tick
    tick: Tick
    wall_ns: int
    steady_ns: int
    sample_us: int | None


def examine(settings: Config) -> Examination:
    """Check everything that `serve` would need with these settings."""
    limited = replace(
        settings,
        driver_timeout=min(settings.driver_timeout, CALL_S),
        dcgm_exporter_timeout=min(settings.dcgm_exporter_timeout, ANSWER_S),
    )
    url = limited.dcgm_exporter_url
    addresses = () if limited.web_systemd_socket else limited.web_listen_address
    looking = Bounded("reading", lambda: _look(limited), READING_S, HANG_FIX)
    opened = [  # while the driver is read
        _quick("listen", lambda: port.ports(addresses, lambda one: _is_ours(one, limited))),
        _quick("journal", lambda: _journal(limited)),
        _quick(upstream.NAME, lambda: upstream.upstream(url, lambda: build.upstream_source(limited))),
    ]
    seen = looking.outcome()
    found, tick = ([seen], None) if isinstance(seen, Finding) else seen
    told = Driver(up=False) if tick is None else tick.driver
    found += [one for check in opened for one in findings(check)]
    return Examination(found, driver.known_versions(told), tick)


def _quick(name: str, check: Callable[[], list[Finding]]) -> Bounded[list[Finding]]:
    return Bounded(name, check, QUICK_S, "see whether the file system, or who is asked, hangs")


def _is_ours(address: str, settings: Config) -> bool:
    """One behind a password cannot be asked; with a web configuration it is taken for ours."""
    return learned.ask((address,)) is not None or (bool(settings.web_config_file) and learned.is_guarded(address))


def _journal(settings: Config) -> list[Finding]:
    if settings.journal_path and settings.source != "nvml":
        return [unused("journal", "a recording has no totals to go on from")]
    addresses = settings.web_listen_address if settings.journal_path else ()
    running = any(_is_ours(address, settings) for address in addresses)
    return journal.journal(settings.journal_path, Procfs(Path(settings.path_procfs)).boot_id(), running=running)


def _settings(settings: Config) -> tuple[list[Finding], Config]:
    """What `serve` would refuse to start with, and settings without it, so that the rest can be checked."""
    found: list[Finding] = []
    without: tuple[tuple[Callable[[Config], object], dict[str, object]], ...] = (
        (lambda one: build.choices(one, os.environ), {"dcgm_counters": ""}),
        (build.proc_root, {"path_procfs": "/proc"}),
        (lambda one: providers(one, os.environ), {"kubernetes_api": False}),
        (lambda one: one.web_config_file and web.load_web_file(one.web_config_file), {"web_config_file": ""}),
    )
    for attempt, harmless in without:
        try:
            attempt(settings)
        except UsageError as error:
            found.append(explained("settings", error))
            settings = replace(settings, **harmless)  # type: ignore[arg-type]  # each of its own type
    return found, settings


def _look(settings: Config) -> tuple[list[Finding], Tick | None]:
    """All that is found in some ticks, and the last of them."""
    found, settings = _settings(settings)
    try:
        loop = build.loop(settings)
    except UsageError as error:
        return [*found, explained("source", error)], None
    try:
        seen = _ticks(loop, settings)
    finally:
        loop.stop()
    return [*found, *(_on_host(seen, settings) if settings.source == "nvml" else _on_recording(seen))], seen.tick


def _ticks(loop: Loop, settings: Config) -> Seen:
    started = time.monotonic()
    wall_ns, steady_ns = time.time_ns(), time.monotonic_ns()
    first = before = loop.once()
    # As for `once`: utilization is told since the reading before, and names come from the background.
    time.sleep(min(settings.tick_interval, LONGEST_PAUSE_S))
    while not loop.has_answers() and time.monotonic() - started < NAMES_S:
        time.sleep(0.05)
    tick = loop.once()
    while _hangs(tick) and time.monotonic() - started < NAMES_S:  # a driver that nobody used may take seconds to wake
        time.sleep(0.25)
        before, tick = tick, loop.once()
    wall_ns, steady_ns = time.time_ns() - wall_ns, time.monotonic_ns() - steady_ns
    sample_us = None
    if tick.driver.up and settings.source == "nvml":
        now_us = tick.time_ns // 1000
        asked = Bounded("samples", lambda: (clock.nearest_sample_us(tick.readings, now_us),), CALL_S, "").outcome()
        sample_us = None if isinstance(asked, Finding) else asked[0]
    return Seen(first, before, tick, wall_ns, steady_ns, sample_us)


def _hangs(tick: Tick) -> bool:
    return any(HANGS in reason for reason in (tick.driver.reason, *(one.reason for one in tick.readings)))


def _on_host(seen: Seen, settings: Config) -> list[Finding]:
    tick, root = seen.tick, Path(settings.path_procfs)
    access = probe(root)
    sees = access.host_pid_namespace
    of_gpus = [
        *gpus.gpus(tick.readings),
        *gpus.mig(tick.readings),
        *gpus.accounting(tick.readings, needed=settings.collector_dcgm),
        *memory.memory(tick, sees_host=sees),
        *host.processes(seen.before, tick, access, root),
    ]
    return [
        *driver.driver(tick.driver, tick.readings),
        *driver.start(seen.first, tick),
        *driver.versions(tick.driver),
        *(of_gpus if tick.driver.up and tick.readings else []),
        *driver.troubles(tick.health),
        *dcgm.dcgm(tick.dcgm),
        *host.namespace(access),
        *host.rights(access, root),
        *host.cgroups(Procfs(root).cgroup(1)),
        *names.names(tick.owners, settings),
        *names.owned(tick.owners, blind=not (sees and access.cgroup)),
        *clock.clock(tick.time_ns, seen.wall_ns, seen.steady_ns, seen.sample_us),
    ]


def _on_recording(seen: Seen) -> list[Finding]:
    """Of a recording only its own words can be checked."""
    if not seen.tick.readings:
        return [problem("source", "the recording has no GPUs in it", "make another with `gpuledger record FILE`")]
    return [ok("source", f"a recording of {len(seen.tick.readings)} devices; driver and host are not used")]
