"""Attackers of the soak test, besides clients that send nonsense: each takes places, time or memory in its own way."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.hostile.slow import slow_readers
from tests.hostile.test_daemons import USERS, daemon
from tests.hostile.test_starving import tiny_requests

EVENTS = b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n"
GROUPS = ["exporter", "gpu", "mig", "process", "container", "allocation", "tokens", "activity", "engines"]
TINY_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n#\r\n" + b"1\r\n \r\n" * 50_000
NONSENSE = [
    b"", b"\0" * 5000, b"HTTP/1.1 100 Continue\r\n\r\n" * 50, b"HTTP/1.1 302 X\r\nLocation: /\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b"\xff" * 9,
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 99,
    b"HTTP/1.1 429 X\r\nRetry-After: -1\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 400 X\r\nContent-Length: 4\r\n\r\nnope",
]  # fmt: skip


@contextmanager
def server(answer: Callable[[], bytes]) -> Iterator[int]:
    """A server that answers each request and closes; its port."""

    def run() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.settimeout(2)
                client.recv(65536)
                client.sendall(answer())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def servers() -> Iterator[tuple[str, ...]]:
    """A token server, an OTLP collector and the daemons of two users that attack; the flags that name them."""
    chosen = random.Random(34)
    with ExitStack() as stack:
        tokens = stack.enter_context(server(lambda: TINY_CHUNKS))
        collector = stack.enter_context(server(lambda: chosen.choice(NONSENSE)))
        daemons = [stack.enter_context(daemon(uid, 9000)) for uid in USERS[:2]]
        yield (
            f"--tokens.scrape=ml/evil=http://127.0.0.1:{tokens}/metrics",
            f"--otlp.endpoint=http://127.0.0.1:{collector}",
            *(f"--docker.host={url}" for url in daemons),
        )


def random_groups(port: int, ended: threading.Event) -> None:
    """Read random groups without gzip, again and again."""
    chosen = random.Random(port)
    while not ended.wait(0.2):
        query = "&".join(f"collect[]={name}" for name in chosen.sample(GROUPS, chosen.randint(1, len(GROUPS))))
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5, ("127.0.2.9", 0)) as client:
            client.sendall(f"GET /metrics?{query} HTTP/1.0\r\n\r\n".encode())
            while client.recv(1 << 20):
                pass


@contextmanager
def clients(port: int, ended: threading.Event) -> Iterator[None]:
    """64 addresses with a tiny request every 0.9 s, readers that do not read, and readers of random groups."""
    thread = threading.Thread(target=random_groups, args=(port, ended), daemon=True)
    thread.start()
    with tiny_requests(port), slow_readers(port, "127.0.3.1", 16), slow_readers(port, "127.0.3.2", 8, EVENTS):
        yield
    ended.set()
    thread.join(10)


def probes(port: int, ended: threading.Event, timeout_s: float) -> tuple[int, int]:
    """Health checks like the kubelet's, once a second until the end: how many there were, and how many failed."""
    count = failed = 0
    while not ended.wait(1):
        count, failed = count + 1, failed + 1
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout_s, ("127.0.0.9", 0)) as client:
            client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            failed -= client.recv(4096).startswith(b"HTTP/1.1 200")
    return count, failed
