"""A clean Debian for slow tests; enabled with IMAGE=1, which `make image-test` sets."""

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

PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""The Python of Debian 12 and of Debian 13."""
KEPT = checkout.ROOT / "build"
"""A bare Debian of each release from debootstrap, created once."""
MIRROR = "http://deb.debian.org/debian"
BASE = "debian-clean:test"

collect_ignore_glob = [] if os.environ.get("IMAGE") else ["test_*.py"]


@pytest.fixture(scope="session", params=PYTHONS)
def release(request: pytest.FixtureRequest) -> str:
    """The release of Debian."""
    return str(request.param)


@pytest.fixture(scope="session")
def clean_debian(release: str) -> Iterator[Engine]:
    """A Docker Engine with a bare Debian image, because tests cannot pull images."""
    kept = KEPT / f"{release}.tar"
    if not kept.exists():
        with tempfile.TemporaryDirectory(prefix="debian-") as folder:
            Path(folder).chmod(0o755)  # becomes /, which must be accessible for all users
            run("debootstrap", "--variant=minbase", release, folder, MIRROR, timeout_s=600)
            KEPT.mkdir(exist_ok=True)
            run("tar", "-C", folder, "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(kept), ".", timeout_s=120)
    with tempfile.TemporaryDirectory(prefix="docker-") as folder:
        engine = Engine(Path(folder))
        try:
            engine.start()
            docker(engine, "import", str(kept), BASE)
            yield engine
        finally:
            engine.stop()


def docker(engine: Engine, *words: str) -> str:
    """Like `engine.cli`, with a longer timeout."""
    return run("docker", "--host", f"unix://{engine.socket}", *words, timeout_s=900)


@pytest.fixture(scope="session")
def sources(release: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tracked files, with the wheels for build and runtime, because the build has no package index."""
    tree = tmp_path_factory.mktemp("sources")
    checkout.copy_to(tree)
    # fmt: off
    download = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", "deploy/wheels",
                "--only-binary=:all:", "--platform", "manylinux2014_x86_64", "--python-version", PYTHONS[release])
    # fmt: on
    files = ("-r", "deploy/requirements.txt", "-r", "deploy/build-requirements.txt")
    subprocess.run([*download, *files], cwd=tree, check=True)
    return tree


@pytest.fixture(scope="session")
def image(clean_debian: Engine, sources: Path) -> str:
    """Image built from the Dockerfile like in the docs, without a package index."""
    docker(
        clean_debian, "build", "--network", "host", "--file", f"{sources}/Dockerfile", "--tag", "gpuledger:test",
        "--build-arg", f"BASE={BASE}", "--build-arg", "WHEELS=--no-index", "--build-arg", "COMMIT=c0ffee",
        "--build-arg", "VERSION=test", str(sources),
    )  # fmt: skip
    return "gpuledger:test"
