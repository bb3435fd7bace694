"""Putting the parts together as the configuration says; shared by the commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpuledger import selfstats
from gpuledger.config import Config
from gpuledger.export.app import App
from gpuledger.export.server import Server
from gpuledger.loop import Loop
from gpuledger.model import Health, Tick
from gpuledger.sources.source import Source

log = logging.getLogger(__name__)


def loop(settings: Config, *, health: Callable[[Health], Health] = selfstats.measure) -> Loop:
    """The loop over the configured source."""
    source = _source(settings)
    facts = None
    if settings.source == "nvml":
        from gpuledger.owners.procfs import Procfs

        facts = Procfs(Path(settings.path_procfs)).facts
    return Loop(source, facts, interval_s=settings.tick_interval, health=health)


def _source(settings: Config) -> Source:
    if settings.source != "nvml":
        from gpuledger.sources.replay import Replay

        return Replay(Path(settings.source.removeprefix("replay:")), looped=True)
    from gpuledger.sources.nvml.source import NvmlSource

    return NvmlSource(timeout_s=settings.driver_timeout, pcie_throughput=settings.collector_pcie_throughput)


class Exporter:
    """The loop with the server in front of it."""

    def __init__(self, settings: Config) -> None:
        self._loop = loop(settings, health=self._health)
        app = App(
            self._latest,
            self._loop.age_s,
            interval_s=settings.tick_interval,
            telemetry_path=settings.web_telemetry_path,
        )
        self.server = Server(settings.web_listen_address, app, max_connections=settings.web_max_connections)
        self.server.bind()

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
