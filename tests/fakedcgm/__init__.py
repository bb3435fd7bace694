"""A fake DCGM: real `libdcgm.so.4` and `libdcgm.so.3` that answer from a scenario file, which dcgm.c describes.

    write(path, "gpu 0 GPU-a", "pid 42 gpu=0 energy_mj=200000")
    subprocess.run([...], env=os.environ | environment(path))

Rewrite the file while a program runs and the next call it makes sees the change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.components import compiler

LIBRARIES = {4: "libdcgm.so.4", 3: "libdcgm.so.3"}

_SOURCE = Path(__file__).parent / "dcgm.c"


def build(major: int = 4) -> Path:
    """Compile the library unless this very source was compiled before; return the library, alone in its folder."""
    name = LIBRARIES[major]
    key = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"fakedcgm-{os.getuid()}-{key}-{major}" / name
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    # Two test processes may build at once: each links its own file, and the rename is atomic.
    unfinished = library.with_name(f"{name}.{os.getpid()}")
    flags = ["-O2", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{name}"]
    done = subprocess.run(
        [*compiler(), *flags, f'-DMAJOR="{major}"', "-o", str(unfinished), str(_SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"cannot build the fake DCGM:\n{done.stderr}")
    unfinished.replace(library)
    return library


def write(path: Path, *lines: str) -> Path:
    """Put a scenario in place of the one at `path`, all at once."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    unfinished.write_text("".join(f"{line}\n" for line in lines))
    unfinished.replace(path)
    return path


def environment(scenario: Path, *others: str, major: int = 4, calls: Path | None = None) -> dict[str, str]:
    """What a program needs in its environment to find the fake DCGM, beside other folders of libraries."""
    found = {
        "LD_LIBRARY_PATH": os.pathsep.join([str(build(major).parent), *others]),
        "FAKE_DCGM_SCENARIO": str(scenario),
    }
    return found if calls is None else found | {"FAKE_DCGM_CALLS": str(calls)}
