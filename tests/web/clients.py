"""A running server with a few pages, and clients for it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence

from gpuledger.web.http import DEFAULT_LIMITS, Limits, Request, Response, parse_head
from gpuledger.web.responses import not_found
from gpuledger.web.server import Server

Address = tuple[str, int]
BODY = b"gpuledger_up 1\n" * 20_000  # 300 kB, more than one send takes on a slow reader
SHORT = Limits(head_s=0.2, idle_s=0.2, write_s=0.3)

PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
"""The Accept header of Prometheus."""


def exit_now() -> bytes:
    """A page that wants to end the process."""
    raise SystemExit(3)


PAGES: dict[str, Callable[[], bytes | Iterator[bytes]]] = {
    "/healthz": lambda: b"ok\n",
    "/metrics": lambda: BODY,
    "/stream": lambda: (BODY[at : at + 15] for at in range(0, len(BODY), 15)),
    "/endless": lambda: iter(lambda: BODY, b""),
    "/broken": lambda: (BODY if at < 3 else 1 // 0 for at in range(9)),  # type: ignore[misc]
    "/raises": lambda: str(1 // 0).encode(),
    "/exits": exit_now,
}


def pages(request: Request) -> Response:
    """The handler of most tests."""
    if request.path not in PAGES:
        return not_found(request.path, sorted(PAGES))
    return Response(200, [("Content-Type", "text/plain")], PAGES[request.path]())


@contextlib.contextmanager
def serving(
    handler: Callable[[Request], Response] = pages,
    addresses: Sequence[str] = ("127.0.0.1:0",),
    *,
    limits: Limits = DEFAULT_LIMITS,
    max_connections: int = 64,
    wrap: Callable[[socket.socket], ssl.SSLSocket] | None = None,
    sockets: Sequence[socket.socket] = (),
) -> Iterator[Server]:
    """A running server on a free port."""
    server = Server(addresses, handler, limits=limits, max_connections=max_connections, wrap=wrap, sockets=sockets)
    server.start()
    try:
        yield server
    finally:
        server.stop(0.2)


def connect(server: Server, sent: bytes = b"") -> socket.socket:
    """A client that has sent some bytes."""
    sock = socket.create_connection(server.addresses[0], timeout=3)
    sock.sendall(sent)
    return sock


def read_all(sock: socket.socket) -> bytes:
    """All bytes until the server closes, or resets, the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            received += data
    return received


def exchange(server: Server, sent: bytes) -> bytes:
    """What comes back for some bytes."""
    with connect(server, sent) as sock:
        return read_all(sock)


def fetch(address: Address, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body through another implementation of HTTP."""
    client = http.client.HTTPConnection(*address, timeout=3)
    try:
        client.request(method, path, headers={"Connection": "close"})
        response = client.getresponse()
        return response.status, response.read()
    finally:
        client.close()


def get(path: str, *headers: str, version: str = "1.1") -> bytes:
    """The bytes of a request."""
    return "\r\n".join([f"GET {path} HTTP/{version}", "Host: here", *headers, "", ""]).encode()


def parsed(line: str = "GET / HTTP/1.1", *headers: str) -> Request:
    """A parsed request, with a Host header."""
    return parse_head("\r\n".join([line, "Host: here", *headers, "", ""]).encode("latin-1"))
