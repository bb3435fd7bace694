"""Putting the parts together as the configuration says; shared by the commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuledger import selfstats
from gpuledger.books.book import Books
from gpuledger.books.interval import Policy
from gpuledger.books.time import BUFFER_NS
from gpuledger.cli.providers import providers
from gpuledger.config import Config
from gpuledger.errors import ConfigError, ListenError
from gpuledger.export.app import App
from gpuledger.export.server import Server
from gpuledger.loop import Loop
from gpuledger.model import Health, Tick
from gpuledger.owners.access import announce, probe
from gpuledger.owners.procfs import Procfs
from gpuledger.owners.resolver import Resolver
from gpuledger.owners.slurm import SlurmResolver


def loop(settings: Config, *, health: Callable[[Health], Health] = selfstats.measure) -> Loop:
    """The loop over the configured source, with everybody who knows names asked in the background."""
    books = _books(settings)
    if settings.source != "nvml":
        from gpuledger.sources.replay import Replay

        replay = Replay(Path(settings.source.removeprefix("replay:")), looped=True)
        return Loop(replay, None, interval_s=settings.tick_interval, books=books, health=health)
    from gpuledger.sources.nvml.source import NvmlSource

    procfs = Path(settings.path_procfs)
    if not (procfs / "stat").exists():
        raise ConfigError(f"--path.procfs: {procfs} is no proc file system; name the folder where one is mounted")
    return Loop(
        NvmlSource(timeout_s=settings.driver_timeout, pcie_throughput=settings.collector_pcie_throughput),
        Procfs(procfs).facts,
        interval_s=settings.tick_interval,
        owners=_owners(settings, procfs),
        books=books,
        health=health,
    )


def _books(settings: Config) -> Books:
    return Books(
        settings.process_max,
        shown=settings.collector_process,
        policy=Policy(settings.energy_strict, settings.energy_parked == "separate", settings.energy_method),
        keep_ns=int(settings.metric_retention * 1e9),
        longest_ns=max(BUFFER_NS, int(settings.tick_interval * 2.5e9)),  # slow ticks are no gaps
    )


def _owners(settings: Config, procfs: Path) -> Resolver:
    asked = providers(settings, os.environ)
    for provider in asked:
        provider.start()
    access = probe(procfs)
    announce(access, procfs)
    jobs = SlurmResolver(procfs) if {"auto", "slurm"} & set(settings.environment) else None
    return Resolver(asked, jobs=jobs, access=access)


class Exporter:
    """The loop with the server in front of it."""

    def __init__(self, settings: Config) -> None:
        self._loop = loop(settings, health=self._health)
        app = App(
            self._latest,
            self._loop.age_s,
            interval_s=settings.tick_interval,
            driver_timeout_s=settings.driver_timeout,
            telemetry_path=settings.web_telemetry_path,
        )
        self.server = Server(settings.web_listen_address, app, max_connections=settings.web_max_connections)
        try:
            self.server.bind()
        except ListenError:
            self._loop.stop()
            raise

    def run(self) -> None:
        """Serve and tick until `stop`."""
        self.server.start()
        self._loop.run()

    def stop(self) -> None:
        """End both; takes a second at most."""
        self._loop.stop()
        self.server.stop()

    def _latest(self) -> Tick | None:
        return self._loop.tick

    def _health(self, health: Health) -> Health:
        statistics = self.server.statistics
        return replace(
            selfstats.measure(health),
            http_connections=statistics.open,
            http_rejected=statistics.rejected + statistics.evicted,
        )
