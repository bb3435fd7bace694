"""`python -m tools.hashes`: write deploy/requirements.txt, the packages of the image with the hashes of their wheels.

Versions are those of constraints.txt. The wheels are for the Python of Debian 12 and 13, on amd64 and arm64. Needs a
package index.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "deploy" / "requirements.txt"
PACKAGES = ("h2", "hpack", "hyperframe", "PyYAML", "bcrypt")
"""Of `gpuledger[auth]`."""
PYTHONS, MACHINES, GLIBCS = ("3.11", "3.13"), ("x86_64", "aarch64"), ("2014", "_2_28", "_2_34")
HEAD = (
    "# The packages of the image, by hash. Written by `python -m tools.hashes`, with the versions of constraints.txt.\n"
)


def versions() -> dict[str, str]:
    """The version of each package in constraints.txt."""
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    return {name: pinned[name] for name in PACKAGES}


def requirements(wheels: Path) -> str:
    """The requirements file for these wheels."""
    hashes = defaultdict(list)
    for wheel in sorted(wheels.iterdir()):
        hashes[wheel.name.partition("-")[0].lower()].append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = (
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in hashes[name.lower()])])
        for name, version in versions().items()
    )
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Download the wheels and write the file."""
    wanted = [f"{name}=={version}" for name, version in versions().items()]
    with tempfile.TemporaryDirectory() as folder:
        for python in PYTHONS:
            for machine in MACHINES:
                platforms = [word for glibc in GLIBCS for word in ("--platform", f"manylinux{glibc}_{machine}")]
                words = ["download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", python, "-d", folder]
                subprocess.run([sys.executable, "-m", "pip", *words, *platforms, *wanted], check=True)
        OUT.write_text(requirements(Path(folder)))


if __name__ == "__main__":
    main()
