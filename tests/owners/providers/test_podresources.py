"""Devices that the kubelet gave away, asked from a real gRPC server over a real socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.errors import ProviderError
from gpuledger.net import grpc as client
from gpuledger.owners.names import KubeletAllocation, Names
from gpuledger.owners.providers.podresources import ALONE_S, SETTLED_S, PodResourcesProvider
from gpuledger.owners.providers.provider import PolledProvider, Provider
from gpuledger.runtime.deadline import Deadline
from tests.owners.providers.kubelet_server import KubeletServer

GPU = "GPU-589eca37-678c-87d1-df84-37094ad015c0"
MIG = "MIG-2ce7a541-c516-5dbc-a76e-26cc100d9b55"
CLAIM = "k8s.gpu.nvidia.com/claim=5f0c1c2e-7a41-4be0-9a54-0b8f8d0e1c11-gpu-0"

HELLO = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a server of HTTP/2 begins: empty settings."""


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[KubeletServer]:
    """A kubelet without pods."""
    server = KubeletServer(tmp_path / "kubelet.sock")
    with server:
        yield server


def asked(kubelet: KubeletServer, *extra: str, timeout_s: float = 10.0) -> list[tuple[str, ...]]:
    """The allocations as plain tuples."""
    provider: Provider = PodResourcesProvider(str(kubelet.path), timeout_s, extra)
    return [(a.namespace, a.pod, a.container, a.resource, a.device_id) for a in provider.fetch().allocations]


def refusal(path: Path, timeout_s: float = 10.0) -> str:
    """The message of the error, which is one line, names the socket and has advice."""
    with pytest.raises(ProviderError) as caught:
        PodResourcesProvider(str(path), timeout_s).fetch()
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 500
    assert str(path) in text
    assert "; " in text
    return text


def test_every_device_of_every_container(kubelet: KubeletServer) -> None:
    """Shared replicas, MIG and several containers are each a line of their own."""
    kubelet.give("ml", "train", "main", "nvidia.com/gpu", f"{GPU}::1", f"{GPU}::0")
    kubelet.give("ml", "train", "side", "nvidia.com/mig-1g.12gb", MIG)
    kubelet.give("ml", "idle", "main", "cpu-things.example/x", "x")
    assert asked(kubelet) == [
        ("ml", "train", "main", "nvidia.com/gpu", f"{GPU}::0"),
        ("ml", "train", "main", "nvidia.com/gpu", f"{GPU}::1"),
        ("ml", "train", "side", "nvidia.com/mig-1g.12gb", MIG),
    ]
    kubelet.remove("ml", "train")
    assert asked(kubelet) == []


def test_a_node_without_pods(kubelet: KubeletServer) -> None:
    """An empty answer is an answer."""
    assert PodResourcesProvider(str(kubelet.path)).fetch() == Names()


def test_only_devices_of_nvidia(kubelet: KubeletServer) -> None:
    """HAMi's amounts are no devices; other vendors only when they are named."""
    for resource in ("gpumem", "gpumem-percentage", "gpucores"):
        kubelet.give("ml", "p", "c", f"nvidia.com/{resource}", "x")
    kubelet.give("ml", "p", "c", "vendor.example/gpu", f"{GPU}-3")
    kubelet.give("ml", "p", "c", "nvidia.com/a100", GPU)
    kubelet.give("ml", "q", "c", "volcano.sh/vgpu-number", f"{GPU}-4")
    own = [("ml", "p", "c", "nvidia.com/a100", GPU), ("ml", "q", "c", "volcano.sh/vgpu-number", f"{GPU}-4")]
    assert asked(kubelet) == own
    assert ("ml", "p", "c", "vendor.example/gpu", f"{GPU}-3") in asked(kubelet, "vendor.example/gpu")


def test_replicas_are_counted_only_if_one_is_allocated(kubelet: KubeletServer) -> None:
    """The size of a part follows from all replicas of the device; slots of HAMi are no parts."""
    kubelet.allocatable("nvidia.com/gpu", f"{GPU}::0", f"{GPU}::1", MIG)
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", f"{GPU}-3")
    assert PodResourcesProvider(str(kubelet.path)).fetch().replicas == ()

    kubelet.give("ml", "q", "c", "nvidia.com/gpu", f"{GPU}::1")
    assert PodResourcesProvider(str(kubelet.path)).fetch().replicas == (f"{GPU}::0", f"{GPU}::1")

    kubelet.methods.pop("/v1.PodResourcesLister/GetAllocatableResources")
    names = PodResourcesProvider(str(kubelet.path)).fetch()
    assert (len(names.allocations), names.replicas) == (2, ())


def test_a_device_listed_once_per_numa_node_counts_once(kubelet: KubeletServer) -> None:
    """Kubelets group devices by NUMA node and may repeat them."""
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", GPU)
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", GPU)
    assert len(asked(kubelet)) == 1


@pytest.mark.parametrize(
    ("device", "cdi", "expected"),
    [
        ("gpu-0", (), "gpu-0"),
        ("gpu-0", (CLAIM,), CLAIM),
        ("gpu-0", ("k8s.gpu.nvidia.com/device=gpu-0", CLAIM), "k8s.gpu.nvidia.com/device=gpu-0"),
        ("gpu-0", ("nvidia.com/gds=all", CLAIM), CLAIM),
        ("gpu-0", ("nvidia.com/gds=all",), "gpu-0"),
        ("strange", ("vendor.example/class=strange",), "vendor.example/class=strange"),
        ("strange", (), "strange"),
        ("", (), ""),
    ],
)
def test_a_claimed_device_is_one_device(
    kubelet: KubeletServer, device: str, cdi: tuple[str, ...], expected: str
) -> None:
    """DRA: however many CDI names it has, the one that says which GPU it is."""
    kubelet.claim("ml", "p", "c", "gpu.nvidia.com", device, *cdi)
    kubelet.claim("ml", "p", "c", "compute-domain.nvidia.com", "channel-0")
    assert asked(kubelet) == [("ml", "p", "c", "gpu.nvidia.com", expected)]


def test_a_driver_can_be_added(kubelet: KubeletServer) -> None:
    """The extra list is for drivers too."""
    kubelet.claim("ml", "p", "c", "gpu.example", "gpu-0")
    assert asked(kubelet) == []
    assert asked(kubelet, "gpu.example") == [("ml", "p", "c", "gpu.example", "gpu-0")]


def test_an_old_kubelet(tmp_path: Path) -> None:
    """v1alpha1 is called only if the kubelet does not implement v1."""
    with KubeletServer(tmp_path / "old.sock", ("v1alpha1",)) as old:
        old.give("ml", "p", "c", "nvidia.com/gpu", GPU)
        assert asked(old) == [("ml", "p", "c", "nvidia.com/gpu", GPU)]
    with KubeletServer(tmp_path / "new.sock") as new:
        asked(new)
        assert new.calls == ["/v1.PodResourcesLister/List"]


def test_a_server_that_is_no_kubelet(tmp_path: Path) -> None:
    """It knows neither version."""
    with KubeletServer(tmp_path / "k.sock", ()) as server:
        assert "UNIMPLEMENTED" in refusal(server.path)


def test_a_kubelet_that_restarts(kubelet: KubeletServer) -> None:
    """Names come back with its socket, without a new provider."""
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", GPU)
    provider = PodResourcesProvider(str(kubelet.path))
    before = provider.fetch()
    kubelet.stop()
    assert "No such file or directory; `sudo systemctl start kubelet`" in refusal(kubelet.path)
    kubelet.start()
    assert provider.fetch() == before == Names(allocations=(KubeletAllocation("ml", "p", "c", "nvidia.com/gpu", GPU),))


def test_a_kubelet_that_has_not_found_all_pods_yet(kubelet: KubeletServer) -> None:
    """Devices stay with their pods while a kubelet that was started anew lacks them, unless it gave them to others."""
    clock = [100.0]
    provider = PodResourcesProvider(str(kubelet.path), monotonic=lambda: clock[0])
    kubelet.give("ml", "train", "c", "nvidia.com/gpu", f"{GPU}::0")
    kubelet.give("ml", "gone", "c", "nvidia.com/gpu", f"{GPU}::1")
    before = provider.fetch()

    kubelet.stop()
    kubelet.remove("ml", "train")
    kubelet.remove("ml", "gone")
    kubelet.give("ml", "other", "c", "cpu-things.example/x", "x")
    kubelet.start()
    assert provider.fetch() == before

    kubelet.give("ml", "new", "c", "nvidia.com/gpu", f"{GPU}::1")
    new = KubeletAllocation("ml", "new", "c", "nvidia.com/gpu", f"{GPU}::1")
    train = KubeletAllocation("ml", "train", "c", "nvidia.com/gpu", f"{GPU}::0")
    clock[0] += SETTLED_S - 0.1
    assert provider.fetch().allocations == (new, train)
    clock[0] += 0.1
    assert provider.fetch().allocations == (new,)


def test_a_kubelet_that_has_not_found_any_pod_yet(kubelet: KubeletServer) -> None:
    """It may wait for its API server, so an answer without any pod is doubted longer; in the end it is believed."""
    clock = [100.0]
    provider = PodResourcesProvider(str(kubelet.path), monotonic=lambda: clock[0])
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", GPU)
    before = provider.fetch()
    kubelet.stop()
    kubelet.remove("ml", "p")
    kubelet.start()
    assert provider.fetch() == before
    clock[0] += ALONE_S - 0.1
    assert provider.fetch() == before
    clock[0] += 0.1
    assert provider.fetch() == Names()


def test_a_kubelet_that_goes_on(kubelet: KubeletServer) -> None:
    """A pod that ends is gone with the next answer, also when the first one was just before."""
    provider = PodResourcesProvider(str(kubelet.path))
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", GPU)
    assert provider.fetch().allocations
    kubelet.remove("ml", "p")
    assert provider.fetch() == Names()


def test_a_kubelet_that_died(tmp_path: Path) -> None:
    """Its socket exists, but has no listener."""
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert "Connection refused; `sudo systemctl start kubelet`: nothing listens there" in refusal(path)


def test_a_path_that_cannot_be_a_socket(tmp_path: Path) -> None:
    """Too long for the kernel."""
    assert "too long" in refusal(tmp_path / ("x" * 120))


def test_without_permission(kubelet: KubeletServer) -> None:
    """The socket is root's."""
    asked(kubelet)  # whatever is imported, is imported as root
    kubelet.path.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        assert "Permission denied; run as root" in refusal(kubelet.path)
    finally:
        if root:
            os.seteuid(0)


def test_a_kubelet_that_hangs(kubelet: KubeletServer) -> None:
    """The deadline holds, and the next question is answered."""
    kubelet.hangs = True
    began = time.monotonic()
    assert "within 0.2 s; see whether the kubelet hangs" in refusal(kubelet.path, timeout_s=0.2)
    assert time.monotonic() - began < 2
    kubelet.hangs = False
    assert asked(kubelet) == []


def test_a_socket_without_accept(tmp_path: Path) -> None:
    """The kernel takes one connection and then no more; both look like a kubelet that hangs."""
    path = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        assert "within 0.1 s; see whether the kubelet hangs" in refusal(path, timeout_s=0.1)
        assert "within 0.1 s; see whether the kubelet hangs" in refusal(path, timeout_s=0.1)


def test_no_time_left(kubelet: KubeletServer) -> None:
    """A deadline in the past is met by not asking."""
    assert "within 0 s; see whether the kubelet hangs" in refusal(kubelet.path, timeout_s=0.0)
    assert kubelet.calls == []


def test_answers_beyond_the_usual_limit(kubelet: KubeletServer) -> None:
    """Big nodes send more than gRPC's 4 MiB."""
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", *(f"{GPU}::{index:09}" for index in range(120_000)))
    assert kubelet.listed.ByteSize() > 5 << 20
    assert len(asked(kubelet, timeout_s=30)) == 120_000


def test_answers_beyond_our_limit(kubelet: KubeletServer) -> None:
    """16 MiB are too many; just below they are read."""
    kubelet.raw = _padded(client.ANSWER_LIMIT)
    assert asked(kubelet, timeout_s=30) == []
    kubelet.raw = _padded(client.ANSWER_LIMIT + 1)
    assert "longer than 16 MiB" in refusal(kubelet.path, timeout_s=30)


def _padded(size: int) -> bytes:
    """A message of so many bytes, in an unknown field."""
    length = size - 5
    varint = bytes((length >> shift & 127) | (128 if shift < 21 else 0) for shift in (0, 7, 14, 21))
    return b"\x7a" + varint + bytes(length)


def test_a_kubelet_that_refuses(kubelet: KubeletServer) -> None:
    """Its own words are shown, on one line and not without end."""
    kubelet.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit:\n100 % é " + "x" * 5000)
    text = refusal(kubelet.path)
    assert "refuses /v1.PodResourcesLister/List: RESOURCE_EXHAUSTED (rejected by rate limit: 100 % é xxx" in text
    kubelet.refusal = (grpc.StatusCode.UNAVAILABLE, "")
    assert "UNAVAILABLE;" in refusal(kubelet.path)


def test_garbage_as_the_message(kubelet: KubeletServer) -> None:
    """A server that answers something else."""
    kubelet.raw = b"\xff" * 100
    assert "sent an answer that cannot be read" in refusal(kubelet.path)
    kubelet.raw = b"\x0a\x03\x0a\x01\xff"  # a pod whose name is no text
    assert "sent an answer that cannot be read" in refusal(kubelet.path)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "does not speak gRPC"),
        (b"SSH-2.0-OpenSSH_9.2\r\n" * 5, "does not speak gRPC"),
        (bytes(1000), "does not speak gRPC"),
        (b"\x00", "closed the connection"),
        (HELLO + b"\x00\x00\x01\x01\x04\x00\x00\x00\x01\x88", "closed the connection"),  # in the middle of an answer
        (HELLO + b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + bytes(8), "closed the connection"),  # GOAWAY
        (HELLO + b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x02", "closed the connection"),  # RST_STREAM
        (HELLO + b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x8d", "HTTP status 404"),
        (HELLO + b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88", "no status"),
    ],
)
def test_a_server_that_speaks_otherwise(tmp_path: Path, said: bytes, expected: str) -> None:
    """Bytes on the socket that are no answer."""
    with saying(tmp_path / "k.sock") as (path, say):
        say(said)
        assert expected in refusal(path)


@contextmanager
def saying(path: Path) -> Iterator[tuple[Path, Callable[[bytes], None]]]:
    """A socket on which every client gets the same bytes and then the end."""
    words = [b""]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    try:
                        client.sendall(words[0])
                        client.shutdown(socket.SHUT_WR)
                        while client.recv(1 << 16):
                            pass
                    except OSError:
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        yield path, lambda said: words.__setitem__(0, said)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


class _Recorded:
    """A connection that keeps what came in."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.heard = b""

    def recv(self, size: int) -> bytes:
        heard = self._connection.recv(size)
        self.heard += heard
        return heard

    def sendall(self, data: bytes) -> None:
        self._connection.sendall(data)

    def settimeout(self, timeout_s: float) -> None:
        self._connection.settimeout(timeout_s)


@pytest.fixture(scope="module")
def conversation() -> bytes:
    """All that a real server says when it answers one question."""
    with tempfile.TemporaryDirectory() as folder, KubeletServer(Path(folder) / "k.sock") as kubelet:
        kubelet.give("ml", "train", "main", "nvidia.com/gpu", GPU)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(kubelet.path))
            recorded = _Recorded(connection)
            client._exchange(recorded, "/v1.PodResourcesLister/List", b"", Deadline(10), ())  # type: ignore[arg-type]
        return recorded.heard


def test_any_bytes_on_the_socket(tmp_path: Path, conversation: bytes) -> None:
    """What a server says may be cut, changed or made up: an error or names, never anything else."""
    cut = st.integers(0, len(conversation)).map(lambda end: conversation[:end])
    changed = st.lists(st.tuples(st.integers(0, len(conversation) - 1), st.binary(max_size=4)), max_size=4).map(
        lambda changes: _changed(conversation, changes)
    )
    with saying(tmp_path / "k.sock") as (path, say):
        provider = PodResourcesProvider(str(path), timeout_s=10)
        say(conversation)
        assert len(provider.fetch().allocations) == 1

        @settings(max_examples=160)
        @given(said=st.binary() | cut | changed)
        def holds(said: bytes) -> None:
            say(said)
            _names_or_error(provider)

        holds()


def _changed(said: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for at, new in changes:
        said = said[:at] + new + said[at + len(new) :]
    return said


def test_any_bytes_as_the_message(kubelet: KubeletServer) -> None:
    """The same one level up, with real messages that were changed among them."""
    kubelet.give("ml", "train", "main", "nvidia.com/gpu", GPU)
    kubelet.claim("ml", "train", "main", "gpu.nvidia.com", "gpu-0", CLAIM)
    real = kubelet.listed.SerializeToString()
    changed = st.lists(st.tuples(st.integers(0, len(real) - 1), st.binary(max_size=4)), max_size=4).map(
        lambda changes: _changed(real, changes)
    )
    provider = PodResourcesProvider(str(kubelet.path), timeout_s=10)

    @settings(max_examples=120)
    @given(raw=st.binary() | changed)
    def holds(raw: bytes) -> None:
        kubelet.raw = raw
        _names_or_error(provider)

    holds()


def _names_or_error(provider: Provider) -> None:
    said = ""
    try:
        assert isinstance(provider.fetch(), Names)
    except ProviderError as error:
        said = str(error)
    assert said.isprintable()


def test_nothing_stays_open(kubelet: KubeletServer, tmp_path: Path) -> None:
    """Neither success nor failure keeps a descriptor or a thread."""
    asked(kubelet)
    before, threads = _open_files(), threading.active_count()
    for _ in range(20):
        asked(kubelet)
        refusal(tmp_path / "none.sock")
    kubelet.raw = b"\xff"
    refusal(kubelet.path)
    # The server in this process closes its side a little later.
    end = time.monotonic() + 10
    while _open_files() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert _open_files() <= before
    assert threading.active_count() <= threads + 4  # those of the server


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_in_the_background(kubelet: KubeletServer) -> None:
    """As the exporter runs it: up with names, down with the reason, up again."""
    kubelet.give("ml", "p", "c", "nvidia.com/gpu", GPU)
    background = PolledProvider(PodResourcesProvider(str(kubelet.path)))
    assert background.once()
    kubelet.stop()
    background.once()
    assert not background.health.up
    assert "No such file or directory; `sudo systemctl start kubelet`, or mount" in background.health.reason
    assert len(background.names.allocations) == 1
    kubelet.start()
    background.once()
    assert background.health.up


def test_waiting_ends_with_stop() -> None:
    """There is no stream of news; only the clock and `stop`."""
    provider, stop = PodResourcesProvider("/none"), threading.Event()
    assert not provider.wait(0.001, stop)
    stop.set()
    assert not provider.wait(60, stop)
    provider.close()


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, kubelet: KubeletServer) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "h2.exceptions", None)
    with pytest.raises(ProviderError, match=r"h2 is missing; it belongs to gpuledger: install gpuledger again"):
        PodResourcesProvider(str(kubelet.path)).fetch()


def test_hosts_without_kubernetes_pay_nothing() -> None:
    """Importing the providers imports no gRPC and no HTTP/2."""
    code = (
        "import sys, gpuledger.owners.providers.podresources, gpuledger.owners.providers.cri\n"
        "print([name for name in ('h2', 'hpack', 'hyperframe', 'grpc', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={"PYTHONPATH": ":".join(sys.path)})  # fmt: skip
    assert done.stdout.strip() == "[]"
