"""The files of this checkout, for tests that build something of them elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.components import program

ROOT = Path(__file__).parents[1]


def copy_to(folder: Path) -> None:
    """What git knows, or would add: nothing that was built here, and no history."""
    argv = [program("git"), "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
