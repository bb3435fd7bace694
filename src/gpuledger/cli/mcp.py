"""`gpuledger mcp`: a server of the Model Context Protocol on standard input and output, for agents."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from gpuledger.cli import terminal
from gpuledger.config.settings import redeclared
from gpuledger.tools.exporterclient import LOCAL, ExporterClient, ExporterSettings, PriceSettings
from gpuledger.tools.mcp import McpServer, lines


@dataclass(frozen=True)
class McpSettings(PriceSettings, ExporterSettings):
    """All settings of `gpuledger mcp`."""

    connect: str = redeclared(ExporterSettings, "connect", default=LOCAL)


SETTINGS = McpSettings


def add_arguments(_: argparse.ArgumentParser) -> None:
    """All flags are settings."""


def run(_: argparse.Namespace, settings: McpSettings) -> int:
    """Answer each line of standard input until it ends."""
    server = McpServer(ExporterClient(settings.exporter_access()), settings.prices())
    for line in lines(sys.stdin.buffer):
        if line.strip() and (response := server.answer(line)) is not None:
            terminal.write(response)
    return 0
