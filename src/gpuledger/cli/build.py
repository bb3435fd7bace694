"""Assembles the loop and the exporter from the configuration. Shared by the commands."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.books import Books
from gpuledger.catalog import OPTIONAL
from gpuledger.catalog.dialects import DIALECTS, Choices, families_of
from gpuledger.catalog.dialects.counters import Counter, duplicates
from gpuledger.catalog.dialects.counters import parse as parse_counters
from gpuledger.cli import web
from gpuledger.cli.providers import providers
from gpuledger.config.exporter import Config
from gpuledger.config.load import LARGEST_FILE
from gpuledger.errors import ConfigError, UsageError
from gpuledger.ledger.split import Policy
from gpuledger.ledger.time import BUFFER_NS
from gpuledger.loop import Bookkeeper, Collector, Loop, ReadFacts
from gpuledger.model import Health, Tick
from gpuledger.model.problem import Problem
from gpuledger.owners.kernel.access import announce, in_host_pid_namespace, probe
from gpuledger.owners.kernel.cgroupfs import CgroupTree, own_containers
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.owners.kernel.search import RunningContainers, Search
from gpuledger.owners.kernel.slurm import SlurmNumbers
from gpuledger.owners.resolver import Resolver
from gpuledger.runtime import selfstats
from gpuledger.runtime.deadline import Deadline
from gpuledger.storage.journalfile import JournaledBooks
from gpuledger.web.api import Api
from gpuledger.web.app import App
from gpuledger.web.parts import Parts
from gpuledger.web.snapshot.history import History

if TYPE_CHECKING:
    from gpuledger.integrations.dcgmexporter.poll import Poll
    from gpuledger.integrations.otlp.push import Push
    from gpuledger.integrations.scrape import Source

log = logging.getLogger(__name__)

NAMES_TIMEOUT_S = 3.0
"""How long to wait for the first names from providers; ids alone are better than nothing."""
LONGEST_PAUSE_S = 1.0


def loop(
    settings: Config,
    *,
    books: Bookkeeper | None = None,
    health: Callable[[Health], Health] = selfstats.measure,
    published: Callable[[Tick], None] = lambda _: None,
    between_ticks: threading.Event | None = None,
) -> Loop:
    """The loop over the configured source, with name providers started in the background."""
    books = books or _books(settings)
    if settings.source != "nvml":
        from gpuledger.recording.replay import Replay

        if settings.collector_dcgm:
            log.warning("collector.dcgm has no effect on a recording")
        replay = Replay(Path(settings.source.removeprefix("replay:")), looped=True)
        return Loop(replay, None, interval_s=settings.tick_interval, books=books, health=health, published=published,
                    between_ticks=between_ticks)  # fmt: skip
    from gpuledger.driver.source import NvmlSource

    root = proc_root(settings)
    procfs = Procfs(root)
    return Loop(
        NvmlSource(
            timeout_s=settings.driver_timeout,
            energy_interval_s=settings.driver_energy_interval,
            pcie_throughput=settings.collector_pcie_throughput,
        ),
        _facts(procfs, root),
        interval_s=settings.tick_interval,
        owners=_owners(settings, root, procfs),
        books=books,
        collectors=_collectors(settings),
        health=health,
        published=published,
        between_ticks=between_ticks,
    )


def wait_for_names(loop: Loop, settings: Config) -> None:
    """Wait between two readings, and until all providers have answered once."""
    time.sleep(min(settings.tick_interval, LONGEST_PAUSE_S))
    deadline = Deadline(NAMES_TIMEOUT_S)
    while not loop.has_answers() and deadline.remaining_s:
        time.sleep(0.05)


def proc_root(settings: Config) -> Path:
    """The host's procfs. Raises ConfigError if it is not one."""
    procfs = Path(settings.path_procfs)
    if not (procfs / "stat").exists():
        raise ConfigError(f"--path.procfs: {procfs} is not a proc file system", "name its mount point")
    return procfs


def _journal(settings: Config) -> JournaledBooks | None:
    """The books with a journal, if configured. A recording has no boot, and therefore no journal."""
    if not settings.journal_path or settings.source != "nvml":
        return None
    boot_id = Procfs(proc_root(settings)).boot_id()
    return JournaledBooks(
        _books(settings), settings.journal_path, boot_id=boot_id, interval_s=settings.journal_interval
    )


def _collectors(settings: Config) -> list[Collector]:
    """The collectors that are enabled; the others are not even loaded."""
    collectors: list[Collector] = []
    if settings.collector_dcgm:
        from gpuledger.integrations.dcgm.collector import DcgmCollector

        dcgm = DcgmCollector(
            period_s=settings.dcgm_update_frequency, hostengine=settings.dcgm_hostengine, library=settings.dcgm_library
        )
        dcgm.start()
        collectors.append(dcgm)
    if settings.tokens_scrape:
        from gpuledger.config.parsers import ANNOTATIONS
        from gpuledger.integrations.tokens.collector import TokenCollector

        if ANNOTATIONS in settings.tokens_scrape and not settings.kubernetes_api:
            raise ConfigError("--tokens.scrape=annotations reads pods at the API server", "add --kubernetes.api")

        collectors.append(
            TokenCollector(settings.tokens_scrape, settings.tokens_interval, timeout_s=settings.tokens_timeout)
        )
    return collectors


def _books(settings: Config) -> Books:
    return Books(
        settings.process_max,
        settings.container_max,
        settings.allocation_max,
        shown=settings.process_only if settings.collector_process else "none",
        policy=Policy(settings.energy_strict, settings.energy_parked == "separate", settings.energy_method),
        keep_ns=int(settings.metric_retention * 1e9),
        longest_ns=max(BUFFER_NS, int(settings.tick_interval * 2.5e9)),  # slow ticks are not gaps
        low_pct=float(settings.allocation_low.removesuffix("%")),
    )


def _facts(procfs: Procfs, root: Path) -> ReadFacts:
    """A reader of process facts. The driver lists pids of our PID namespace, but samples with pids of the host."""
    if root == Path("/proc") and not in_host_pid_namespace():
        return lambda tick: procfs.facts(tick.resident_pids())
    return lambda tick: procfs.facts(tick.resident_pids() | tick.working_pids())


def _owners(settings: Config, root: Path, procfs: Procfs) -> Resolver:
    name_providers = providers(settings, os.environ)
    for provider in name_providers:
        provider.start()
    access = probe(root)
    announce(access, root)
    cgroups = CgroupTree(root)
    parse_cgroup = partial(cgroups.parse, nested=settings.owners_nested == "inner")
    return Resolver(
        name_providers,
        parse_cgroup=parse_cgroup,
        slurm=SlurmNumbers(cgroups, root) if {"auto", "slurm"} & set(settings.environment) else None,
        access=access,
        search=Search(procfs, cgroups.parse),
        running=RunningContainers(procfs, parse_cgroup),
        own=own_containers(root),
    )


def _upstream(settings: Config, latest: Callable[[], Tick | None]) -> Poll | None:
    if not settings.dcgm_exporter_url:
        return None
    from gpuledger.integrations.dcgmexporter.poll import Poll, Polling  # memory that few users need

    polling = Polling(
        interval_s=settings.dcgm_exporter_interval,
        max_age_s=settings.dcgm_exporter_max_age,
        copied=settings.dcgm_exporter_copy_shared,
    )
    return Poll(upstream_source(settings), latest, polling)


def _push(settings: Config, chosen: Choices) -> Push | None:
    if not settings.otlp_endpoint:
        return None
    from gpuledger.integrations.otlp.push import create_push  # memory that few users need

    return create_push(settings, chosen.hostname, families_of(["native"], chosen))


def upstream_source(settings: Config) -> Source:
    """The source of a dcgm-exporter's metrics: a URL or a file."""
    from gpuledger.integrations.scrape import File, Page
    from gpuledger.net.address import parse_place

    if settings.dcgm_exporter_max_age < settings.dcgm_exporter_interval:
        raise ConfigError("--dcgm-exporter.max-age is shorter than --dcgm-exporter.interval",
                          "raise it, or metrics will be missing between reads")  # fmt: skip
    place = parse_place(settings.dcgm_exporter_url)
    if place.path:
        return File(place, settings.dcgm_exporter_max_age)
    return Page(place, settings.dcgm_exporter_timeout)


def choices(settings: Config, environment: Mapping[str, str]) -> Choices:
    """The options of the dialects. Logs which counters of a list are unknown."""
    counters = _counters(settings.dcgm_counters) if settings.dcgm_counters else None
    if settings.metric_prefix != Choices().prefix and "process" not in settings.web_dialect:
        path = DIALECTS["process"].path
        log.info("--metric-prefix has an effect only under %s; add --web.dialect=process to use it under %s",
                 path, settings.web_telemetry_path)  # fmt: skip
    hostname = settings.kubernetes_node_name or environment.get("NODE_NAME", "") or os.uname().nodename
    optional = tuple(name for name in OPTIONAL if getattr(settings, f"collector_{name}"))
    return Choices(hostname, settings.dcgm_pod_uid, counters, settings.metric_prefix, settings.dcgm_shared,
                   settings.dcgm_names, created=settings.web_openmetrics_created, optional=optional)  # fmt: skip


def _counters(path: str) -> tuple[Counter, ...]:
    from gpuledger.catalog.dialects.dcgm import unknown_fields

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - keeps the spelling of the path
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise ConfigError(f"--dcgm.counters: {path} has more than {LARGEST_FILE} characters", "name a CSV file")
        chosen = parse_counters(text)
    except OSError as error:
        raise ConfigError(f"--dcgm.counters: cannot read {path}: {error.strerror}", "name a CSV file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--dcgm.counters: {path} is not a text file in UTF-8", "name a CSV file") from None
    except ValueError as error:
        raise ConfigError(f"--dcgm.counters: {path}: {error}") from None
    if repeated := duplicates(text):
        log.warning("%s: duplicate counters, the first of each is used: %s", path, ", ".join(repeated))
    if missing := unknown_fields(chosen):
        log.warning("%s: unknown counters are ignored: %s", path, ", ".join(missing))
    return chosen


class Exporter:
    """The loop and the HTTP server that exposes its ticks."""

    def __init__(self, settings: Config) -> None:
        chosen = choices(settings, os.environ)
        self._review_problem: Problem | None = None
        self._upstream = _upstream(settings, self._latest)
        self._journal = _journal(settings)
        between_ticks = threading.Event()
        parts = Parts(between_ticks)
        self._api = Api(
            History(settings.tick_interval),
            node=chosen.hostname,
            max_connections=settings.web_max_connections,
            parts=parts,
        )
        self._push = _push(settings, chosen)
        self._loop = loop(settings, books=self._journal, health=self._health, published=self._publish,
                          between_ticks=between_ticks)  # fmt: skip
        app = App(
            self._latest,
            self._loop.age_s,
            interval_s=settings.tick_interval,
            driver_timeout_s=settings.driver_timeout,
            telemetry_path=settings.web_telemetry_path,
            dialects=settings.web_dialect,
            choices=chosen,
            upstream=self._upstream_families if self._upstream else None,
            upstream_in_metrics=settings.dcgm_exporter_in_metrics,
            has_metrics=settings.web_metrics,
            api=self._api,
            parts=parts,
        )
        try:
            self.server = web.create_server(settings, app, self._report_reviews)
            self.server.bind()
        except UsageError:
            self._loop.stop()
            self._close_journal()
            raise

    def run(self) -> None:
        """Serve and tick until `stop` is called."""
        self.server.start()
        if self._upstream is not None:
            self._upstream.start()
        if self._push is not None:
            self._push.start()
        self._loop.run()

    def stop(self) -> None:
        """Stop everything; takes two seconds at most."""
        if self._upstream is not None:
            self._upstream.stop()
        self._loop.stop()
        if self._push is not None:
            self._push.stop()
        self._close_journal()
        self._api.close()
        self.server.stop()

    def _close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _latest(self) -> Tick | None:
        return self._loop.tick

    def _publish(self, tick: Tick) -> None:
        self._api.publish(tick)
        if self._push is not None:
            self._push.publish(tick)

    def _health(self, health: Health) -> Health:
        statistics = self.server.statistics
        return replace(
            selfstats.measure(health),
            http_connections=statistics.open,
            http_rejected=statistics.rejected + statistics.evicted,
            upstream=self._upstream.state if self._upstream else None,
            otlp=self._push.health if self._push else None,
            review_problem=self._review_problem,
        )

    def _report_reviews(self, problem: Problem | None) -> None:
        self._review_problem = problem

    def _upstream_families(self) -> tuple[tuple[bytes, bytes], ...] | None:
        served = self._upstream.served if self._upstream else None
        return served.families if served else None
