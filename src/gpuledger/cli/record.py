"""`gpuledger record FILE`: what the driver says, kept for later."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path

from gpuledger import durations
from gpuledger.cli import build, logs
from gpuledger.config import Config
from gpuledger.errors import ConfigError, UsageError
from gpuledger.sources.record import Recorder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and for how long."""
    parser.add_argument("file", metavar="FILE", help="the recording, for example today.jsonl.gz")
    parser.add_argument("--duration", default="60s", metavar="TIME", help="how long to record (60s)")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Record until the time is up or the user ends it; what was recorded until then is kept."""
    logs.set_up(settings.log_level, settings.log_format)
    try:
        duration_s = durations.parse(arguments.duration)
    except ValueError as error:
        raise ConfigError(f"--duration: {arguments.duration!r} {error}") from None
    loop = build.loop(settings)
    if not loop.once().driver.up:  # also the reading that utilization is told since
        assert loop.tick is not None  # noqa: S101 - once() has just set it
        raise UsageError(f"cannot record: {loop.tick.driver.reason}; run it where `nvidia-smi` works")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    path = Path(arguments.file)
    with Recorder(path, settings.tick_interval) as recorder:
        end = time.monotonic() + duration_s
        due = time.monotonic() + settings.tick_interval
        while due <= end and not stopping.wait(max(0.0, due - time.monotonic())):
            recorder.write(loop.once())
            _progress(recorder.ticks, end - time.monotonic())
            due += settings.tick_interval
    loop.stop()
    print(f"\rrecorded {recorder.ticks} ticks to {path} ({path.stat().st_size / 1000:.0f} kB)", file=sys.stderr)
    return 0


def _progress(ticks: int, left_s: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{ticks} ticks, {max(0.0, left_s):.0f} s left ", end="", file=sys.stderr, flush=True)
