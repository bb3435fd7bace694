"""Real daemons, started once for each test file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import is_here
from tests.real.containerds import Containerd, a_containerd
from tests.real.dockers import Engine, Podman

TESTS = Path(__file__).parent.glob("test_*.py")
WITH_BROWSER = [path.name for path in TESTS if "tests.real.browsers" in path.read_text()]
collect_ignore = [] if is_here("chromium") else WITH_BROWSER
"""`make test` installs Playwright only where there is a browser; the list of left-out tests has the file."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One daemon for all tests; a short path, because a socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="docker-") as folder:
        engine = Engine(Path(folder))
        try:
            engine.start()
            yield engine
        finally:
            engine.stop()


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """One service for all tests."""
    with tempfile.TemporaryDirectory(prefix="podman-") as folder:
        podman = Podman(Path(folder))
        try:
            podman.start()
            yield podman
        finally:
            podman.stop()


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Containerd]:
    """Running, with one image."""
    with a_containerd(tmp_path) as server:
        yield server
