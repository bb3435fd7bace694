"""Which providers are created: by the configuration, and by the sockets of a host."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from gpuledger.cli.providers import providers
from gpuledger.config import load as config
from gpuledger.config.exporter import ENVIRONMENTS, OPTIONS
from gpuledger.errors import ConfigError
from gpuledger.owners.providers import containerd, cri, docker
from gpuledger.owners.providers.containerd import ContainerdProvider
from gpuledger.owners.providers.cri import CriProvider
from gpuledger.owners.providers.docker import DockerProvider
from gpuledger.owners.providers.kubernetes import KubernetesProvider
from gpuledger.owners.providers.podresources import PodResourcesProvider
from tests.cli.running import gpuledger, surroundings

DOCKER, PODMAN = "var/run/docker.sock", "run/podman/podman.sock"
CONTAINERD, K3S = "run/containerd/containerd.sock", "run/k3s/containerd/containerd.sock"
KUBELET = "var/lib/kubelet/pod-resources/kubelet.sock"
MISSING = "/nowhere/kubelet.sock"

Asked = list[tuple[str, str]]


class Host:
    """A made-up root with sockets in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def listen(self, *paths: str) -> None:
        """Create sockets there. No server needs to listen on them: nothing connects here."""
        for path in paths:
            place = self.root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(place))

    def asks(self, *, environ: Mapping[str, str] | None = None, **settings: str | list[str]) -> Asked:
        """The name and the place of every provider that would be used, without the root."""
        settings.setdefault("pod_resources_socket", f"{self.root}/{KUBELET}")
        return [(name, place.removeprefix(f"{self.root}/")) for name, place in ask(environ or {}, **settings)]


def ask(environ: Mapping[str, str], **settings: str | list[str]) -> Asked:
    """With these settings: `docker_host` for --docker.host."""
    keys = {option.name: option.key for option in OPTIONS}
    flags = {keys[name]: [value] if isinstance(value, str) else value for name, value in settings.items()}
    return [(one.health.name, _place(one._provider)) for one in providers(config.load(flags, {}), environ)]


def _place(provider: object) -> str:
    if isinstance(provider, DockerProvider):
        return str(provider._client.address)
    if isinstance(provider, ContainerdProvider | CriProvider | PodResourcesProvider):
        return provider._server.path
    assert isinstance(provider, KubernetesProvider)
    return str(provider._api.address)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """An empty one; in a folder with a short name, since the path of a socket has 107 characters at most."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        monkeypatch.setattr(docker, "default_urls", partial(docker.default_urls, root=root))
        monkeypatch.setattr(containerd, "SOCKET", f"{root}/{CONTAINERD}")
        monkeypatch.setattr(cri, "SOCKETS", tuple(f"{root}{path}" for path in cri.SOCKETS))
        yield Host(root)


def test_an_empty_host_has_no_providers(host: Host) -> None:
    """Nothing is there, so nothing is down."""
    assert host.asks() == []


def test_everything_that_is_there(host: Host) -> None:
    """A Kubernetes node that also runs Docker and Podman."""
    host.listen(DOCKER, PODMAN, CONTAINERD, KUBELET)

    assert host.asks() == [("docker", DOCKER), ("podman", PODMAN), ("cri", CONTAINERD), ("podresources", KUBELET)]


def test_containerd_beside_docker(host: Host) -> None:
    """The containerd of Docker may have containers of nerdctl. Its CRI is disabled, so it is not used as a CRI."""
    host.listen(DOCKER, PODMAN, CONTAINERD)

    assert host.asks(pod_resources_socket=MISSING) == [
        ("docker", DOCKER),
        ("podman", PODMAN),
        ("containerd", CONTAINERD),
    ]


def test_node_whose_kubelet_is_starting(host: Host) -> None:
    """The folder of its socket is enough to know that there will be one."""
    host.listen(CONTAINERD)
    (host.root / KUBELET).parent.mkdir(parents=True)

    assert host.asks() == [("cri", CONTAINERD), ("podresources", KUBELET)]


def test_k3s_goes_before_another_containerd(host: Host) -> None:
    """Its pods are in its own one."""
    host.listen(CONTAINERD, K3S, KUBELET)

    assert host.asks() == [("cri", K3S), ("podresources", KUBELET)]


def test_docker_host_of_the_environment(host: Host) -> None:
    """DOCKER_HOST is used as by Docker's own client; its socket is not polled twice."""
    host.listen(DOCKER)
    elsewhere = {"DOCKER_HOST": "tcp://10.0.0.7:2375"}
    same = {"DOCKER_HOST": f"unix://{host.root}/{DOCKER}"}

    assert host.asks(environ=elsewhere) == [("docker", "10.0.0.7:2375"), ("docker-2", DOCKER)]
    assert host.asks(environ=same) == [("docker", DOCKER)]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("docker", [("docker", DOCKER)]),
        ("podman", [("podman", PODMAN)]),
        ("containerd", [("containerd", CONTAINERD), ("cri", CONTAINERD)]),
        ("kubernetes", [("cri", CONTAINERD), ("podresources", KUBELET)]),
        ("slurm", []),
        ("none", []),
    ],
)
def test_named_environments(host: Host, environment: str, expected: Asked) -> None:
    """Only the named providers are created, whatever sockets exist."""
    host.listen(DOCKER, PODMAN, CONTAINERD, KUBELET)

    assert host.asks(environment=environment) == expected


def test_every_environment_is_tested() -> None:
    """A new one must be thought about here."""
    assert ENVIRONMENTS == ("auto", "docker", "podman", "containerd", "kubernetes", "slurm", "none")


def test_several_environments(host: Host) -> None:
    """They add up, and the older switch is one of them."""
    host.listen(DOCKER, PODMAN, CONTAINERD, KUBELET)
    kubernetes = [("cri", CONTAINERD), ("podresources", KUBELET)]

    assert host.asks(environment=["docker", "podman"]) == [("docker", DOCKER), ("podman", PODMAN)]
    assert host.asks(environment=["docker", "kubernetes"]) == [("docker", DOCKER), *kubernetes]
    assert host.asks(environment="none", kubernetes_enabled="true") == kubernetes


def test_kubernetes_disabled(host: Host) -> None:
    """On a node, neither the kubelet nor the CRI is used, unless containerd itself is named."""
    host.listen(DOCKER, CONTAINERD, KUBELET)

    assert host.asks(kubernetes_enabled="false") == [("docker", DOCKER)]
    assert host.asks(environment=["docker", "kubernetes"], kubernetes_enabled="false") == [("docker", DOCKER)]
    both = [("containerd", CONTAINERD), ("cri", CONTAINERD)]
    assert host.asks(environment="containerd", kubernetes_enabled="false") == both


def test_containerd_alone(host: Host) -> None:
    """A host without Docker and kubelet uses containerd's own API."""
    host.listen(CONTAINERD)

    assert host.asks(pod_resources_socket=MISSING) == [("containerd", CONTAINERD)]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ("docker", [("docker", "/var/run/docker.sock")]),
        ("podman", [("podman", "/run/podman/podman.sock")]),
        ("containerd", [(name, "/run/containerd/containerd.sock") for name in ("containerd", "cri")]),
        ("kubernetes", [("cri", "/run/containerd/containerd.sock"), ("podresources", MISSING)]),
    ],
)
def test_what_is_named_is_asked_though_missing(host: Host, environment: str, expected: Asked) -> None:
    """So that log and metrics say that it is down, instead of nothing."""
    asked = ask({}, environment=environment, pod_resources_socket=MISSING)
    assert [(name, place.removeprefix(str(host.root))) for name, place in asked] == expected


def test_sockets_that_are_given(host: Host) -> None:
    """They go in place of what is found, also when nothing is there, and need no environment to be named."""
    host.listen(DOCKER, CONTAINERD, KUBELET)

    assert host.asks(environment="none", docker_host="/x/d.sock", cri_socket="/x/c.sock") == [
        ("docker", "/x/d.sock"),
        ("cri", "/x/c.sock"),
    ]
    assert host.asks(
        environment=["auto", "kubernetes"],
        docker_host="unix:///x/d.sock",
        cri_socket="/x/c.sock",
        pod_resources_socket="/x/k.sock",
    ) == [
        ("docker", "/x/d.sock"),
        ("cri", "/x/c.sock"),
        ("podresources", "/x/k.sock"),
    ]


def test_several_daemons_are_told_apart(host: Host) -> None:
    """Their names are labels, so no two may be equal, and the first keeps the plain one."""
    hosts = [
        "unix:///a.sock",
        "tcp://10.0.0.7:2375",
        "unix:///run/podman/podman.sock",
        "/run/user/7/podman/podman.sock",
    ]

    assert [name for name, _ in host.asks(environment="none", docker_host=hosts)] == [
        "docker", "docker-2", "podman", "podman-2",
    ]  # fmt: skip


@pytest.mark.needs("root")
def test_rootless_daemons_of_users(host: Host) -> None:
    """Each user may run one."""
    host.listen(DOCKER, "run/user/1000/docker.sock", "run/user/1001/docker.sock")

    assert [name for name, _ in host.asks()] == ["docker", "docker-2", "docker-3"]


def test_named_daemon_beside_given_ones(host: Host) -> None:
    """If Podman is named and the only address is Docker's, Podman's usual socket is used too."""
    assert host.asks(environment="podman", docker_host="/x/d.sock") == [
        ("docker", "/x/d.sock"),
        ("podman", "/run/podman/podman.sock"),
    ]


KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://10.1.2.3:6443'}}]
users: [{name: u, user: {token: t}}]
"""


def test_api_server_by_kubeconfig(host: Host, tmp_path: Path) -> None:
    """The address comes from the file, the node's name from the setting before NODE_NAME before the host."""
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG)
    settings = config.load({"kubernetes.api": ["true"], "kubernetes.kubeconfig": [str(file)]}, {})
    (one,) = providers(settings, {"NODE_NAME": "node-a"})

    assert host.asks(environment="none", kubernetes_api="true", kubernetes_kubeconfig=str(file)) == [
        ("kubernetes", "10.1.2.3:6443")
    ]
    assert isinstance(one._provider, KubernetesProvider)
    assert one._provider._target.endswith("%3Dnode-a")


Broken = Callable[[Path], list[str]]


def _kubeconfig(text: str) -> Broken:
    def write(folder: Path) -> list[str]:
        (folder / "kubeconfig").write_text(text)
        return [f"--kubernetes.kubeconfig={folder}/kubeconfig"]

    return write


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (lambda _: [], "KUBERNETES_SERVICE_HOST is not set, so this is not a pod; give a kubeconfig file"),
        (lambda folder: [f"--kubernetes.kubeconfig={folder}/none"], "name a kubeconfig file"),
        (_kubeconfig("[]"), "no context named None"),
        (_kubeconfig("{"), "name a kubeconfig file that kubectl accepts"),
        (lambda folder: [*_kubeconfig(KUBECONFIG)(folder), "--kubernetes.node-name=A_B"], "is not a node name"),
    ],
)
def test_api_server_that_cannot_be_asked(flags: Broken, words: str, tmp_path: Path) -> None:
    """An API server that cannot be used is a usage error: one line, and exit code 2."""
    command = ["once", "--environment=none", "--kubernetes.api", *flags(tmp_path)]
    done = gpuledger(*command, env=surroundings())

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_api_server_without_a_cluster_is_an_error_of_the_configuration(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of the provider, which would be tried again for ever."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(ConfigError, match="this is not a pod"):
        host.asks(environment="none", kubernetes_api="true")
