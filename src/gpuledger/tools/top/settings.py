"""Settings of `gpuledger top`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.config.exporter import Config
from gpuledger.config.settings import redeclared
from gpuledger.tools.exporterclient import ExporterSettings


@dataclass(frozen=True)
class TopSettings(ExporterSettings, Config):
    """All settings; those of the exporter are included, so that both can share one file."""

    tick_interval: float = redeclared(Config, "tick_interval", aliases=("process-scan-interval", "interval"))
