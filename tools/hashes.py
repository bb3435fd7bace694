"""`python -m tools.hashes`: write the packages of the image, and those that build the wheel, with the hashes of wheels.

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
IMAGE, BUILD = ROOT / "deploy" / "requirements.txt", ROOT / "deploy" / "build-requirements.txt"
PACKAGES = {
    IMAGE: ("h2", "hpack", "hyperframe", "PyYAML", "bcrypt"),
    BUILD: ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"),
}
"""Of `gpuledger[auth]`, and of the build backend with Python 3.11 and newer."""
PYTHONS, MACHINES, GLIBCS = ("3.11", "3.13"), ("x86_64", "aarch64"), ("2014", "_2_28", "_2_34")
HEAD = "# {}, by hash. Written by `python -m tools.hashes`, with the versions of constraints.txt.\n"


def versions(file: Path) -> dict[str, str]:
    """The version of each package of a file in constraints.txt."""
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    return {name: pinned[name] for name in PACKAGES[file]}


def requirements(file: Path, wheels: Path) -> str:
    """The content of the file for these wheels."""
    hashes = defaultdict(list)
    for wheel in sorted(wheels.iterdir()):
        hashes[wheel.name.partition("-")[0].lower().replace("_", "-")].append(
            hashlib.sha256(wheel.read_bytes()).hexdigest()
        )
    lines = (
        " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in hashes[name.lower()])])
        for name, version in versions(file).items()
    )
    return (
        HEAD.format("The packages of the image" if file == IMAGE else "What builds the wheel") + "\n".join(lines) + "\n"
    )


def main() -> None:
    """Download the wheels and write the files."""
    for file in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            wanted = [f"{name}=={version}" for name, version in versions(file).items()]
            for python in PYTHONS:
                for machine in MACHINES:
                    platforms = [word for glibc in GLIBCS for word in ("--platform", f"manylinux{glibc}_{machine}")]
                    words = ["pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", python]
                    subprocess.run([sys.executable, "-m", *words, "-d", folder, *platforms, *wanted], check=True)
            file.write_text(requirements(file, Path(folder)))


if __name__ == "__main__":
    main()
