"""`gpuledger --version`: which gpuledger this is, of which commit, and what it runs on."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gpuledger import __version__

BUILD = Path(__file__).parents[1] / "build.json"
"""Put there when a wheel is made; a source tree has none."""
PARTS = ("nvidia-ml-py", "h2", "PyYAML")


def text() -> str:
    """Two lines: ourselves, and the rest."""
    parts = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in PARTS)]
    return f"gpuledger {__version__} ({_build()})\n{', '.join(parts)}, {platform.machine()}\n"


def _build() -> str:
    try:
        build = json.loads(BUILD.read_text(encoding="utf-8"))
        return ", ".join(filter(None, (f"commit {build['commit']}", build["date"])))
    except (OSError, ValueError, KeyError, TypeError):
        return "from a source tree"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
