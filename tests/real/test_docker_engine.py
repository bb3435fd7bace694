"""The Docker provider against a real Docker Engine."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.errors import ProviderError
from gpuledger.owners.kernel import cgroup
from gpuledger.owners.names import Container
from gpuledger.owners.providers import docker
from gpuledger.owners.providers.docker import DockerProvider
from gpuledger.owners.providers.dockerjson import Inspected
from tests.checkout import ROOT
from tests.real.dockers import IMAGE, Engine
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("root", "cgroups", "dockerd", "containerd", "runc", "busybox", "openssl")

SOON_S = 10
"""Far more than an event takes, and less than the time between two polls."""


@pytest.fixture
def provider(engine: Engine) -> Iterator[DockerProvider]:
    """Asks the daemon."""
    provider = DockerProvider(f"unix://{engine.socket}", timeout_s=10)
    yield provider
    provider.close()


def _names(provider: DockerProvider) -> dict[str, str]:
    return {i: container.name for i, container in provider.fetch().containers.items()}


def test_a_container(engine: Engine, provider: DockerProvider) -> None:
    """Id, name, image and labels are those that Docker was given, and the kernel knows it by the same id."""
    options = ("--label", "com.docker.compose.project=shop", "--label", "other=1", "--env", "SECRET=1")
    i = engine.sleeper("web", *options)
    assert provider.fetch().containers[i] == Container(
        id=i, name="web", image=IMAGE, labels=(("com.docker.compose.project", "shop"),)
    )
    pid = engine.cli("inspect", "--format", "{{.State.Pid}}", i)
    ref = cgroup.parse(Path(f"/proc/{pid}/cgroup").read_text())
    assert (ref.container_id, ref.runtime) == (i, "docker")


def test_changes_are_told(engine: Engine, provider: DockerProvider) -> None:
    """Start, rename, kill, restart and removal each end a wait within seconds."""
    stop = threading.Event()
    provider.fetch()
    assert not provider.wait(0.5, stop)
    assert provider.interval_s == 60, "the stream of events is there"

    i = engine.sleeper("first")
    assert provider.wait(SOON_S, stop)
    assert _names(provider)[i] == "first"
    engine.cli("rename", "first", "second")
    wait_until(lambda: provider.wait(SOON_S, stop) and _names(provider)[i] == "second")
    engine.cli("kill", i)
    wait_until(lambda: provider.wait(SOON_S, stop) and i not in _names(provider))
    engine.cli("restart", i)
    wait_until(lambda: provider.wait(SOON_S, stop) and _names(provider).get(i) == "second")
    engine.cli("rm", "--force", i)
    wait_until(lambda: provider.wait(SOON_S, stop) and i not in _names(provider))


def test_between_list_and_stream_nothing_is_lost(engine: Engine, provider: DockerProvider) -> None:
    """What happened after the list was made is told by a stream that was opened later."""
    provider.fetch()
    i = engine.sleeper("between")
    assert provider.wait(SOON_S, threading.Event())
    assert _names(provider)[i] == "between"


@pytest.mark.parametrize(
    ("options", "asked_for", "visible"),
    [
        (["--gpus", "all"], ("all",), ()),
        (["--gpus", "2"], ("0", "1"), ()),
        (["--gpus", '"device=1,GPU-x"'], ("1", "GPU-x"), ()),
        (["--device", "/dev/nvidia3", "--device", "/dev/fuse"], ("nvidia3",), ()),
        (["--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=0,1"], (), ("0", "1")),
        (["--env", "NVIDIA_VISIBLE_DEVICES=all"], (), ()),
        ([], (), ()),
    ],
)
def test_gpus_that_were_asked_for(
    engine: Engine, options: list[str], asked_for: tuple[str, ...], visible: tuple[str, ...]
) -> None:
    """As Docker writes them down. Without a GPU here such a container cannot start, so it is looked into directly."""
    i = engine.cli("create", "--network", "none", *options, IMAGE, "true")
    provider = DockerProvider(str(engine.socket), timeout_s=10)
    provider.fetch()
    provider._inspect([i])
    assert provider._inspected[i] == Inspected(IMAGE, asked_for, visible)


def test_gpus_of_a_running_container(engine: Engine, provider: DockerProvider) -> None:
    """Under the runtime named nvidia the environment counts, and nothing else of it is kept."""
    i = engine.sleeper(
        "gpu", "--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=GPU-x", "--env", "PASSWORD=hunter2"
    )
    found = provider.fetch().containers[i]
    assert (found.device_ids, found.visible_ids) == ((), ("GPU-x",))
    assert "hunter2" not in repr((found, vars(provider)))


def test_over_tls(engine: Engine) -> None:
    """A daemon that requires certificates; without one, or with an untrusted one, the problem says so."""
    url, folder = f"tcp://127.0.0.1:{engine.port}", engine.folder
    ca, cert, key, stranger = (f"{folder}/{name}.pem" for name in ("ca", "cert", "key", "stranger"))
    i = engine.sleeper("secure")
    provider = DockerProvider(url, ca=ca, cert=cert, key=key)
    assert _names(provider)[i] == "secure"
    engine.cli("rename", "secure", "safe")
    assert provider.wait(SOON_S, threading.Event())
    provider.close()
    with pytest.raises(ProviderError, match=r"the certificate of docker at 127\.0\.0\.1:\d+ is not trusted: "):
        DockerProvider(url, ca=stranger, cert=cert, key=key).fetch()
    with pytest.raises(ProviderError, match="no TLS with docker at"):
        DockerProvider(url, ca=ca).fetch()
    with pytest.raises(ProviderError, match="answered 400 to /version: Client sent an HTTP request to an HTTPS server"):
        DockerProvider(url).fetch()


def test_killed_and_started_again(engine: Engine, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is gone is named in one line; when it is back, so are the names and the events."""
    monkeypatch.setattr(docker, "SETTLED_S", 60.0)  # the end of a stream this young is no news
    i = engine.sleeper("survivor", "--restart", "always")
    assert i in _names(provider)
    assert not provider.wait(0.5, threading.Event())
    engine.kill_dockerd()
    assert not provider.wait(0.5, threading.Event())
    with pytest.raises(ProviderError, match=rf"cannot open {engine.socket}: Connection refused; .*start docker"):
        provider.fetch()
    engine.start_dockerd()
    wait_until(lambda: _names(provider).get(i) == "survivor")
    assert not provider.wait(0.5, threading.Event()) or provider.fetch()
    engine.cli("rename", "survivor", "winner")
    wait_until(lambda: provider.wait(SOON_S, threading.Event()) and _names(provider).get(i) == "winner")


def test_command_of_the_readme(engine: Engine) -> None:
    """Docker accepts it; the container sees the host's processes and the socket, and has one capability.

    Without `--gpus` and a port, which this host lacks, and with another image.
    """
    found = re.search(r"^docker run .*?gpuledger$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    words = shlex.split(found[0].replace("\\\n", ""))[1:-1]
    for option in ("--gpus", "-p"):
        del words[words.index(option) : words.index(option) + 2]
    words = [word.replace("/var/run/docker.sock:", f"{engine.socket}:", 1) for word in words]
    engine.cli(*words, "--network=none", "--stop-signal=KILL", IMAGE, "sleep", "1000")

    def inside(*command: str) -> str:
        return engine.cli("exec", "gpuledger", "/bin/busybox", *command)

    assert inside("id", "-u") == "0"
    assert inside("sh", "-c", "test -S /var/run/docker.sock && echo there") == "there"
    assert inside("cat", "/proc/1/comm") == Path("/proc/1/comm").read_text().strip()
    assert inside("grep", "CapEff", "/proc/self/status").split()[1] == f"{1 << 19:016x}"
