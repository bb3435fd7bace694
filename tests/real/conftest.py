"""Real daemons, started once for each test file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.real import images
from tests.real.containerds import CGROUPS, Containerd, image_archive, pod_folders, remove_tree
from tests.real.dockers import Engine, Podman


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
    ours = [folder for folder in pod_folders() if not folder.exists()]
    server = Containerd(tmp_path)
    try:
        server.start()
        archive = tmp_path / "image.tar"
        archive.write_bytes(image_archive(images.busybox_tar()))
        server.ctr("images", "import", "--snapshotter", "native", str(archive))
        yield server
    finally:
        server.clean()
        for root in CGROUPS.glob(f"**/pod{server.uid}"):
            remove_tree(root)
        for folder in ours:
            with suppress(OSError):  # it is not there, or in use by others by now
                folder.rmdir()
