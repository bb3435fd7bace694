"""`gpuledger once`: one reading, printed or written to a file for node_exporter's textfile collector."""

from __future__ import annotations

import argparse
import os

from gpuledger.catalog.dialects import speak
from gpuledger.cli import build, logs, out
from gpuledger.config import Config
from gpuledger.errors import ConfigError
from gpuledger.export.json import tick_json
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer
from gpuledger.wholefile import replacing

FORMATS = {"text": Format.TEXT, "openmetrics": Format.OPENMETRICS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to write, and where."""
    parser.add_argument("--format", choices=(*FORMATS, "json"), default="text", help="text, openmetrics or json")
    parser.add_argument("--output", metavar="FILE", help="write here, all at once, instead of to standard output")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 1 when the driver could not be read; what is known is written all the same."""
    logs.set_up(settings.log_level, settings.log_format)
    renderer = Renderer(speak(settings.web_dialect, build.choices(settings, os.environ)))
    if arguments.format == "openmetrics" and not renderer.openmetrics:
        raise ConfigError(f"--format: {'+'.join(settings.web_dialect)} cannot be written as openmetrics; write text")
    loop = build.loop(settings)
    try:
        loop.once()
        # Utilization and activity are told since the reading before, so there must be one, and some time between.
        build.wait_for_names(loop, settings)
        tick = loop.once()
    finally:
        loop.stop()
    chunks = [tick_json(tick)] if arguments.format == "json" else renderer.chunks(tick, FORMATS[arguments.format])
    body = b"".join(chunks)
    if arguments.output is None:
        out.write(body)
    else:
        with replacing(arguments.output) as file:
            file.write(body)
    return 0 if tick.driver.up else 1
