"""Build hook that stores the commit in each wheel and sdist, for `gpuledger --version`."""

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
    """Hook that hatchling runs for each target."""

    _file = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add build.json: the existing one if this tree is an sdist, otherwise a new one if the commit is known.

        The file is always force-included, so that its position in the archive is the same in both cases.
        """
        root = Path(self.root)
        existing = root / "src/gpuledger/build.json"
        if version == "editable":
            return
        if existing.exists():
            build_data["force_include"][str(existing)] = PLACES[self.target_name]
        elif commit := _commit(root):
            with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
                json.dump({"commit": commit, "date": _date(root)}, file)
            Path(file.name).chmod(0o644)
            self._file = file.name
            build_data["force_include"][file.name] = PLACES[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Delete the temporary file."""
        if self._file:
            Path(self._file).unlink()


def _commit(root: Path) -> str:
    """Commit from $SOURCE_COMMIT, which image builds set, or from git; with a suffix if tracked files were changed."""
    if given := os.environ.get("SOURCE_COMMIT"):
        return given
    if not (root / ".git").exists():
        return ""
    commit = _git(root, "rev-parse", "HEAD")
    return f"{commit}+changes" if commit and _git(root, "status", "--porcelain", "--untracked-files=no") else commit


def _date(root: Path) -> str:
    """Date from $SOURCE_DATE_EPOCH or of the commit; not of the build, because builds must be reproducible."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or _git(root, "log", "-1", "--format=%ct")
    return datetime.fromtimestamp(int(seconds), timezone.utc).date().isoformat() if seconds else ""


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
