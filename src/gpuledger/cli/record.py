"""`gpuledger record FILE`: writes what the driver reports to a recording."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gpuledger.cli import build, logs
from gpuledger.cli.terminal import StopSignal
from gpuledger.config import durations
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError, UsageError
from gpuledger.loop import Loop
from gpuledger.recording.recording import Recorder, recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("file", metavar="FILE", help="the recording to write, such as today.jsonl.gz")
    parser.add_argument("--duration", default="60s", metavar="DURATION", help="how long to record [60s]")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Record for the given time or until SIGINT; an interrupted recording is complete up to that point."""
    logs.set_up(settings.log_level, settings.log_format)
    duration_s = _duration(arguments.duration, settings.tick_interval)
    path = Path(arguments.file)
    stop = StopSignal()
    loop = build.loop(settings)
    try:
        with recording(path, settings.tick_interval) as recorder:
            driver = loop.once().driver  # not recorded: utilization describes the time since the previous reading
            if not driver.up:
                raise UsageError(f"cannot record: {driver.reason}", "record on a host where `nvidia-smi` works")
            _record(loop, recorder, settings.tick_interval, duration_s, stop)
            if not recorder.ticks:
                raise UsageError(f"{path} was not written: stopped before the first tick", "record for longer")
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
        raise ConfigError(f"--duration: {text!r} is shorter than a tick", f"choose {shortest} or more")
    return duration_s


def _record(loop: Loop, recorder: Recorder, interval_s: float, duration_s: float, stop: StopSignal) -> None:
    started = time.monotonic()
    for number in range(1, round(duration_s / interval_s) + 1):
        if stop.wait(max(0.0, started + number * interval_s - time.monotonic())):
            return
        recorder.write(loop.once())
        if sys.stderr.isatty():
            remaining_s = max(0.0, started + duration_s - time.monotonic())
            print(f"\r{recorder.ticks} ticks, {remaining_s:.0f} s left ", end="", file=sys.stderr, flush=True)
