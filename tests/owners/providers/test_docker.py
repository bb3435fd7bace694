"""The Docker provider against a daemon that may say anything."""

from __future__ import annotations

import json
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuledger.errors import ProviderError
from gpuledger.owners.names import Container, PodLabels
from gpuledger.owners.providers import docker
from gpuledger.owners.providers import docker as docker_module
from gpuledger.owners.providers.docker import DockerProvider, Endpoint, default_urls
from gpuledger.owners.providers.provider import PolledProvider
from tests.owners.providers.docker_server import Answer, FakeDocker, chunked, http, listed
from tests.waiting import wait_until

A, B, C = "a" * 64, "b" * 64, "c" * 64
VERSION = http({"ApiVersion": "1.45", "MinAPIVersion": "1.24"})
EVENTS_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Serve = Callable[..., tuple[FakeDocker, DockerProvider]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a fake daemon that answers like this, and a provider that asks it."""
    with tempfile.TemporaryDirectory() as folder:
        ends: list[Callable[[], None]] = []

        def start(timeout_s: float = 2.0, **answers: Answer) -> tuple[FakeDocker, DockerProvider]:
            usual = {
                "/events": answers.get("events", http({}, 403)),
                "/version": answers.get("version", VERSION),
                "/containers/json": answers.get("containers", http([listed(A)])),
                "/containers/": answers.get("inspect", http({})),
            }
            server = FakeDocker(Path(folder), usual)
            provider = DockerProvider(f"unix://{server.path}", timeout_s=timeout_s)
            ends.extend((provider.close, server.close))
            return server, provider

        yield start
        for end in ends:
            end()


def inspected(**host: Any) -> dict[str, Any]:
    """What a look into a container gives."""
    return {"HostConfig": {"Runtime": "runc"} | host, "Config": {"Image": "nginx:0", "Env": ["SECRET=1"]}}


def test_a_container_is_known_by_its_id(serve: Serve) -> None:
    """Name, image, Compose's labels and the GPUs that were asked for; nothing else of labels and environment."""
    labels = {"com.docker.compose.project": "shop", "com.docker.compose.service": "web", "secret": "s"}
    asked = [{"Driver": "", "Count": 2, "Capabilities": [["gpu"]]}]
    _, provider = serve(
        containers=http([listed(A, Labels=labels)]), inspect=http(inspected(DeviceRequests=asked, Memory=1))
    )
    assert provider.fetch().containers == {
        A: Container(
            id=A,
            name="web",
            image="nginx:1",
            labels=(("com.docker.compose.project", "shop"), ("com.docker.compose.service", "web")),
            device_ids=("0", "1"),
        )
    }


def test_a_pod_of_cri_dockerd(serve: Serve) -> None:
    """The kubelet's labels are kept apart, because any user of Docker can write them."""
    labels = {"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n", "io.kubernetes.pod.uid": "u",
              "io.kubernetes.container.name": "c"}  # fmt: skip
    _, provider = serve(containers=http([listed(A, "k8s_c_p_n_u_0", Labels=labels)]))
    found = provider.fetch().containers[A]
    assert (found.name, found.pod, found.pod_uid, found.labels) == ("k8s_c_p_n_u_0", "", "", ())
    assert found.pod_labels == PodLabels("u", "n", "p", "c")


def test_the_version_is_the_daemons_own(serve: Serve) -> None:
    """Daemons refuse old versions, and not all the same ones."""
    server, provider = serve()
    provider.fetch()
    assert server.asked == ["/version", "/v1.45/containers/json", f"/v1.45/containers/{A}/json"]


def test_looked_into_once_named_anew_each_time(serve: Serve) -> None:
    """A rename needs no second look; a new container gets one; one that is gone is forgotten."""
    server, provider = serve()
    provider.fetch()
    server.answers["/containers/json"] = http([listed(A, "db"), listed(B)])
    assert {c.name for c in provider.fetch().containers.values()} == {"db", "web"}
    assert (server.count(f"{A}/json"), server.count(f"{B}/json")) == (1, 1)
    server.answers["/containers/json"] = http([])
    assert provider.fetch().containers == {}
    assert provider._inspected == {}


@pytest.mark.parametrize(
    "form", [http, chunked, lambda body: b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(body).encode(),
             lambda body: b"HTTP/1.1 100 Continue\r\n\r\n" + http(body)]
)  # fmt: skip
def test_each_way_to_end_an_answer(serve: Serve, form: Callable[[object], bytes]) -> None:
    """With its length, in chunks, by hanging up, after a first answer that only says wait."""
    _, provider = serve(version=form({"ApiVersion": "1.45"}), containers=form([listed(A), listed(B)]))
    assert len(provider.fetch().containers) == 2


NONSENSE = {
    "nothing": (b"", "closed the connection without an answer"),
    "noise": (bytes(range(256)) * 400, "did not answer in HTTP"),
    "other protocol": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "did not answer in HTTP"),
    "html": (http(b"<html>not here</html>"), "did not return JSON"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "did not answer in HTTP"),
    "half a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[", "in the middle"),
    "no number": (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "sent an invalid Content-Length"),
    "no status": (b"HTTP/1.1 abc\r\n\r\n", "did not answer in HTTP"),
    "bad chunk": (EVENTS_HEAD + b"zz\r\nab", "sent an invalid chunk size"),
    "negative chunk": (EVENTS_HEAD + b"-1\r\nab", "sent an invalid chunk size"),
    "long chunk": (EVENTS_HEAD + b"1\r\nabcdef", "longer than its size"),
    "huge chunk": (EVENTS_HEAD + b"fffffffffffffff\r\n", "more than"),
    "huge length": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "more than"),
    "half of json": (http(b'[{"Id": "a'), "did not return JSON"),
    "deep json": (http(b"[" * 200_000), "did not return JSON"),
    "refused": (http({"message": "no\nway"}, 403), "answered 403 to /v"),
    "refused in html": (http(b"<h1>Forbidden</h1>", 403), "<h1>Forbidden</h1>"),
    "refused without a word": (http(b"", 500), "no reason given"),
    "redirected": (http(b"", 302), "answered 302"),
}


@pytest.mark.parametrize("part", ["version", "containers"])
@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_one_clear_line(serve: Serve, part: str, case: str) -> None:
    """The error names the problem, the daemon and the fix."""
    sent, expected = NONSENSE[case]
    server, provider = serve(**{part: sent})
    with pytest.raises(ProviderError) as raised:
        provider.fetch()
    line = str(raised.value)
    assert expected in line
    assert str(server.path) in line
    assert line.isprintable()
    assert "; " in line
    assert len(line) < 600


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_about_one_container_costs_only_its_devices(
    serve: Serve, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """The names of all stay, and it is said once."""
    server, provider = serve(inspect=NONSENSE[case][0])
    with caplog.at_level(logging.INFO):
        assert provider.fetch().containers[A].name == "web"
        assert provider.fetch().containers[A].name == "web"
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        server.answers["/containers/"] = http(inspected(Devices=[{"PathOnHost": "/dev/nvidia3"}]))
        assert provider.fetch().containers[A].device_ids == ("nvidia3",)
    assert caplog.records[-1].getMessage() == "docker: all containers can be inspected again"


@pytest.mark.parametrize("wrong", [None, 7, "x", {}, {"ApiVersion": None}, {"ApiVersion": "1/../x"}, []])
def test_a_version_that_is_none(serve: Serve, wrong: object) -> None:
    """It is not used in a request."""
    server, provider = serve(version=http(wrong))
    with pytest.raises(ProviderError, match="reports no API version"):
        provider.fetch()
    assert server.asked == ["/version"]


@pytest.mark.parametrize("wrong", [None, 7, "x", {}, {"message": "x"}])
def test_a_list_that_is_none(serve: Serve, wrong: object) -> None:
    """Another shape is no empty list."""
    _, provider = serve(containers=http(wrong))
    with pytest.raises(ProviderError, match="did not return a list"):
        provider.fetch()


def test_entries_that_are_none(serve: Serve) -> None:
    """They are left out; an id that is none never becomes part of an address."""
    entries: list[Any] = [
        None,
        7,
        [],
        {},
        {"Id": 7},
        {"Id": "../../x"},
        {"Id": A.upper()},
        {"Id": B, "Names": 7, "Labels": []},
    ]
    server, provider = serve(containers=http(entries))
    assert provider.fetch().containers == {B: Container(id=B)}
    assert server.count("/containers/") == 2


def test_hostile_names_are_tamed(serve: Serve) -> None:
    """No control characters, no halves of characters, no kilobytes; quotes are harmless."""
    names = [f'a"b\\{chr(10)}c\x00', "\ud800x", "y" * 10_000]
    body = json.dumps([listed(i, n, Image=n) for i, n in zip((A, B, C), names, strict=True)]).encode()
    body = body.replace(b"nginx", b"\xff\xfe")
    _, provider = serve(containers=http(body))
    found = provider.fetch().containers
    assert [c.name for c in found.values()] == ['a"b\\\ufffdc\ufffd', "\ufffdx", "y" * 511]
    for container in found.values():
        assert container.name.isprintable()
        assert container.name.encode()


def test_bytes_that_are_no_text(serve: Serve) -> None:
    """They do not cost the rest."""
    _, provider = serve(containers=http(json.dumps([listed(A)]).encode().replace(b"/web", b"/w\xffb")))
    assert provider.fetch().containers[A].name == "w\ufffdb"


def test_fifty_megabytes_are_not_read(serve: Serve) -> None:
    """Announced or not, they stay with the daemon."""
    big = b"[" + b" " * (50 << 20) + b"]"
    whole = http(big)
    for sent in (whole, b"HTTP/1.1 200 OK\r\n\r\n" + big, EVENTS_HEAD + b"3200002\r\n" + big):
        server, provider = serve(containers=sent)
        with pytest.raises(ProviderError, match="more than 16 MiB"):
            provider.fetch()
        server.path.unlink()


def test_too_many_containers(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """No host has so many; names for half of them would be a lie."""
    monkeypatch.setattr(docker_module, "MOST_CONTAINERS", 1)
    _, provider = serve(containers=http([listed(A), listed(B)]))
    with pytest.raises(ProviderError, match="lists 2 containers"):
        provider.fetch()


def drip(connection: socket.socket) -> None:
    """A byte now and then, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x")
        time.sleep(0.01)


def hang(connection: socket.socket) -> None:
    """Say nothing until the other side gives up."""
    connection.recv(1)


@pytest.mark.parametrize("slow", [drip, hang])
def test_a_slow_daemon_costs_the_timeout_once(serve: Serve, slow: Answer) -> None:
    """Bytes that drip in do not stretch it."""
    _, provider = serve(timeout_s=0.2, containers=slow)
    begin = time.monotonic()
    with pytest.raises(ProviderError, match=r"no complete answer from docker at .* within 0\.2 s"):
        provider.fetch()
    assert time.monotonic() - begin < 2


def test_a_container_that_is_stuck_comes_last(serve: Serve) -> None:
    """Docker can hang on one container: the others get their names and devices, at the latest the next time."""
    server, provider = serve(timeout_s=1.0, containers=http([listed(A), listed(B)]))
    server.answers = {f"{B}/json": hang} | server.answers
    server.answers["/containers/"] = http(inspected(Devices=[{"PathOnHost": "/dev/nvidia0"}]))
    found = provider.fetch().containers
    assert (found[B].name, found[B].device_ids) == ("web", ())
    assert provider.wait(0, threading.Event()) is provider._unfinished
    found = provider.fetch().containers
    assert (found[A].device_ids, found[B].device_ids) == (("nvidia0",), ())
    assert not provider.wait(0, threading.Event()), "the stuck one is no reason to hurry"


def test_more_new_containers_than_time(serve: Serve) -> None:
    """The rest is looked into soon, not after the whole interval."""
    server, provider = serve(timeout_s=1.0, inspect=hang, containers=http([listed(A), listed(B)]))
    assert len(provider.fetch().containers) == 2
    assert provider.wait(60, threading.Event())
    server.answers["/containers/"] = http({})
    provider.fetch()
    assert not provider.wait(0, threading.Event())


def test_gone_between_two_calls(serve: Serve) -> None:
    """Listed, but not there any more: it is left out."""
    _, provider = serve(inspect=http({"message": "no such container"}, 404))
    assert provider.fetch().containers == {}


def test_a_missing_daemon_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, refused and forbidden are three things, and each has its remedy."""
    path = tmp_path / "none.sock"
    provider = DockerProvider(str(path))
    start = "`sudo systemctl start docker`"
    with pytest.raises(ProviderError, match=rf"cannot open .*none\.sock: No such file or directory; {start}") as caught:
        provider.fetch()
    assert caught.value.kind == "missing"
    with socket.socket(socket.AF_UNIX) as abandoned:
        abandoned.bind(str(path))
    with pytest.raises(ProviderError, match=f"Connection refused; {start}: nothing listens there") as caught:
        provider.fetch()
    assert caught.value.kind == "refused"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(
        ProviderError, match=r"Permission denied; .*`docker run --user 0`.*`sudo usermod -aG docker USER`"
    ) as caught:
        provider.fetch()
    assert caught.value.kind == "permission"
    with pytest.raises(ProviderError, match="run as the owner of the socket, or as root"):
        DockerProvider(str(path), name="podman").fetch()
    provider.close()


def test_strange_places(tmp_path: Path) -> None:
    """A path too long for a socket, a host that does not exist, TLS files that are not there."""
    with pytest.raises(ProviderError, match="too long"):
        DockerProvider(f"/{'x' * 200}").fetch()
    with pytest.raises(ProviderError, match=r"cannot reach podman at nowhere\.invalid:1"):
        DockerProvider("tcp://nowhere.invalid:1", name="podman").fetch()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url, missing = f"tcp://127.0.0.1:{listener.getsockname()[1]}", str(tmp_path / "ca.pem")
        with pytest.raises(ProviderError, match=r"the TLS files .*ca\.pem cannot be used: No such file"):
            DockerProvider(url, ca=missing).fetch()
    with pytest.raises(ValueError, match="is not an address"):
        DockerProvider("ssh://host")


def test_over_tcp() -> None:
    """The same over a network."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(http({}, 500))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ProviderError, match=r"docker at 127\.0\.0\.1:\d+ answered 500"):
            DockerProvider(f"tcp://127.0.0.1:{listener.getsockname()[1]}").fetch()
        thread.join()


def test_a_daemon_that_comes_back_is_asked_for_its_version(serve: Serve) -> None:
    """It may have been upgraded meanwhile."""
    server, provider = serve()
    provider.fetch()
    server.answers["/containers/json"] = http({"message": "client version 1.45 is too old"}, 400)
    with pytest.raises(ProviderError, match="too old"):
        provider.fetch()
    server.answers |= {"/version": http({"ApiVersion": "1.60"}), "/containers/json": http([])}
    provider.fetch()
    assert server.asked[-1] == "/v1.60/containers/json"


class Events:
    """A stream of events that a test feeds; the fake daemon calls it with each connection."""

    def __init__(self, head: bytes = EVENTS_HEAD) -> None:
        self.connected = threading.Semaphore(0)
        self._head = head
        self._connection: socket.socket | None = None

    def __call__(self, connection: socket.socket) -> None:
        """Begin, and stay until the other side goes."""
        connection.sendall(self._head)
        self._connection = connection
        self.connected.release()
        connection.recv(1)

    def send(self, data: bytes = b"2\r\n{}\r\n") -> None:
        """Something happened."""
        assert self._connection is not None
        self._connection.sendall(data)

    def end(self) -> None:
        """The daemon goes down."""
        assert self._connection is not None
        self._connection.shutdown(socket.SHUT_RDWR)


def test_an_event_ends_the_wait(serve: Serve) -> None:
    """One stream stays open across waits, and asks for what happened since the list was made."""
    events = Events()
    server, provider = serve(events=events)
    provider.fetch()
    wait_until(lambda: not provider.wait(0.3, threading.Event()) and provider.interval_s == 60)
    events.send()
    assert provider.wait(60, threading.Event())
    events.send()
    assert provider.wait(60, threading.Event())
    assert not provider.wait(0.01, threading.Event())
    assert server.count("/events") == 1
    assert f"/v1.45/events?since={provider._listed_at_s:.6f}&filters=%7B%22type%22" in server.asked[-1]


@pytest.mark.parametrize("cut", range(0, len(EVENTS_HEAD), 9))
def test_an_event_in_pieces(serve: Serve, cut: int) -> None:
    """Wherever the head was cut, the first event counts once."""
    events = Events(EVENTS_HEAD[:cut])
    _, provider = serve(events=events)
    provider.fetch()
    assert not provider.wait(0.3, threading.Event())
    assert events.connected.acquire(timeout=10)
    events.send(EVENTS_HEAD[cut:] + b"2\r\n{}\r\n")
    assert provider.wait(60, threading.Event())
    assert not provider.wait(0.01, threading.Event())


@pytest.mark.parametrize(
    "broken", [b"", b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", http({}, 403), bytes(100_000), EVENTS_HEAD]
)
def test_a_broken_stream_is_only_polling(serve: Serve, broken: bytes) -> None:
    """It is no news and no error, and the next wait tries again."""
    server, provider = serve(events=broken)
    provider.fetch()
    for tries in (1, 2):
        assert not provider.wait(0.6, threading.Event())
        assert provider.interval_s == 15
        assert server.count("/events") == tries


def test_the_end_of_a_settled_stream_is_news(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon went down, and what happened meanwhile was not told."""
    monkeypatch.setattr(docker_module, "SETTLED_S", 0.0)
    events = Events()
    server, provider = serve(events=events)
    provider.fetch()
    assert not provider.wait(0.3, threading.Event())
    assert events.connected.acquire(timeout=10)
    events.end()
    assert provider.wait(60, threading.Event())
    assert not provider.wait(0.3, threading.Event())
    assert server.count("/events") == 2


@pytest.mark.parametrize("works", [True, False])
def test_closing_or_stopping_ends_the_wait(serve: Serve, works: bool) -> None:
    """From another thread, with or without a stream."""
    events = Events()
    server, provider = serve(events=events if works else http({}, 403))
    provider.fetch()
    begin, stop, answers = time.monotonic(), threading.Event(), []
    for end in (stop.set, provider.close):
        thread = threading.Thread(target=lambda: answers.append(provider.wait(60, stop)))
        thread.start()
        if works and end == stop.set:
            assert events.connected.acquire(timeout=10)
        end()
        thread.join(10)
        stop.clear()
    assert answers == [False, False]
    assert time.monotonic() - begin < 10
    assert not provider.wait(60, threading.Event()), "closed for good"
    assert not provider._events.is_open
    assert server.count("/events") <= 2


def test_waiting_before_a_first_answer(tmp_path: Path) -> None:
    """There is nothing to listen to yet."""
    assert not DockerProvider(str(tmp_path / "none.sock")).wait(0.01, threading.Event())


def test_in_the_background(serve: Serve) -> None:
    """As the exporter runs it: the names are there, and an end comes at once."""
    _, provider = serve(events=Events())
    background = PolledProvider(provider)
    assert background.once()
    assert provider.interval_s == 15
    assert background.health.up
    assert background.names.containers[A].name == "web"
    background.stop()


def test_where_daemons_are(tmp_path: Path) -> None:
    """What exists, each once; another user's sockets only for root; a link to Podman is Podman."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        made = ("run/podman/podman.sock", "run/user/1000/docker.sock", "run/user/2/podman/podman.sock")
        for path in made:
            (root / path).parent.mkdir(parents=True)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(root / path))
        (root / "var").mkdir()
        (root / "var/run").symlink_to(root / "run")
        assert [(e.name, e.url.removeprefix(f"unix://{root}/")) for e in default_urls({}, 0, root)] == [
            ("podman", "run/podman/podman.sock"), ("docker", "run/user/1000/docker.sock"),
            ("podman", "run/user/2/podman/podman.sock"),
        ]  # fmt: skip
        assert [e.name for e in default_urls({}, 1000, root)] == ["podman", "docker"]
        assert [e.name for e in default_urls({}, 7, root)] == ["podman"]
        (root / "run/docker.sock").symlink_to(root / "run/podman/podman.sock")
        assert [e.url for e in default_urls({}, 7, root)] == [f"unix://{root}/var/run/docker.sock"]
        assert [e.name for e in default_urls({"DOCKER_HOST": f"unix://{root}/run/podman/podman.sock"}, 7, root)] == [
            "podman"
        ]
    assert default_urls({}, 0, tmp_path) == []


def test_a_socket_in_a_file_system_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It delays the start a little, and the sockets of others are found."""
    answered = threading.Event()
    look = docker._socket_at

    def blocking(path: Path) -> Path | None:
        if "/1001/" in str(path):
            answered.wait(60)
        return look(path)

    monkeypatch.setattr(docker, "_socket_at", blocking)
    monkeypatch.setattr(docker, "SOCKETS_S", 0.2)
    (tmp_path / "run" / "user" / "1001").mkdir(parents=True)
    other = tmp_path / "run" / "user" / "1000"
    other.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(other / "docker.sock"))
        try:
            found = default_urls({}, 0, tmp_path)
        finally:
            answered.set()

    assert [endpoint.url for endpoint in found] == [f"unix://{other}/docker.sock"]


def test_what_docker_host_says(tmp_path: Path) -> None:
    """The variables of Docker's own command line, with its certificates; unsupported addresses are left out."""
    host = {"DOCKER_HOST": "tcp://h:2375"}
    assert default_urls(host, 0, tmp_path) == [Endpoint("docker", "tcp://h:2375")]
    secure = {"DOCKER_HOST": "tcp://h:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/c"}
    assert default_urls(secure, 0, tmp_path) == [
        Endpoint("docker", "tcp://h:2376", "/c/ca.pem", "/c/cert.pem", "/c/key.pem")
    ]
    del secure["DOCKER_CERT_PATH"]
    assert default_urls(secure | {"HOME": "/h"}, 0, tmp_path)[0].ca == "/h/.docker/ca.pem"
    assert default_urls({"DOCKER_HOST": "ssh://h"}, 0, tmp_path) == []
