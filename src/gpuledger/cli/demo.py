"""`gpuledger demo`: the exporter on a bundled recording of a real H200."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from gpuledger.cli import logs, serve, terminal
from gpuledger.cli.build import Exporter
from gpuledger.config import Config
from gpuledger.errors import RecordingError

RECORDING = Path(__file__).parents[1] / "demo.jsonl.gz"


def add_arguments(_: argparse.ArgumentParser) -> None:
    """The settings are those of `serve`."""


def run(_: argparse.Namespace, settings: Config) -> int:
    """Serve the recording in a loop."""
    if not RECORDING.exists():
        raise RecordingError(f"the demo's recording {RECORDING} is missing", "reinstall gpuledger")
    logs.set_up(settings.log_level, settings.log_format)
    settings = replace(settings, source=f"replay:{RECORDING}")
    exporter = Exporter(settings)
    url = f"{exporter.server.scheme}://localhost:{exporter.server.addresses[0][1]}"
    terminal.write(
        "This replays one minute of a real H200 with processes of pods, containers and a service.\n"
        f"Open {url}/ or {url}{settings.web_telemetry_path}; stop with Ctrl-C.\n".encode()
    )
    return serve.serve(exporter, settings)
