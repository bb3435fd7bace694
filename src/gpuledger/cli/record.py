"""`gpuledger record FILE`: what the driver says, kept for later."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gpuledger import durations
from gpuledger.cli import build, logs
from gpuledger.cli.stop import Stop
from gpuledger.config import Config
from gpuledger.errors import ConfigError, UsageError
from gpuledger.loop import Loop
from gpuledger.sources.recording import Recorder, recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to, and for how long."""
    parser.add_argument("file", metavar="FILE", help="the recording, for example today.jsonl.gz")
    parser.add_argument("--duration", default="60s", metavar="TIME", help="how long to record (60s)")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Record until the time is up or the user ends it; what was recorded until then is kept."""
    logs.set_up(settings.log_level, settings.log_format)
    duration_s = _duration(arguments.duration, settings.tick_interval)
    path = Path(arguments.file)
    stop = Stop()
    loop = build.loop(settings)
    try:
        with recording(path, settings.tick_interval) as recorder:
            driver = loop.once().driver  # also the reading that utilization is told since
            if not driver.up:
                raise UsageError(f"cannot record: {driver.reason}; run it where `nvidia-smi` works")
            _record(loop, recorder, settings.tick_interval, duration_s, stop)
            if not recorder.ticks:
                raise UsageError(f"{path} was not written: stopped before the first tick; record for longer")
    finally:
        loop.stop()
    print(f"\rrecorded {recorder.ticks} ticks to {path} ({path.stat().st_size / 1000:.0f} kB)", file=sys.stderr)
    return 0


def _duration(text: str, interval_s: float) -> float:
    try:
        duration_s = durations.parse(text)
    except ValueError as error:
        raise ConfigError(f"--duration: {text!r} {error}") from None
    if duration_s < interval_s:
        shortest = durations.show(interval_s)
        raise ConfigError(f"--duration: {text!r} is shorter than a tick; choose {shortest} or more")
    return duration_s


def _record(loop: Loop, recorder: Recorder, interval_s: float, duration_s: float, stop: Stop) -> None:
    started = time.monotonic()
    for number in range(1, round(duration_s / interval_s) + 1):
        if stop.wait(max(0.0, started + number * interval_s - time.monotonic())):
            return
        recorder.write(loop.once())
        if sys.stderr.isatty():
            left_s = max(0.0, started + duration_s - time.monotonic())
            print(f"\r{recorder.ticks} ticks, {left_s:.0f} s left ", end="", file=sys.stderr, flush=True)
