"""`gpuledger once`: one reading, printed or written to a file for node_exporter's textfile collector."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from gpuledger.cli import build, logs
from gpuledger.config import Config
from gpuledger.errors import UsageError
from gpuledger.export.json import tick_json
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer

FORMATS = {"text": Format.TEXT, "openmetrics": Format.OPENMETRICS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to write, and where."""
    parser.add_argument("--format", choices=(*FORMATS, "json"), default="text", help="text, openmetrics or json")
    parser.add_argument("--output", metavar="FILE", help="write here, all at once, instead of to standard output")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 1 when the driver could not be read; what is known is written all the same."""
    logs.set_up(settings.log_level, settings.log_format)
    loop = build.loop(settings)
    loop.once()
    # Utilization and activity are told since the reading before, so there must be one.
    time.sleep(settings.tick_interval)
    tick = loop.once()
    loop.stop()
    if arguments.format == "json":
        body = tick_json(tick)
    else:
        body = b"".join(Renderer().chunks(tick, FORMATS[arguments.format]))
    if arguments.output:
        write_atomically(Path(arguments.output), body)
    else:
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
    return 0 if tick.driver.up else 1


def write_atomically(path: Path, body: bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(body)
        partial.chmod(0o644)  # node_exporter runs as another user
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another --output") from None
