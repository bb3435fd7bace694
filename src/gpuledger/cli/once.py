"""`gpuledger once`: one reading, printed or written to a file for node_exporter's textfile collector."""

from __future__ import annotations

import argparse
import os

from gpuledger.catalog.dialects import families_of
from gpuledger.cli import build, logs, terminal
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError
from gpuledger.storage.atomicfile import replacing
from gpuledger.web.json import tick_json
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

FORMATS = {"text": Format.TEXT, "openmetrics": Format.OPENMETRICS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--format", choices=(*FORMATS, "json"), default="text", help="output format [text]")
    parser.add_argument("--output", metavar="PATH", help="file to write atomically instead of standard output")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 1 if the driver could not be read; the other metrics are written nevertheless."""
    logs.set_up(settings.log_level, settings.log_format)
    renderer = Renderer(families_of(settings.web_dialect, build.choices(settings, os.environ)))
    if arguments.format == "openmetrics" and not renderer.openmetrics:
        dialects = "+".join(settings.web_dialect)
        raise ConfigError(f"--format: OpenMetrics does not allow the names of dialect {dialects}", "use --format text")
    loop = build.loop(settings)
    try:
        loop.once()
        # Utilization and activity describe the time since the previous reading, so one reading is not enough.
        build.wait_for_names(loop, settings)
        tick = loop.once()
    finally:
        loop.stop()
    chunks = [tick_json(tick)] if arguments.format == "json" else renderer.chunks(tick, FORMATS[arguments.format])
    body = b"".join(chunks)
    if arguments.output is None:
        terminal.write(body)
    else:
        with replacing(arguments.output) as file:
            file.write(body)
    return 0 if tick.driver.up else 1
