"""`gpuledger mcp`: a server of the Model Context Protocol on standard input and output, for agents."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from gpuledger.cli import terminal
from gpuledger.config.settings import redeclared
from gpuledger.tools.exporterclient import LOCAL, CostSettings, ExporterClient, ExporterSettings
from gpuledger.tools.mcp import McpServer, lines
from gpuledger.tools.prices import Prices


@dataclass(frozen=True)
class McpSettings(ExporterSettings):
    """All settings of `gpuledger mcp`."""

    connect: str = redeclared(ExporterSettings, "connect", default=LOCAL)
    price: str = redeclared(CostSettings, "price")
    price_gpu_hour: str = redeclared(CostSettings, "price_gpu_hour")
    currency: str = redeclared(CostSettings, "currency")


SETTINGS = McpSettings


def add_arguments(_: argparse.ArgumentParser) -> None:
    """All flags are settings."""


def run(_: argparse.Namespace, settings: McpSettings) -> int:
    """Answer each line of standard input until it ends."""
    kwh, gpu_hour = (float(text) if text else None for text in (settings.price, settings.price_gpu_hour))
    server = McpServer(ExporterClient(settings.exporter_access()), Prices(kwh, gpu_hour, settings.currency))
    for line in lines(sys.stdin.buffer):
        if line.strip() and (response := server.answer(line)) is not None:
            terminal.write(response)
    return 0
