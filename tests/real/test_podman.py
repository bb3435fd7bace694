"""The same provider against a real Podman."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.errors import ProviderError
from gpuledger.owners.kernel import cgroup
from gpuledger.owners.names import Container
from gpuledger.owners.providers import docker
from gpuledger.owners.providers.docker import DockerProvider
from tests.real.dockers import IMAGE, Podman
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("root", "cgroups", "podman", "runc", "busybox")

SOON_S = 10


@pytest.fixture
def provider(podman: Podman) -> Iterator[DockerProvider]:
    """Asks the service."""
    provider = DockerProvider(f"unix://{podman.socket}", name="podman", timeout_s=10)
    yield provider
    provider.close()


def _names(provider: DockerProvider) -> dict[str, str]:
    return {i: container.name for i, container in provider.fetch().containers.items()}


def test_a_container(podman: Podman, provider: DockerProvider) -> None:
    """Id, name, image and labels are those that Podman was given, and the kernel knows it by the same id."""
    i = podman.sleeper("web", "--label", "com.docker.compose.service=web", "--env", "PASSWORD=hunter2")
    assert provider.fetch().containers[i] == Container(
        id=i, name="web", image=f"localhost/{IMAGE}", labels=(("com.docker.compose.service", "web"),)
    )
    assert "hunter2" not in repr(vars(provider))
    pid = podman.cli("inspect", "--format", "{{.State.Pid}}", i)
    ref = cgroup.parse(Path(f"/proc/{pid}/cgroup").read_text())
    assert (ref.container_id, ref.runtime) == (i, "podman")


def test_changes_are_told(podman: Podman, provider: DockerProvider) -> None:
    """Start, rename, kill, restart and removal each end a wait within seconds."""
    stop = threading.Event()
    provider.fetch()
    assert not provider.wait(0.5, stop)
    assert provider.interval_s == 60, "the stream of events is there"

    i = podman.sleeper("first")
    wait_until(lambda: provider.wait(SOON_S, stop) and _names(provider).get(i) == "first")
    podman.cli("rename", "first", "second")
    wait_until(lambda: provider.wait(SOON_S, stop) and _names(provider)[i] == "second")
    podman.cli("kill", i)
    wait_until(lambda: provider.wait(SOON_S, stop) and i not in _names(provider))
    podman.cli("start", i)
    wait_until(lambda: provider.wait(SOON_S, stop) and _names(provider).get(i) == "second")
    podman.cli("rm", "--force", "--time", "0", i)
    wait_until(lambda: provider.wait(SOON_S, stop) and i not in _names(provider))


def test_killed_and_started_again(podman: Podman, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its containers live on without it; their names come back with it."""
    monkeypatch.setattr(docker, "SETTLED_S", 60.0)  # the end of a stream this young is no news
    i = podman.sleeper("survivor")
    assert i in _names(provider)
    assert not provider.wait(0.5, threading.Event())
    podman.kill_service()
    assert not provider.wait(0.5, threading.Event())
    with pytest.raises(ProviderError, match=rf"cannot open {podman.socket}: Connection refused; .*start podman"):
        provider.fetch()
    podman.start_service()
    wait_until(lambda: _names(provider).get(i) == "survivor")
    podman.cli("rename", "survivor", "winner")
    wait_until(lambda: provider.wait(SOON_S, threading.Event()) and _names(provider).get(i) == "winner")
