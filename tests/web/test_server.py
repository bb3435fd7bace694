"""The server on real sockets: good clients, bad clients, and far too many of them."""

from __future__ import annotations

import contextlib
import errno
import http.client
import logging
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gpuledger.errors import ListenError
from gpuledger.web import places
from gpuledger.web.http import Limits, Request, Response
from gpuledger.web.server import Server, Statistics
from tests.certificates import SHIPPED
from tests.waiting import wait_until
from tests.web.clients import BODY, SHORT, Address, connect, exchange, fetch, get, pages, read_all, serving


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "localhost:0", "0.0.0.0:0"])
def test_addresses(address: str) -> None:
    """Each kind of address is served, and the port that the kernel chose is known."""
    with serving(addresses=[address]) as server:
        assert fetch(server.addresses[0], "/healthz") == (200, b"ok\n")


def test_all_interfaces() -> None:
    """An address without a host is reached over IPv4 and over IPv6."""
    with serving(addresses=[":0"]) as server:
        port = server.addresses[0][1]

        assert fetch(("127.0.0.1", port), "/healthz")[0] == 200
        assert fetch(("::1", port), "/healthz")[0] == 200


def test_all_interfaces_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host without IPv6 an address without a host means IPv4."""
    real = socket.create_server

    def create(address: Address, *, family: int, **options: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6 here")
        return real(address, family=family, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_server", create)
    with serving(addresses=[":0"]) as server:
        assert server.addresses[0][0] == "0.0.0.0"
        assert fetch(("127.0.0.1", server.addresses[0][1]), "/healthz")[0] == 200


def test_several_addresses_and_a_given_socket() -> None:
    """Several addresses are served at once, together with a socket that was passed."""
    given = socket.create_server(("127.0.0.1", 0))
    with serving(addresses=["127.0.0.1:0", "[::1]:0"], sockets=[given]) as server:
        assert len(server.addresses) == 3
        assert [fetch(address, "/healthz")[0] for address in server.addresses] == [200] * 3


def test_port_in_use() -> None:
    """A taken port is named, with the remedy, and the listeners opened before it are closed again."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        server = Server([f"127.0.0.1:{other}", f"127.0.0.1:{port}"], pages)
        with pytest.raises(ListenError) as caught:
            server.bind()

    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: address already in use; "
        "stop the other program or choose another --web.listen-address"
    )
    assert server.addresses == []
    socket.create_server(("127.0.0.1", other)).close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("192.0.2.1:9400", "cannot listen on 192.0.2.1:9400: cannot assign requested address; choose an address of"),
        ("no-such-host.invalid:9400", "cannot listen on no-such-host.invalid:9400: .*; choose another"),
        ("9400", "'9400' is not a listen address: the port is missing; write :9400"),
    ],
)
def test_address_cannot_work(address: str, message: str) -> None:
    """A foreign, unknown or malformed address is one line with the remedy."""
    with pytest.raises(ListenError, match=message):
        Server([address], pages).bind()


def test_not_found() -> None:
    """The handler's own errors go out like any answer."""
    with serving() as server:
        status, body = fetch(server.addresses[0], "/nothing")

    assert status == 404
    assert b"try /broken" in body


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (b"hello\r\n\r\n", 400, b"GET /metrics HTTP/1.1"),
        (get("/%zz"), 400, b"%25"),
        (get("/healthz", "Content-Length: 3") + b"abc", 400, b"without one"),
        (get("/healthz", "Transfer-Encoding: chunked") + b"0\r\n\r\n", 400, b"without one"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405, b"Allow: GET, HEAD"),
        (b"GET /" + b"a" * 9000, 414, b"8192"),
        (get("/", *[f"X: {'a' * 1000}"] * 40), 431, b"16384"),
        (get("/", *["X: y"] * 101), 431, b"at most 100"),
        (get("/", version="2.0"), 505, b"use HTTP/1.1"),
        (b"GET / HTTP/1.1\r\nHo", 408, b"within 0.2 s"),
    ],
)
def test_refusals(sent: bytes, status: int, says: bytes) -> None:
    """What cannot be served is answered with its status and the remedy, and the connection ends."""
    with serving(limits=SHORT) as server:
        received = exchange(server, sent)

    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close\r\n" in received
    assert says in received
    assert received.endswith(b"\n")


def test_keep_alive() -> None:
    """One connection serves many requests, blank lines between them included."""
    with serving() as server:
        client = http.client.HTTPConnection(*server.addresses[0], timeout=3)
        for path in ["/healthz", "/metrics", "/stream", "/nothing", "/healthz"]:
            client.request("GET", path)
            response = client.getresponse()
            body = response.read()
            client.sock.sendall(b"\r\n")

            assert response.status == (404 if path == "/nothing" else 200)
            assert path not in ("/metrics", "/stream") or body == BODY
        client.close()

        assert server.statistics.accepted == 1


def test_requests_per_connection() -> None:
    """A connection ends after so many requests, and says so in the last answer."""
    with serving(limits=Limits(requests=3)) as server:
        received = exchange(server, get("/healthz") * 5)

    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b"Connection: close") == 1


def test_pipelining() -> None:
    """Requests sent in one go are answered in order."""
    with serving() as server:
        received = exchange(server, get("/healthz") + get("/nothing") + get("/healthz", "Connection: close"))

    found = [received.find(b"HTTP/1.1 200"), received.find(b"HTTP/1.1 404"), received.rfind(b"HTTP/1.1 200")]
    assert -1 not in found
    assert found == sorted(set(found))


def test_old_clients() -> None:
    """HTTP/1.0 gets a plain body and the end of the connection, also for a streamed page."""
    with serving() as server:
        plain = exchange(server, get("/metrics", version="1.0"))
        stream = exchange(server, get("/stream", version="1.0"))

    assert plain.endswith(b"\r\n\r\n" + BODY)
    assert stream.endswith(b"\r\n\r\n" + BODY)
    assert b"chunked" not in stream


def test_head() -> None:
    """HEAD gets headers only, and the connection can be used again."""
    with serving() as server:
        head = get("/metrics").replace(b"GET", b"HEAD", 1)
        received = exchange(server, head + get("/healthz", "Connection: close"))

    assert b"Content-Length: %d\r\n" % len(BODY) in received
    assert len(received) < 1000
    assert received.endswith(b"ok\n")


@pytest.mark.parametrize("path", ["/raises", "/exits"])
def test_handler_raises(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A handler that raises anything costs its own request a 500 and one log line."""
    with serving() as server:
        status, body = fetch(server.addresses[0], path)

        assert (status, body) == (500, b"the page could not be rendered; see the log of the exporter\n")
        assert fetch(server.addresses[0], "/healthz")[0] == 200
    assert len(caplog.records) == 1
    assert f"GET {path} failed: " in caplog.messages[0]


def test_handler_returns_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that returns no response, or an invalid one, counts as failed."""
    with serving(lambda _: Response(200, [("X", "a\r\nb")], b"")) as server:
        assert fetch(server.addresses[0], "/")[0] == 500
    with serving(lambda _: None) as server:  # type: ignore[arg-type, return-value]
        assert fetch(server.addresses[0], "/")[0] == 500
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_stream_raises(version: str, caplog: pytest.LogCaptureFixture) -> None:
    """A body that fails half way is cut, and cannot be taken for a complete one."""
    with serving() as server, connect(server, get("/broken", version=version)) as sock:
        received = b""
        with pytest.raises(ConnectionResetError):  # noqa: PT012  # the reset comes after some of the body
            while data := sock.recv(65536):
                received += data

    assert received.startswith(b"HTTP/1.1 200 OK")
    assert not received.endswith(b"0\r\n\r\n")
    assert len(caplog.records) == 1
    assert "GET /broken failed: ZeroDivisionError" in caplog.messages[0]


class Parts:
    """A live body: a part whenever the test gives one."""

    def __init__(self) -> None:
        self.given: queue.Queue[bytes | None] = queue.Queue()
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        """Until there is none."""
        while (part := self.given.get(timeout=5)) is not None:
            yield part

    def close(self) -> None:
        """The reader has left."""
        self.closed.set()


def test_live_parts_are_sent_as_they_come() -> None:
    """One after the other, for longer than an answer may take; then the connection ends in good order."""
    parts = Parts()
    with (
        serving(lambda _: Response(200, [], parts, live=True), limits=Limits(write_s=0.05)) as server,
        connect(server, get("/")) as sock,
    ):
        received = sock.recv(1000)
        for part in (b"one", b"two"):
            time.sleep(0.06)
            parts.given.put(part)
            assert sock.recv(1000) == b"3\r\n%b\r\n" % part
        parts.given.put(None)

        assert b"Connection: close\r\n" in received
        assert read_all(sock) == b"0\r\n\r\n"
        assert parts.closed.wait(3)


def test_a_live_reader_that_does_not_read_is_dropped() -> None:
    """It must not hold its place: each part has to go out within its time."""
    parts = Parts()
    with (
        serving(lambda _: Response(200, [], parts, live=True), limits=Limits(live_s=0.1)) as server,
        connect(server, get("/")),
    ):
        for _ in range(100):
            parts.given.put(BODY)

        assert parts.closed.wait(3)
        wait_until(lambda: server.statistics.open == 0, timeout_s=3)


def test_a_live_body_is_closed_though_nothing_was_read() -> None:
    """The client is gone before the first byte."""
    parts = Parts()
    parts.given.put(None)
    with serving(lambda _: Response(200, [], parts, live=True)) as server:
        exchange(server, get("/").replace(b"GET", b"HEAD", 1))

        assert parts.closed.wait(3)


def test_not_modified_has_no_length() -> None:
    """It would be that of the body that is not sent."""
    with serving(lambda _: Response(304, [("ETag", '"1"')], b"")) as server:
        received = exchange(server, get("/", "Connection: close"))

    assert received.startswith(b"HTTP/1.1 304 Not Modified\r\n")
    assert b"Content-Length" not in received


def test_stream_is_closed_when_the_client_leaves() -> None:
    """A generator is closed at once when its reader has gone, so that it holds nothing."""
    closed = threading.Event()

    def endless() -> Iterator[bytes]:
        try:
            while True:
                yield BODY
        finally:
            closed.set()

    with serving(lambda _: Response(200, [], endless())) as server:
        with connect(server, get("/")) as sock:
            sock.recv(1000)

        assert closed.wait(3)
        wait_until(lambda: server.statistics.open == 0, timeout_s=3)


def test_slow_reader() -> None:
    """A client that does not read its answer is cut at the write deadline."""
    with serving(limits=SHORT) as server, connect(server, get("/endless")):
        wait_until(lambda: server.statistics.accepted == 1, timeout_s=3)
        wait_until(lambda: server.statistics.open == 0, timeout_s=3)


def test_dribbler() -> None:
    """A head that drips in is cut at the deadline for the whole head, however alive it looks."""
    with serving(limits=SHORT) as server, connect(server) as sock:
        started = time.monotonic()
        sock.settimeout(0.02)
        received = b""
        while not received and time.monotonic() < started + 3:
            with contextlib.suppress(TimeoutError):
                sock.sendall(b"G")
                received = sock.recv(1000)

        assert received.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started > 0.15


@pytest.mark.parametrize("sent", [b"", get("/healthz")])
def test_silent_client(sent: bytes) -> None:
    """A client that sends nothing, at first or after a response, is closed without a response."""
    with serving(limits=SHORT) as server:
        received = exchange(server, sent)

    assert received.count(b"HTTP/1.1 ") == bool(sent)


def test_half_closed_client() -> None:
    """A client that closes its sending side after the request still gets the answer."""
    with serving() as server, connect(server, get("/healthz")) as sock:
        sock.shutdown(socket.SHUT_WR)

        assert read_all(sock).endswith(b"ok\n")


def test_idle_clients_hold_no_place() -> None:
    """Clients between two requests, or in the middle of one, take no thread, and health checks need none."""
    with serving(max_connections=1) as server, contextlib.ExitStack() as stack:
        halves = [stack.enter_context(connect(server, b"GET / HT")) for _ in range(8)]
        idle = [stack.enter_context(connect(server, get("/nothing"))) for _ in range(8)]
        assert all(client.recv(1000).startswith(b"HTTP/1.1 404") for client in idle)
        busy = stack.enter_context(connect(server, get("/endless")))
        assert busy.recv(1000)

        assert fetch(server.addresses[0], "/healthz")[0] == 200
        busy.close()
        for client in idle:
            client.sendall(get("/nothing"))
            assert client.recv(1000).startswith(b"HTTP/1.1 404")
        for client in halves:
            client.sendall(b"TP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 404")
        assert server.statistics.rejected == 0


def test_a_reader_that_takes_little_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads a few bytes now and then must not keep its place for the whole write deadline."""
    monkeypatch.setattr(places, "SLOW_S", 0.05)
    with serving(max_connections=1) as server, connect(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(get("/endless"))
        deadline = time.monotonic() + 10
        while server.statistics.evicted == 0 and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                slow.recv(100_000)
            with contextlib.suppress(OSError):
                connect(server, get("/metrics", "Connection: close")).close()
            time.sleep(0.02)

        assert server.statistics.evicted > 0


def test_silent_clients_are_dropped_before_a_waiting_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one address with many pending clients, the one that has sent a request stays."""
    monkeypatch.setattr("gpuledger.web.server._PENDING", 4)
    with serving(max_connections=1) as server, contextlib.ExitStack() as stack:
        busy = stack.enter_context(connect(server, get("/endless")))
        assert busy.recv(100)
        waiting = stack.enter_context(connect(server, get("/nothing")))
        wait_until(lambda: server.statistics.open == 2, timeout_s=3)
        silent = [stack.enter_context(connect(server, b"")) for _ in range(8)]
        wait_until(lambda: server.statistics.rejected == 5, timeout_s=3)
        busy.close()

        assert waiting.recv(1000).startswith(b"HTTP/1.1 404")
        assert len(silent) == 8


def test_clients_that_do_not_read_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they occupy all threads, long before the write deadline."""
    monkeypatch.setattr(places, "SLOW_S", 0.05)
    with serving(max_connections=2) as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connect(server, get("/endless")))

        wait_until(lambda: fetch(server.addresses[0], "/metrics")[0] == 200, timeout_s=3)
        assert server.statistics.evicted in (1, 2)  # a client that still waits for a thread evicts once more


def test_handlers_know_the_address() -> None:
    """Of the client, without its port."""
    with serving(lambda request: Response.text(200, request.address)) as server:
        assert fetch(server.addresses[0], "/") == (200, b"127.0.0.1\n")


def test_full() -> None:
    """While all clients are served, a new client gets a 503; afterwards there is room again."""
    release = threading.Event()
    entered = threading.Semaphore(0)

    def wait(_: Request) -> Response:
        entered.release()
        release.wait(5)
        return Response.text(200, "done")

    with serving(wait, limits=Limits(queue_s=0.01), max_connections=2) as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server, get("/", "Connection: close"))) for _ in range(2)]
        assert entered.acquire(timeout=3)
        assert entered.acquire(timeout=3)
        for _ in range(20):  # more than are kept lingering
            received = exchange(server, get("/"))
            assert received.startswith(b"HTTP/1.1 503 ")
            assert b"try again" in received
        release.set()
        assert all(read_all(client).endswith(b"done\n") for client in clients)
        wait_until(lambda: server.statistics.open == 0, timeout_s=3)
        assert fetch(server.addresses[0], "/")[0] == 200
        wait_until(lambda: server.statistics == Statistics(open=0, accepted=23, evicted=0, rejected=20), timeout_s=3)


def drip(server: Server, stop: threading.Event) -> None:
    """A client that sends a byte now and then, and never a request."""
    with connect(server) as sock:
        while not stop.wait(0.01):
            sock.sendall(b"G")


def leave(server: Server, stop: threading.Event) -> None:
    """A client that leaves in the middle of a streamed answer."""
    with connect(server, get("/endless")) as sock:
        sock.recv(1000)
    stop.wait(0.005)


def shout(server: Server, stop: threading.Event) -> None:
    """A client with a head that is too large."""
    exchange(server, get("/", *[f"X: {'a' * 1000}"] * 40))
    stop.wait(0.005)


def again(abuse: Callable[[Server, threading.Event], None], server: Server, stop: threading.Event) -> None:
    """The same, over and over, whatever the server does to it."""
    while not stop.is_set():
        with contextlib.suppress(OSError):
            abuse(server, stop)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/-/healthy", "/-/ready"])
def test_health_checks_need_no_thread(path: str) -> None:
    """The accept thread answers them, because all other threads may be busy."""
    names: list[str] = []

    def handler(_: Request) -> Response:
        names.append(threading.current_thread().name)
        return Response.text(200, "ok")

    with serving(handler) as server:
        assert fetch(server.addresses[0], path)[0] == 200

    assert names == ["http-accept"]


def test_abuse() -> None:
    """200 half-open clients, dribblers, huge heads and early leavers together do not delay the health check."""
    most, threads, stop = 32, threading.active_count(), threading.Event()
    took, peak = [], 0
    with serving(max_connections=most) as server, contextlib.ExitStack() as stack:
        abusers = [threading.Thread(target=again, args=(a, server, stop)) for a in (drip, drip, leave, leave, shout)]
        for abuser in abusers:
            abuser.start()
        try:
            for at in range(200):
                stack.enter_context(connect(server, b"GET /metrics HTTP/1.1\r\nHost"[: at % 28]))
                if at % 10 == 9:
                    started = time.monotonic()
                    assert fetch(server.addresses[0], "/healthz") == (200, b"ok\n")
                    took.append(time.monotonic() - started)
                peak = max(peak, threading.active_count())
        finally:
            stop.set()
            for abuser in abusers:
                abuser.join()

        assert max(took) < 1.0
        assert peak <= threads + len(abusers) + most + 4  # the accept thread, and threads that are ending
        assert server.statistics.rejected == 0


def test_no_more_files(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without a free file descriptor the accept thread logs it once, frees one, pauses and continues."""
    real = socket.socket.accept
    failures: list[float] = []

    def accept(listener: socket.socket) -> tuple[socket.socket, Address]:
        if len(failures) < 3:
            failures.append(time.monotonic())
            raise OSError(errno.EMFILE, "too many open files")
        return real(listener)

    with serving() as server, connect(server, get("/healthz")) as idle:
        assert idle.recv(1000).endswith(b"ok\n")
        monkeypatch.setattr(socket.socket, "accept", accept)

        assert fetch(server.addresses[0], "/healthz")[0] == 200
        assert idle.recv(1000) == b""
    assert len(caplog.records) == 1
    assert "too many open files" in caplog.messages[0].lower()
    assert failures[2] - failures[0] > 0.15


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no thread can be started the client gets a 503, and the place is free again."""
    with serving() as server:
        with monkeypatch.context() as patch:

            def start(_: threading.Thread) -> None:
                raise RuntimeError("can't start new thread")

            patch.setattr(threading.Thread, "start", start)
            assert exchange(server, get("/metrics")).startswith(b"HTTP/1.1 503 ")

        assert fetch(server.addresses[0], "/healthz")[0] == 200
        assert server.statistics.rejected == 1


def test_stop_closes_idle_connections() -> None:
    """Idle and half-open clients do not delay the end, and no client can connect afterwards."""
    with serving() as server, connect(server, get("/healthz")) as idle, connect(server, b"GE") as half:
        address = server.addresses[0]
        assert idle.recv(1000).endswith(b"ok\n")
        wait_until(lambda: server.statistics.accepted == 2, timeout_s=3)
        started = time.monotonic()
        server.stop(grace_s=5)

        assert time.monotonic() - started < 2.5
        assert idle.recv(1000) == b""
        assert read_all(half) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        server.stop()  # a second time does nothing


def test_stop_waits_for_answers() -> None:
    """An answer that is nearly ready is still sent, and the end does not take longer than it needs."""
    entered, release = threading.Event(), threading.Event()

    def slow(_: Request) -> Response:
        entered.set()
        release.wait(3)
        return Response.text(200, "done")

    with serving(slow) as server, connect(server, get("/")) as sock:
        assert entered.wait(3)
        threading.Timer(0.1, release.set).start()
        started = time.monotonic()
        server.stop(grace_s=5)

        assert time.monotonic() - started < 2.5
        assert read_all(sock).endswith(b"done\n")


def test_stop_cuts_hanging_answers() -> None:
    """A handler that hangs and a client that does not read end with the grace period."""
    release = threading.Event()

    def hang(request: Request) -> Response:
        if request.path == "/hang":
            release.wait(5)
        return pages(request)

    with (
        serving(hang) as server,
        connect(server, get("/hang")) as hanging,
        connect(server, get("/endless")),
    ):
        wait_until(lambda: server.statistics.accepted == 2, timeout_s=3)
        started = time.monotonic()
        server.stop(grace_s=0.3)

        assert time.monotonic() - started < 2.5
        assert hanging.recv(1000) == b""
        release.set()
        wait_until(lambda: server.statistics.open == 0, timeout_s=3)


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server with a certificate, and a client that trusts it."""
    both = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    both[0].load_cert_chain(SHIPPED / "server.crt", SHIPPED / "server.key")
    both[1].load_verify_locations(SHIPPED / "server.crt")
    both[1].check_hostname = False
    return both


def test_tls() -> None:
    """TLS clients are served while others start a handshake and say nothing, or talk nonsense."""
    ours, theirs = tls_contexts()

    def wrap(sock: socket.socket) -> ssl.SSLSocket:
        return ours.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    with serving(max_connections=4, wrap=wrap) as server, contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(connect(server, b"\x16\x03\x01"))
        assert b"HTTP/1.1" not in exchange(server, get("/healthz"))
        with theirs.wrap_socket(connect(server)) as sock:
            sock.sendall(get("/metrics", "Connection: close"))
            received = b""
            with contextlib.suppress(ssl.SSLEOFError):
                while data := sock.recv(65536):
                    received += data

        assert received.endswith(b"\r\n\r\n" + BODY)
