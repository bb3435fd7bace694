"""The pods of a node against a real server: what it tells, and everything that can go wrong on the way."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import AnswerError, ConfigError, ProviderError
from gpuledger.net.address import Address
from gpuledger.net.kubeapi import ApiAccess
from gpuledger.net.tls import TlsSettings
from gpuledger.owners.names import Container
from gpuledger.owners.providers.kubepods import MOST_PODS, Pods, read_pod
from gpuledger.owners.providers.kubernetes import KubernetesProvider
from gpuledger.owners.providers.provider import PolledProvider
from tests.certificates import copy_certificate
from tests.owners.providers.api_server import STREAM, ApiServer, Json, answer, chunk, encoded, pod, slowly, status
from tests.runtime.clock import Clock
from tests.waiting import free_port, wait_until

GO = threading.Event()
"""Never set."""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server without TLS that knows one pod."""
    with contextlib.closing(ApiServer()) as server:
        server.put(pod("a"))
        yield server


@pytest.fixture
def clock() -> Clock:
    """The time of the provider."""
    return Clock()


Start = Callable[..., KubernetesProvider]


@pytest.fixture
def start(server: ApiServer, clock: Clock) -> Iterator[Start]:
    """Makes a provider that asks the server."""
    with contextlib.ExitStack() as stack:

        def make(api: ApiAccess | None = None, node: str = "n1", **options: Any) -> KubernetesProvider:
            access = api or ApiAccess(Address(host="127.0.0.1", port=server.port))
            provider = KubernetesProvider(access, node, monotonic=clock, **options)
            stack.callback(provider.close)
            return provider

        yield make


def pods(provider: KubernetesProvider) -> list[str]:
    """Names of the pods that a fetch gives."""
    return sorted(found.name for found in provider.fetch().pods.values())


def test_list_and_watch(server: ApiServer, start: Start) -> None:
    """One list is enough: whatever changes later comes over the watch, and only that is news."""
    provider = start()
    first = provider.fetch()
    assert first.containers["a-main"] == Container("a-main", "main", "example.org/main:1", "ml", "a", "uid-a")
    assert provider.fetch() is first
    assert not provider.wait(0.01, GO)

    server.put(pod("b"))
    assert provider.wait(5, GO)
    assert pods(provider) == ["a", "b"]

    changed = pod("b")
    changed["status"]["conditions"] = [{"type": "Ready", "lastProbeTime": "now"}]
    server.put(changed)
    assert not provider.wait(0.1, GO)

    server.put(pod("b", running=False))
    assert provider.wait(5, GO)
    assert sorted(provider.fetch().containers) == ["a-main"]

    server.delete("uid-b")
    assert provider.wait(5, GO)
    assert pods(provider) == ["a"]
    assert len(server.asked(watch=False)) == len(server.asked(watch=True)) == 1


def test_fetch_takes_in_what_has_come(server: ApiServer, start: Start) -> None:
    """Fetches without waits, as unknown ids cause them, include the events of the watch."""
    provider = start()
    provider.fetch()
    server.put(pod("b"))

    wait_until(lambda: pods(provider) == ["a", "b"])
    assert len(server.asked(watch=False)) == 1


def test_requests(server: ApiServer, start: Start) -> None:
    """Lists come from the server's cache, both are limited to this node, and the watch goes on from the list."""
    start(node="gpu-1.example.org").fetch()

    listed, watched = (query for _, query, _ in server.requests)
    assert listed == {"fieldSelector": "spec.nodeName=gpu-1.example.org", "limit": "250", "resourceVersion": "0"}
    assert watched == {"fieldSelector": "spec.nodeName=gpu-1.example.org", "watch": "true", "resourceVersion": "101",
                       "allowWatchBookmarks": "true", "timeoutSeconds": "300"}  # fmt: skip


def test_pages(server: ApiServer, start: Start) -> None:
    """A list in several answers is one list."""
    server.page = 2
    for number in range(4):
        server.put(pod(f"p{number}"))

    assert pods(start()) == ["a", "p0", "p1", "p2", "p3"]
    assert [query.get("continue") for query in server.asked(watch=False)] == [None, "2", "4"]


def test_pages_that_expire(server: ApiServer, start: Start) -> None:
    """If a list expires between two pages, a new one is requested, and not from the cache."""
    meta = {"resourceVersion": "100", "continue": "x/y=="}
    server.answers += [answer(json.dumps({"metadata": meta, "items": []}).encode()), status(410)]

    assert pods(start()) == ["a"]
    assert server.requests[1][1]["continue"] == "x/y=="
    assert "resourceVersion" not in server.requests[2][1]


def test_list_without_end(server: ApiServer, start: Start) -> None:
    """A server that always has another page is not followed for ever."""
    page = answer(json.dumps({"metadata": {"resourceVersion": "1", "continue": "x"}, "items": []}).encode())
    server.answers += [page] * 60

    with pytest.raises(ProviderError, match="more than 50 pages"):
        start().fetch()


def test_pods_of_other_nodes(server: ApiServer, start: Start) -> None:
    """A server that ignores the selector does not make us take the pods of other nodes."""
    server.put(pod("b", node="n2"))

    assert pods(start()) == ["a"]


def test_expired_watch(server: ApiServer, start: Start) -> None:
    """After 410 on a watch, all pods are listed once, from the store."""
    provider = start()
    provider.fetch()
    server.put(pod("b"))
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
    server.say(json.dumps(error).encode() + b"\n")

    wait_until(lambda: provider.wait(1, GO) and len(server.asked(watch=False)) == 1 and provider._failure)
    assert pods(provider) == ["a", "b"]
    assert "resourceVersion" not in server.asked(watch=False)[1]


def test_expired_at_once(server: ApiServer, start: Start) -> None:
    """A cache so old that no watch can begin there is passed by."""
    old = answer(json.dumps({"metadata": {"resourceVersion": "5"}, "items": []}).encode())
    server.answers.append(old)

    assert pods(start()) == ["a"]


def test_watch_that_ends_goes_on(server: ApiServer, start: Start, clock: Clock) -> None:
    """A watch that ends in time is begun again where it was, without a list."""
    provider = start()
    provider.fetch()
    server.bookmark()
    wait_until(lambda: provider.wait(0.05, GO) or provider._pods.version == "102")
    clock.now += 300
    server.finish()
    wait_until(lambda: not provider.wait(0.1, GO) and len(server.asked(watch=True)) == 2)

    assert server.asked(watch=True)[1]["resourceVersion"] == "102"
    assert len(server.asked(watch=False)) == 1
    assert provider.fetch().pods


def test_disconnect_in_the_middle(server: ApiServer, start: Start) -> None:
    """A broken watch is news; the next fetch asks for everything and nothing is missed or kept too long."""
    provider = start()
    provider.fetch()
    wait_until(server.watchers)
    server.disconnect()
    wait_until(lambda: not server.watchers())
    server.put(pod("b"))
    server.delete("uid-a")

    assert provider.wait(5, GO)
    assert pods(provider) == ["b"]


def test_restart(server: ApiServer, start: Start) -> None:
    """While the server is down, a fetch raises the reason; afterwards the watch continues."""
    provider = start()
    provider.fetch()
    server.close()

    assert provider.wait(5, GO)
    with pytest.raises(ProviderError, match=r"cannot reach the API server at 127.0.0.1:\d+: Connection refused"):
        provider.fetch()
    server.start()
    assert pods(provider) == ["a"]


def test_watches_that_break_at_once_are_asked_for_rarely(server: ApiServer, start: Start, clock: Clock) -> None:
    """A proxy that cuts each watch does not make every node of the cluster list all the time."""
    provider = start()
    for _ in range(100):
        try:
            provider.fetch()
        except ProviderError as error:
            assert "too early" in str(error)  # noqa: PT017 - both ways are right, at different times
        else:
            wait_until(server.watchers)
            server.finish()
            assert provider.wait(5, GO)
        clock.now += 1

    assert 4 <= len(server.asked(watch=False)) <= 7


def test_dead_watch(server: ApiServer, start: Start, clock: Clock) -> None:
    """A watch that neither speaks nor ends long after its time belongs to a server that is gone."""
    provider = start()
    provider.fetch()
    clock.now += 331

    assert provider.wait(5, GO)
    assert pods(provider) == ["a"]
    assert len(server.asked(watch=False)) == 2


def test_relist(server: ApiServer, start: Start, clock: Clock) -> None:
    """Every ten minutes all pods are listed, because an event may be lost; equal names stay the same object."""
    provider = start()
    first = provider.fetch()
    wait_until(server.watchers)
    clock.now += 300
    server.finish()
    wait_until(lambda: provider.fetch() and len(server.asked(watch=True)) == 2)
    clock.now += 299
    provider.fetch()
    assert len(server.asked(watch=False)) == 1
    clock.now += 2

    assert provider.fetch() is first
    assert len(server.asked(watch=False)) == 2


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            status(401, "Unauthorized"),
            "does not accept our credentials (401: Unauthorized); grant a ClusterRole",
        ),
        (
            status(403, "pods is forbidden"),
            "does not allow us to list and watch pods (403: pods is forbidden); grant a ClusterRole",
        ),
        (status(500, "etcd\nis\r\n down"), "answered 500: etcd is down; check whether it is"),
        (answer(b"<html>Sign in</html>", 200, "text/html"), "did not return JSON"),
        (answer(b"<html>Sign in</html>", 302, "text/html"), "answered 302; check whether it is"),
        (answer(b'{"metadata": {"resourceVersion": "1"}, "items": [{"meta'), "did not return JSON"),
        (answer(b'{"metadata": {}, "items": []}'), "did not return a list of pods"),
        (answer(b'{"metadata": {"resourceVersion": "1"}, "items": 7}'), "did not return a list of pods"),
        (answer(b"[1, 2]"), "did not return a list of pods"),
        (answer(b"[" * 200_000), "did not return JSON"),
        (answer(b"\xff\xfe\xff"), "did not return JSON"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "did not answer in HTTP"),
        (b"", "closed the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "did not answer in HTTP"),
        (answer(b'{"metadata": {}}')[:-3], "closed the connection in the middle of an answer"),
        (STREAM + b"nonsense\r\n", "sent an invalid chunk size"),
        (STREAM + b"fffffff\r\n" + b" " * (33 << 20), "sent an answer of more than 32 MiB"),
        (status(403)[:-5], "(403); grant a ClusterRole"),
    ],
)
def test_refusals_and_junk(server: ApiServer, start: Start, sent: bytes, expected: str) -> None:
    """Whatever the server sends, the error names the server, what is wrong and what to do."""
    server.answers.append(sent)

    with pytest.raises(ProviderError) as caught:
        start().fetch()

    assert expected in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)


def test_right_to_list_but_not_to_watch(server: ApiServer, start: Start) -> None:
    """The error names the missing right."""
    provider = start()
    server.answers += [server._list(0), status(403, 'cannot watch resource "pods"')]

    with pytest.raises(ProviderError, match="cannot watch resource"):
        provider.fetch()
    assert pods(provider) == ["a"]


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b"{\n", b'{"type": "ERROR"}\n', b'{"type": 7}\n', b"\xff\n"])
def test_junk_on_the_watch(server: ApiServer, start: Start, line: bytes) -> None:
    """Junk breaks the watch, not the provider."""
    provider = start()
    provider.fetch()
    server.say(line)

    assert provider.wait(5, GO)
    assert pods(provider) == ["a"]


def test_slow_server(server: ApiServer, start: Start) -> None:
    """A server that drips one byte at a time does not stretch the time limit."""
    server.answers.append(slowly(answer(b" " * 1000)))
    began = time.monotonic()

    with pytest.raises(ProviderError, match=r"no complete answer from .* within 0.2 s"):
        start(timeout_s=0.2).fetch()
    assert time.monotonic() - began < 2


def test_slow_watch(server: ApiServer, start: Start) -> None:
    """An event that comes in small pieces is understood when it is whole."""
    provider = start()
    event = json.dumps({"type": "ADDED", "object": pod("b")}).encode() + b"\n"
    server.answers += [server._list(0), slowly(STREAM + chunk(event) + chunk(b" "), 0.0005)]
    provider.fetch()

    assert provider.wait(5, GO)
    assert "uid-b" in provider._pods.names.pods


def test_too_many_pods() -> None:
    """A node cannot have that many pods, whatever the server says."""
    items = [{"metadata": {"uid": str(number), "name": "x"}} for number in range(MOST_PODS + 1)]
    body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    with pytest.raises(AnswerError, match="more than 10000 pods"):
        Pods("n1", bool).put_page(body)


def test_stop_and_close_end_a_wait(start: Start) -> None:
    """Both end a wait soon, from another thread; a closed provider says that it is."""
    provider = start()
    provider.fetch()
    stop = threading.Event()
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    assert not provider.wait(10, stop)
    timer.join()
    timer = threading.Timer(0.05, provider.close)
    timer.start()
    began = time.monotonic()
    provider.wait(10, GO)
    timer.join()

    assert time.monotonic() - began < 2
    assert provider._watch is None
    with pytest.raises(ProviderError, match="closed"):
        provider.fetch()


def test_in_the_background(server: ApiServer) -> None:
    """As it is really used: a thread of its own, real time, a change that arrives."""
    background = PolledProvider(KubernetesProvider(ApiAccess(Address(host="127.0.0.1", port=server.port)), "n1"))
    background.start()
    wait_until(lambda: "uid-a" in background.names.pods)
    server.put(pod("b"))
    wait_until(lambda: "uid-b" in background.names.pods)
    background.stop()
    background._thread.join(5)

    assert not background._thread.is_alive()
    assert background.health.up


# How to get in


def secure(port: int) -> Address:
    """The address of a server with TLS on this host."""
    return Address(host="127.0.0.1", port=port, tls=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and its key."""
    return copy_certificate(tmp_path_factory.mktemp("tls"))


def test_in_cluster(certificate: tuple[Path, Path], tmp_path: Path, start: Start) -> None:
    """TLS with the cluster's own authority, and a token that is read anew when the kubelet has replaced it."""
    (tmp_path / "ca.crt").write_bytes(certificate[0].read_bytes())
    (tmp_path / "token").write_text("first\n")
    with contextlib.closing(ApiServer(certificate=certificate)) as server:
        server.token = "first"
        server.put(pod("s"))
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        provider = start(ApiAccess.in_cluster(environ, tmp_path))
        assert pods(provider) == ["s"]
        server.put(pod("t"))
        assert provider.wait(5, GO)
        assert pods(provider) == ["s", "t"]

        server.token = "second"
        wait_until(server.watchers)
        server.disconnect()
        assert provider.wait(5, GO)
        with pytest.raises(ProviderError, match="401"):
            provider.fetch()
        (tmp_path / "token").write_text("second")
        assert pods(provider) == ["s", "t"]
        provider.close()


def test_in_cluster_addresses(tmp_path: Path) -> None:
    """IPv6 has brackets only where a port follows; outside of a pod there is nothing to ask."""
    access = ApiAccess.in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)

    assert (access.address.host, str(access.address)) == ("fd00::1", "[fd00::1]:6443")
    with pytest.raises(ConfigError, match="this is not a pod; give a kubeconfig file"):
        ApiAccess.in_cluster({})
    with pytest.raises(ConfigError, match="is not an address"):
        ApiAccess.in_cluster({"KUBERNETES_SERVICE_HOST": "a\r\nb"})
    with pytest.raises(ConfigError, match="port 99999 is not an address"):
        ApiAccess.in_cluster({"KUBERNETES_SERVICE_HOST": "a", "KUBERNETES_SERVICE_PORT": "99999"})


def test_in_cluster_files(certificate: tuple[Path, Path], tmp_path: Path, start: Start) -> None:
    """Files that are missing or hold something else are named."""
    with contextlib.closing(ApiServer(certificate=certificate)) as server:
        environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
        provider = start(ApiAccess.in_cluster(environ, tmp_path))
        with pytest.raises(ProviderError, match=r"cannot read .*/token: No such file .*; mount the service account"):
            provider.fetch()
        (tmp_path / "token").write_text("two words\r\nX: y")
        with pytest.raises(ProviderError, match=r"/token has no valid token"):
            provider.fetch()
        (tmp_path / "token").write_text("x")
        with pytest.raises(ProviderError, match=r"No such file .*certificate authority .*/ca.crt"):
            provider.fetch()
        (tmp_path / "ca.crt").write_text("nothing")
        with pytest.raises(ProviderError, match=r"certificate authority .*/ca.crt"):
            provider.fetch()


def test_wrong_authority(certificate: tuple[Path, Path], tmp_path: Path, start: Start) -> None:
    """A server without a trusted certificate does not get the token."""
    other = copy_certificate(tmp_path, "client")
    with contextlib.closing(ApiServer(certificate=certificate)) as server:
        with pytest.raises(ProviderError, match=r"certificate of the API server at .* is not trusted: self.signed"):
            start(ApiAccess(secure(server.port), TlsSettings(str(other[0])), token="secret")).fetch()
        assert server.requests == []


def kubeconfig(folder: Path, cluster: Json, user: Json, **more: object) -> Path:
    """A file with two contexts, of which the second is the current one."""
    path = folder / "config"
    context = {"cluster": "c", "user": "u"}
    entries: Json = {
        "current-context": "now",
        "contexts": [{"name": "other", "context": {}}, {"name": "now", "context": context}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(entries | more))
    return path


@pytest.mark.parametrize("as_data", [True, False])
def test_kubeconfig(certificate: tuple[Path, Path], tmp_path: Path, start: Start, *, as_data: bool) -> None:
    """Certificates as data or as files beside the kubeconfig; both sides have a certificate."""
    own = copy_certificate(tmp_path, "client")
    (tmp_path / "ca").write_bytes(certificate[0].read_bytes())
    with contextlib.closing(ApiServer(certificate=certificate, clients=own[0])) as server:
        server.put(pod("k"))
        url = f"https://127.0.0.1:{server.port}/k8s/clusters/c-1/"
        cluster: Json = {"server": url, "tls-server-name": "kubernetes"}
        if as_data:
            cluster["certificate-authority-data"] = encoded(certificate[0])
            user = {"client-certificate-data": encoded(own[0]), "client-key-data": encoded(own[1])}
        else:
            cluster["certificate-authority"] = "ca"
            user = {"client-certificate": own[0].name, "client-key": str(own[1])}
        files = len(list(Path("/proc/self/fd").iterdir()))
        provider = start(ApiAccess.from_kubeconfig(kubeconfig(tmp_path, cluster, user)))

        assert pods(provider) == ["k"]
        assert server.requests[0][0] == "/k8s/clusters/c-1/api/v1/pods"
        provider.close()
        wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) == files)


def test_kubeconfig_tokens(certificate: tuple[Path, Path], tmp_path: Path, start: Start) -> None:
    """A token in the kubeconfig or in another file; verification of the server can be disabled."""
    with contextlib.closing(ApiServer(certificate=certificate)) as server:
        server.token = "t1"
        cluster = {"server": f"https://127.0.0.1:{server.port}", "insecure-skip-tls-verify": True}
        access = ApiAccess.from_kubeconfig(kubeconfig(tmp_path, cluster, {"token": "t1"}))
        assert pods(start(access)) == []
        assert "t1" not in repr(access)
        (tmp_path / "t").write_text("t1")
        assert pods(start(ApiAccess.from_kubeconfig(kubeconfig(tmp_path, cluster, {"tokenFile": "t"})))) == []
    plain = ApiAccess.from_kubeconfig(kubeconfig(tmp_path, {"server": "http://[::1]:8001"}, {}))
    assert plain.address == Address(host="::1", port=8001, tls=False)


@pytest.mark.parametrize(
    ("cluster", "user", "more", "expected"),
    [
        ({}, {"exec": {"command": "aws"}}, {}, "exec is not supported; use a token or a client certificate"),
        ({}, {"auth-provider": {"name": "gcp"}}, {}, "auth-provider is not supported"),
        ({}, {"username": "a", "password": "b"}, {}, "username is not supported"),
        ({"proxy-url": "socks5://x"}, {}, {}, "proxy-url is not supported"),
        ({"server": "ftp://x"}, {}, {}, "server 'ftp://x' is not https://host:port"),
        ({"server": "https://user@x"}, {}, {}, "is not https://host:port"),
        ({"server": "https://x:99999"}, {}, {}, "port 99999 is not an address"),
        ({"certificate-authority-data": "="}, {}, {}, ""),
        ({}, {}, {"current-context": "none"}, "no context named 'none'"),
        ({}, {}, {"current-context": None}, "no context named None"),
        ({}, {}, {"contexts": 7}, "no context named 'now'"),
        ({}, {}, {"users": [{"name": "v"}]}, "no user named 'u'"),
    ],
)
def test_kubeconfigs_that_cannot_be_used(tmp_path: Path, cluster: Json, user: Json, more: Json, expected: str) -> None:
    """Each is refused before the first request, in one line that names the file or the value."""
    path = kubeconfig(tmp_path, {"server": "https://x:6443"} | cluster, user, **more)
    if not expected:
        ApiAccess.from_kubeconfig(path)
        return

    with pytest.raises(ConfigError) as caught:
        ApiAccess.from_kubeconfig(path)

    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_kubeconfig(tmp_path: Path) -> None:
    """A file that is missing, or none at all."""
    with pytest.raises(ConfigError, match=r"cannot read .*/none: No such file or directory; name a kubeconfig file"):
        ApiAccess.from_kubeconfig(tmp_path / "none")
    for number, junk in enumerate([b"{", b"\xff\xfe\x00", b"- a\n- b\n", b"[" * 5000, b"a: !!python/object:os.x {}"]):
        (tmp_path / str(number)).write_bytes(junk)
        with pytest.raises(ConfigError, match="cannot use"):
            ApiAccess.from_kubeconfig(tmp_path / str(number))


def test_options() -> None:
    """A name that no node has, and labels that are no expression, are refused at start."""
    api = ApiAccess(secure(443))
    with pytest.raises(ConfigError, match=r"'' is not a node name; set NODE_NAME"):
        KubernetesProvider(api, "")
    with pytest.raises(ConfigError, match="is not a node name"):
        KubernetesProvider(api, "a&b=c")
    with pytest.raises(ConfigError, match=r"'\(' is not a regular expression"):
        KubernetesProvider(api, "n", ["("])


def test_no_server_listens() -> None:
    """A server that is not there yet."""
    provider = KubernetesProvider(ApiAccess(Address(host="127.0.0.1", port=free_port())), "n1")

    with pytest.raises(ProviderError, match="Connection refused; check its address"):
        provider.fetch()


# What a pod says


def test_labels(server: ApiServer, start: Start) -> None:
    """Only labels on the allow-list, by their whole names; none without a list."""
    labels = {"app.kubernetes.io/name": "x", "app": "y", "secret": "z"}
    server.put(pod("l", metadata={"labels": labels}))

    assert start().fetch().pods["uid-l"].labels == ()
    found = start(label_allow=["app", r"app\.kubernetes\.io/.*"]).fetch().pods["uid-l"]
    assert found.labels == (("app", "y"), ("app.kubernetes.io/name", "x"))


def test_workload_of_a_pod(server: ApiServer, start: Start) -> None:
    """The workload comes with the pod."""
    owners = [{"kind": "ReplicaSet", "name": "vllm-7c9", "controller": True}]
    server.put(pod("w", metadata={"labels": {"pod-template-hash": "7c9"}, "ownerReferences": owners}))

    found = start().fetch().pods["uid-w"]
    assert (found.workload_kind, found.workload_name) == ("Deployment", "vllm")


def test_static_pods(server: ApiServer, start: Start) -> None:
    """A static pod is found by the uid of its cgroup as well."""
    digest = "0123456789abcdef0123456789abcdef"
    notes = {"kubernetes.io/config.hash": digest, "kubernetes.io/config.mirror": digest}
    server.put(pod("etcd-n1", metadata={"annotations": notes, "ownerReferences": [{"kind": "Node", "name": "n1"}]}))

    names = start().fetch()
    assert names.pods[digest] is names.pods["uid-etcd-n1"]
    assert names.pods[digest].other_uids == (digest,)
    assert (names.pods[digest].workload_kind, names.pods[digest].workload_name) == ("Pod", "etcd-n1")


def test_kinds_of_containers() -> None:
    """Init containers, sidecars and debug containers count while they run; what has no id yet does not."""
    running: Json = {"running": {}}
    item = pod("p")
    item["spec"]["initContainers"] = [{"name": "side", "image": "side:2"}]
    item["status"] |= {
        "initContainerStatuses": [
            {"name": "side", "image": "sha256:abc", "containerID": "cri-o://s", "state": running},
            {"name": "done", "image": "x", "containerID": "cri-o://d", "state": {"terminated": {"exitCode": 0}}},
        ],
        "ephemeralContainerStatuses": [
            {"name": "debug", "image": "sha256:def", "containerID": "docker://e", "state": running},
            {"name": "new", "image": "x", "containerID": "", "state": running},
        ],
    }
    found = read_pod(item, bool)

    assert found is not None
    assert [(c.id, c.name, c.image) for c in found[1]] == [
        ("p-main", "main", "example.org/main:1"), ("s", "side", "side:2"), ("e", "debug", "sha256:def"),
    ]  # fmt: skip


KEYS = [
    "metadata", "uid", "name", "labels", "annotations", "ownerReferences", "kind", "status", "containerStatuses",
    "containerID", "state", "running", "spec", "containers", "nodeName", "type", "object", "items", "resourceVersion",
    "continue", "code",
]  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.just("\ud800")),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)),
    max_leaves=30,
)


@given(JSON)
def test_any_json(value: object) -> None:
    """Whatever JSON comes as a list or an event: an answer that can be printed, or the one kind of error."""
    pods = Pods("n1", bool)
    for read in (pods.put_page, pods.apply):
        with contextlib.suppress(AnswerError):
            read(json.dumps(value).encode())
    pods.put(value)
    pods.drop(value)

    repr(pods.names).encode()
