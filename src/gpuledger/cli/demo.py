"""`gpuledger demo`: the exporter on a bundled recording of a real H200."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from gpuledger.cli import serve
from gpuledger.config import Config
from gpuledger.errors import RecordingError
from gpuledger.export.listen import parse_address

RECORDING = Path(__file__).parents[1] / "demo.jsonl.gz"


def add_arguments(_: argparse.ArgumentParser) -> None:
    """The same settings as serve, but for the source."""


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Serve the recording, in a loop."""
    if not RECORDING.exists():
        raise RecordingError(f"the demo's recording {RECORDING} is missing; install gpuledger again")
    _, port = parse_address(settings.web_listen_address[0])
    url = f"http://localhost:{port}"
    print("A minute of a real H200 with processes of pods, containers and a service, played in a loop.", flush=True)
    print(f"Look at {url}/ and {url}{settings.web_telemetry_path}; stop with Ctrl-C.", flush=True)
    return serve.run(arguments, replace(settings, source=f"replay:{RECORDING}"))
