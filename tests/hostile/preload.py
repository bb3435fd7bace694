"""Libraries that replace functions of the C library in an exporter (LD_PRELOAD)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.components import compiler


def preloaded(name: str, folder: Path) -> Path:
    """The library from the C source of this name, built in a folder."""
    library, source = folder / f"{name}.so", Path(__file__).with_name(f"{name}.c")
    subprocess.run([*compiler(), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library
