"""A clean Debian for tests that take minutes: only with IMAGE=1, as `make image-test` sets it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import checkout
from tests.real.daemons import run
from tests.real.dockers import Engine

KEPT = checkout.ROOT / "build" / "debian.tar"
"""Made once: the packages of a bare Debian 12, as debootstrap unpacks them."""
MIRROR = "http://deb.debian.org/debian"
BASE = "debian-clean:12"

collect_ignore_glob = [] if os.environ.get("IMAGE") else ["test_*.py"]


@pytest.fixture(scope="session")
def clean_debian() -> Iterator[Engine]:
    """A Docker Engine that has nothing but a bare Debian, since no image can be pulled in a test."""
    if not KEPT.exists():
        with tempfile.TemporaryDirectory(prefix="debian-") as folder:
            Path(folder).chmod(0o755)  # it becomes the root, which everybody may enter
            run("debootstrap", "--variant=minbase", "bookworm", folder, MIRROR, timeout_s=600)
            KEPT.parent.mkdir(exist_ok=True)
            run("tar", "-C", folder, "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(KEPT), ".", timeout_s=120)
    with tempfile.TemporaryDirectory(prefix="docker-") as folder:
        engine = Engine(Path(folder))
        try:
            engine.start()
            docker(engine, "import", str(KEPT), BASE)
            yield engine
        finally:
            engine.stop()


def docker(engine: Engine, *words: str) -> str:
    """As `engine.cli`, for what takes minutes."""
    return run("docker", "--host", f"unix://{engine.socket}", *words, timeout_s=900)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git knows, with the wheels that the program and its making need: an index is not reached from a build."""
    tree = tmp_path_factory.mktemp("sources")
    checkout.copy_to(tree)
    download = (sys.executable, "-m", "pip", "download", "-q", "-c", "constraints.txt", "-d", "deploy/wheels",
                "--only-binary=:all:", "--python-version", "3.11", "--platform", "manylinux2014_x86_64")  # fmt: skip
    subprocess.run([*download, "bcrypt", "h2", "nvidia-ml-py", "PyYAML", "hatchling"], cwd=tree, check=True)
    return tree


@pytest.fixture(scope="session")
def image(clean_debian: Engine, sources: Path) -> str:
    """deploy/Dockerfile, built as the docs say, without an index."""
    docker(
        clean_debian, "build", "--network", "host", "--file", f"{sources}/deploy/Dockerfile", "--tag", "gpuledger:test",
        "--build-arg", f"BASE={BASE}", "--build-arg", "WHEELS=--no-index", "--build-arg", "COMMIT=c0ffee",
        "--build-arg", "VERSION=test", str(sources),
    )  # fmt: skip
    return "gpuledger:test"
