"""Puts into each wheel and sdist of which commit it was made: `gpuledger --version` says it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"wheel": "gpuledger/build.json", "sdist": "src/gpuledger/build.json"}


class CommitHook(BuildHookInterface):
    """Called by hatchling for each target."""

    _file = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file: that of the sdist this is, or a new one, unless nobody knows the commit.

        Always by hand and never as one file of many, so that it is at the same place of the archive either way.
        """
        root = Path(self.root)
        kept = root / "src/gpuledger/build.json"
        if version == "editable":
            return
        if kept.exists():
            build_data["force_include"][str(kept)] = PLACES[self.target_name]
        elif commit := _commit(root):
            with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
                json.dump({"commit": commit, "date": _date(root)}, file)
            Path(file.name).chmod(0o644)
            self._file = file.name
            build_data["force_include"][file.name] = PLACES[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """It is in the archive now."""
        if self._file:
            Path(self._file).unlink()


def _commit(root: Path) -> str:
    """As $SOURCE_COMMIT says, which an image is built with, or as git does; marked when files differ from it."""
    if given := os.environ.get("SOURCE_COMMIT"):
        return given
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "HEAD")
    return f"{commit}+changes" if commit and _git(root, "status", "--porcelain", "--untracked-files=no") else commit


def _date(root: Path) -> str:
    """Of the commit, or as $SOURCE_DATE_EPOCH says: never of the build, which would differ each time."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or _git(root, "log", "-1", "--format=%ct")
    return datetime.fromtimestamp(int(seconds), timezone.utc).date().isoformat() if seconds else ""


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
