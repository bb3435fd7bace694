"""A scraper with negligible cost, so that the times are those of the exporter."""

from __future__ import annotations

import contextlib
import socket
import time
import zlib
from collections.abc import Sequence

PLAIN = "text"
PROMETHEUS = "OpenMetrics + gzip"
HEADERS = {
    PLAIN: "Accept: text/plain;version=0.0.4\r\n",
    # Default headers of Prometheus 3.
    PROMETHEUS: (
        "Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
        "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n"
        "Accept-Encoding: gzip\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n"
    ),
}
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Scraper:
    """Scrapes over one connection as long as the exporter keeps it open. A new connection is part of the scrape."""

    def __init__(self, port: int, kind: str, source: str = "127.0.0.1") -> None:
        self._port, self._source = port, source
        self._request = (
            f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: bench\r\n{HEADERS[kind]}\r\n".encode()
        )
        self._sock: socket.socket | None = None
        self.body = b""
        """Last response, decompressed."""

    def scrape(self) -> float:
        """Seconds from the request to the last byte of the response."""
        started = time.perf_counter()
        sock = self._sock or self._connect()
        sock.sendall(self._request)
        answer = bytearray()
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += _receive(sock)
        head, body = bytes(answer[:end]).decode("latin-1").lower(), answer[end + 4 :]
        if not head.split(" ", 2)[1].startswith("200"):
            raise RuntimeError(f"the exporter answers {head.splitlines()[0]}")
        length = _header(head, "content-length")
        chunked = _header(head, "transfer-encoding") == "chunked"
        ended = False
        while not (len(body) >= int(length) if length else chunked and body.endswith(LAST_CHUNK)):
            data = sock.recv(1 << 20)
            if not data:
                ended = True
                break
            body += data
        took = time.perf_counter() - started
        if ended or _header(head, "connection") == "close" or head.startswith("http/1.0"):
            self.close()
        self.body = _unpack(bytes(body), chunked=chunked, gzip=_header(head, "content-encoding") == "gzip")
        return took

    def values(self) -> dict[str, float]:
        """All series of the last response."""
        lines = self.body.decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {series: float(value) for series, _, value in pairs}

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _connect(self) -> socket.socket:
        self._sock = socket.create_connection(("127.0.0.1", self._port), 30, (self._source, 0))
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._sock


def wait_until_ready(port: int, patience_s: float = 20.0) -> None:
    """Wait until the exporter answers a scrape."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, RuntimeError):
            scraper = Scraper(port, PLAIN)
            scraper.scrape()
            scraper.close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"nothing answers on port {port}; see the logs under bench/.work")


def quantile(values: Sequence[float], q: float) -> float:
    """Quantile `q` of the values (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _receive(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 18)
    if not data:
        raise ConnectionError("the exporter closed the connection")
    return data


def _header(head: str, name: str) -> str:
    for line in head.splitlines()[1:]:
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""


def _unpack(body: bytes, *, chunked: bool, gzip: bool) -> bytes:
    if chunked:
        parts, rest = [], body
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            parts.append(rest[:length])
            rest = rest[length + 2 :]
        body = b"".join(parts)
    return zlib.decompress(body, zlib.MAX_WBITS | 16) if gzip else body
