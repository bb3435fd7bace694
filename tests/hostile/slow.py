"""Clients that request a page and do not read it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

SCRAPES = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 40
"""Pipelined, because the kernel buffers up to 4 MB of responses that the client does not read."""


def _open(port: int, source: str, request: bytes) -> socket.socket:
    """A connection that never blocks this thread and takes few bytes of the response."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.bind((source, 0))
    sock.settimeout(2)
    sock.connect(("127.0.0.1", port))
    sock.setblocking(False)
    with contextlib.suppress(OSError):
        sock.send(request)
    return sock


@contextlib.contextmanager
def slow_readers(port: int, source: str, count: int, request: bytes = SCRAPES) -> Iterator[None]:
    """Hold `count` connections from the address `source`, and replace each one that the server closes."""
    full, stop = threading.Event(), threading.Event()

    def reconnect() -> None:
        held: dict[int, socket.socket] = {}
        with contextlib.closing(select.epoll()) as poll:
            while not stop.is_set():
                while len(held) < count and not stop.is_set():
                    with contextlib.suppress(OSError):
                        sock = _open(port, source, request)
                        held[sock.fileno()] = sock
                        poll.register(sock, select.EPOLLRDHUP)
                full.set()
                for number, _ in poll.poll(0.05):
                    poll.unregister(number)
                    held.pop(number).close()
        for sock in held.values():
            sock.close()

    thread = threading.Thread(target=reconnect)
    thread.start()
    try:
        full.wait(20)
        yield
    finally:
        stop.set()
        thread.join()
