"""Names of containers and pods, asked from a real gRPC server over a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import ProviderError
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.providers import cri
from gpuledger.owners.providers.cri import CriProvider
from gpuledger.owners.providers.provider import Provider
from tests.owners.providers.kubelet_server import EXITED, CriServer, pod_labels

ID, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64
SANDBOX = "d" * 64
UID = "5f0c1c2e-7a41-4be0-9a54-0b8f8d0e1c11"
STATIC_UID = "0123456789abcdef0123456789abcdef"
IMAGE = "registry.example/team/train:1"
LIST_CONTAINERS, LIST_SANDBOXES = (
    f"/runtime.v1.RuntimeService/{method}" for method in ("ListContainers", "ListPodSandbox")
)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[CriServer]:
    """A runtime without containers."""
    with CriServer(tmp_path / "runtime.sock") as server:
        yield server


def asked(runtime: CriServer) -> Names:
    """What the provider makes of it."""
    provider: Provider = CriProvider(str(runtime.path), timeout_s=10)
    return provider.fetch()


def test_a_container_of_a_pod(runtime: CriServer) -> None:
    """The kubelet's labels say all, so one question is enough."""
    runtime.add(ID, image="sha256:beef", user_image=IMAGE, labels=pod_labels("ml", "train", UID, "main"))
    assert asked(runtime) == Names(
        containers={ID: Container(ID, "main", IMAGE, "ml", "train", UID)},
        pods={UID: Pod(UID, "ml", "train")},
    )
    assert runtime.calls == [LIST_CONTAINERS]


def test_several_containers_of_a_pod(runtime: CriServer) -> None:
    """And a static pod, whose uid has no dashes."""
    runtime.add(ID, labels=pod_labels("ml", "train", UID, "main"))
    runtime.add(OTHER, labels=pod_labels("ml", "train", UID, "side"))
    runtime.add(THIRD, labels=pod_labels("kube-system", "dcgm-node1", STATIC_UID, "main"))
    names = asked(runtime)
    assert [(c.name, c.pod) for c in names.containers.values()] == [
        ("main", "train"),
        ("side", "train"),
        ("main", "dcgm-node1"),
    ]
    assert names.pods == {UID: Pod(UID, "ml", "train"), STATIC_UID: Pod(STATIC_UID, "kube-system", "dcgm-node1")}


def test_a_runtime_without_containers(runtime: CriServer) -> None:
    """An empty answer is an answer."""
    assert asked(runtime) == Names()


def test_only_running_containers(runtime: CriServer) -> None:
    """The request has a filter, which the runtime applies."""
    runtime.add(ID, state=EXITED, labels=pod_labels("ml", "train", UID, "main"))
    assert asked(runtime) == Names()


def test_older_kubelets_do_not_say_the_image_of_the_pod(runtime: CriServer) -> None:
    """Then it is what the runtime calls it."""
    runtime.add(ID, image="sha256:beef", labels=pod_labels("ml", "train", UID, "main"))
    assert asked(runtime).containers[ID].image == "sha256:beef"


def test_a_container_that_no_kubelet_made(runtime: CriServer) -> None:
    """Without labels its sandbox knows the pod; the others are not touched."""
    runtime.add(ID, name="by-hand", sandbox_id=SANDBOX)
    runtime.add(OTHER, labels=pod_labels("ml", "train", UID, "main"), sandbox_id=SANDBOX)
    runtime.add(THIRD, name="lost", sandbox_id="e" * 64)
    runtime.add_sandbox(SANDBOX, "default", "tried", "some-uid")
    names = asked(runtime)
    assert names.containers == {
        ID: Container(ID, "by-hand", "", "default", "tried", "some-uid"),
        OTHER: Container(OTHER, "main", "", "ml", "train", UID),
        THIRD: Container(THIRD, "lost"),
    }
    assert set(names.pods) == {"some-uid", UID}
    assert runtime.calls == [LIST_CONTAINERS, LIST_SANDBOXES]


def test_containerd_without_its_cri_plugin(runtime: CriServer) -> None:
    """As Docker's packages configure it: the advice names the setting."""
    runtime.methods.clear()
    with pytest.raises(ProviderError, match='does not implement CRI v1; remove "cri" from disabled_plugins'):
        asked(runtime)


def test_a_runtime_that_fails(runtime: CriServer) -> None:
    """Its own words are shown."""
    runtime.refusal = (grpc.StatusCode.UNKNOWN, "server is not initialized yet")
    with pytest.raises(ProviderError, match=r"UNKNOWN \(server is not initialized yet\)"):
        asked(runtime)


def test_a_runtime_that_restarts(runtime: CriServer) -> None:
    """Names come back with it."""
    runtime.add(ID, labels=pod_labels("ml", "train", UID, "main"))
    provider = CriProvider(str(runtime.path))
    before = provider.fetch()
    runtime.stop()
    with pytest.raises(
        ProviderError, match=r"No such file or directory; `sudo systemctl start containerd` \(or crio\)"
    ):
        provider.fetch()
    runtime.start()
    assert provider.fetch() == before


def test_any_bytes_as_the_message(runtime: CriServer) -> None:
    """Names or an error, never anything else; both questions get the same bytes."""
    runtime.add(ID, image=IMAGE, sandbox_id=SANDBOX, labels={"io.kubernetes.container.name": "main"})
    real = runtime.containers.SerializeToString()
    changed = st.tuples(st.integers(0, len(real)), st.binary(max_size=4)).map(
        lambda change: real[: change[0]] + change[1] + real[change[0] + 1 :]
    )
    provider = CriProvider(str(runtime.path), timeout_s=10)

    @settings(max_examples=120)
    @given(raw=st.binary() | changed)
    def holds(raw: bytes) -> None:
        runtime.raw = raw
        said = ""
        try:
            assert isinstance(provider.fetch(), Names)
        except ProviderError as error:
            said = str(error)
        assert said.isprintable()

    holds()


def test_sockets_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the known ones, in their order."""
    there = tmp_path / "there.sock"
    there.touch()
    monkeypatch.setattr(cri, "SOCKETS", (str(tmp_path / "none.sock"), str(there)))
    assert cri.default_sockets() == (str(there),)


def test_waiting_ends_with_stop() -> None:
    """There is no stream of news; only the clock and `stop`."""
    provider, stop = CriProvider("/none"), threading.Event()
    assert not provider.wait(0.001, stop)
    stop.set()
    assert not provider.wait(60, stop)
    provider.close()
    assert (provider.name, provider.interval_s) == ("cri", 15.0)
