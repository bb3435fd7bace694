"""`gpuledger demo`: the exporter on a bundled recording of a node with four H200s."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from gpuledger.cli import logs, serve, terminal
from gpuledger.cli.build import Exporter
from gpuledger.config.exporter import Config
from gpuledger.config.load import load
from gpuledger.errors import RecordingError

RECORDING = Path(__file__).parents[1] / "demo.jsonl.gz"
RETENTION_S = 15.0
"""Unless the user chooses another: processes that exit are retired within the minute of the recording."""
GUIDE = """\
This replays one minute of a node with four H200s, again and again. The measurements are real, the names are invented.

The page is at {url}/, the metrics are at {url}{path}.

GPU 0  From second 20 on, two pods share it: their energy is estimated (fingerprint), and each share has an error.
       The service ollama only holds memory (parked). In second 39 alice's notebook exits; 15 s later its series
       disappear, and its energy is in gpu_retired_energy_joules_total.
GPU 1  A pod has it to itself: its energy is measured (exclusive).
GPU 2  It is allocated to research/notebook-dana-0, which does not use it.
GPU 3  From second 23 to 46, a process that the driver does not list holds memory. gpuledger assigns the memory to the
       container triton (inferred).

Stop with Ctrl-C.
"""


def add_arguments(_: argparse.ArgumentParser) -> None:
    """The settings are those of `serve`."""


def run(_: argparse.Namespace, settings: Config) -> int:
    """Serve the recording in a loop."""
    if not RECORDING.exists():
        raise RecordingError(f"the demo's recording {RECORDING} is missing", "reinstall gpuledger")
    logs.set_up(settings.log_level, settings.log_format)
    if settings.metric_retention == load({}, {}).metric_retention:
        settings = replace(settings, metric_retention=RETENTION_S)
    settings = replace(settings, source=f"replay:{RECORDING}")
    exporter = Exporter(settings)
    url = f"{exporter.server.scheme}://localhost:{exporter.server.addresses[0][1]}"
    terminal.write(GUIDE.format(url=url, path=settings.web_telemetry_path).encode())
    return serve.serve(exporter, settings)
