"""A small HTTP/1.1 client for one server on a unix or TCP socket: GET and POST, one connection a call.

The standard library's client would do, but it costs megabytes of memory for what is one page here. Every call has one
deadline and one size limit; whatever the server sends, a call ends with an answer, an OSError or an HttpError.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl  # megabytes that a unix socket does not need

HEAD_LIMIT = 64 << 10
READ_SIZE = 256 << 10
TLS_PORT = 2376
URL = re.compile(
    r"(https?)://(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9_.-]{1,253}))(?::([0-9]{1,5}))?((?:/[!-~]*)?)", re.ASCII
)
PORTS = {"http": 80, "https": 443}


class HttpError(Exception):
    """The server said something that is not an HTTP answer of an acceptable size."""


class TooLargeError(HttpError):
    """The answer has more bytes than we take."""


class HalfAnswerError(HttpError):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a path, or else a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse_address(url: str) -> Address:
    """Of `unix:///path`, a bare path, `tcp://host:port`, `http://` or `https://`; ValueError for anything else."""
    scheme, separator, rest = url.partition("://")
    path = url if not separator else rest if scheme == "unix" else ""
    if path.startswith("/") and "\0" not in path:
        return Address(path=path)
    host, colon, port = rest.rstrip("/").rpartition(":")
    is_known = scheme in ("tcp", "http", "https") and host and host.isascii() and host.isprintable()
    if not is_known or not colon or not port.isdecimal() or not 0 < int(port[:6]) < 1 << 16 or len(port) > 5:
        raise ValueError(f"{url!r} is no address: give unix:///path, tcp://host:port or https://host:port")
    return Address(host=host.strip("[]"), port=int(port), tls=scheme == "https" or int(port) == TLS_PORT)


def parse_url(text: str, port: int | None = None) -> tuple[Address, str] | None:
    """Address and path of an http or https URL, with this port where it names none; None when it is no such URL."""
    found = URL.fullmatch(text)
    if found is None or not 0 < int(found[4] or 1) < 1 << 16:
        return None
    scheme = found[1]
    port = int(found[4] or port or PORTS[scheme])
    return Address(host=found[2] or found[3], port=port, tls=scheme == "https"), found[5]


def holds_login(url: str) -> bool:
    """Whether there is a user name or a password in it."""
    return "@" in url.partition("://")[2].partition("/")[0]


class Client:
    """Asks one server."""

    def __init__(
        self, url: str | Address, *, ca: str = "", cert: str = "", key: str = "", insecure: bool = False
    ) -> None:
        address = parse_address(url) if isinstance(url, str) else url
        self._files = (ca, cert, key)
        self._insecure = insecure
        self._context: ssl.SSLContext | None = None
        self._tls = bool(address.host and (address.tls or any(self._files)))
        self.address = address

    def get(self, target: str, timeout_s: float, limit: int) -> tuple[int, bytes]:
        """The status and the body of one answer; at most `limit` bytes, at most `timeout_s` seconds in all."""
        deadline = time.monotonic() + timeout_s
        with self.open(target, timeout_s) as connection:
            return _Reader(connection, deadline).answer(limit)

    @contextmanager
    def stream(
        self, target: str, timeout_s: float, limit: int, *headers: str, form: bytes | None = None
    ) -> Iterator[tuple[int, dict[str, str], Iterator[bytes]]]:
        """The status, the headers and the body as it arrives, for answers too large to be held twice.

        With a form it is a POST.
        """
        deadline = time.monotonic() + timeout_s
        with self.open(target, timeout_s, *headers, form=form) as connection:
            reader = _Reader(connection, deadline)
            status, said = reader.head()
            yield status, said, reader.body(said, limit)

    def open(self, target: str, timeout_s: float, *headers: str, form: bytes | None = None) -> socket.socket:
        """A connection on which the request is sent and nothing is read yet."""
        deadline = time.monotonic() + timeout_s
        method = "GET" if form is None else "POST"
        if form is not None:
            headers = (*headers, "Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(form)}")
        connection = self._connect(deadline)
        try:
            if self._tls:
                _limit(connection, deadline)
                connection = self._secure(connection)
            _limit(connection, deadline)
            lines = (f"{method} {target} HTTP/1.1", f"Host: {self._host()}", "Connection: close", *headers, "", "")
            connection.sendall("\r\n".join(lines).encode() + (form or b""))
        except BaseException:
            connection.close()
            raise
        return connection

    def _host(self) -> str:
        host = self.address.host
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{self.address.port}" if host else "localhost"

    def _connect(self, deadline: float) -> socket.socket:
        address = self.address
        if address.path:
            return _connected(socket.AF_UNIX, address.path, deadline)
        failed: OSError = OSError(f"{address.host} has no address")
        # As bytes, or else the name goes through IDNA and its tables.
        for family, _, _, _, where in socket.getaddrinfo(address.host.encode(), address.port, type=socket.SOCK_STREAM):
            try:
                return _connected(family, where, deadline)
            except OSError as error:
                failed = error
        raise failed

    def _secure(self, connection: socket.socket) -> socket.socket:
        import ssl

        ca, cert, key = self._files
        if self._context is None:
            try:
                context = ssl.create_default_context(cafile=ca or None)
                if cert:
                    context.load_cert_chain(cert, key or None)
                if self._insecure:
                    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            except OSError as error:
                files = ", ".join(file for file in self._files if file)
                raise OSError(f"the TLS files {files} cannot be used: {error.strerror or error}") from error
            self._context = context
        return self._context.wrap_socket(connection, server_hostname=self.address.host)


def _connected(family: int, where: object, deadline: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        _limit(connection, deadline)
        connection.connect(where)  # type: ignore[arg-type]  # what getaddrinfo gave, or a path
    except BaseException:
        connection.close()
        raise
    return connection


def _limit(connection: socket.socket, deadline: float) -> None:
    """The next call may take what is left of the whole, so that a server that drips bytes cannot stretch it."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    connection.settimeout(left_s)


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """The status and the headers, in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not (len(status) == 3 and status.isascii() and status.isdigit()):
        raise HttpError(f"did not answer in HTTP but with {first[:60]!r}")
    headers = (line.partition(":") for line in lines)
    return int(status), {name.strip().lower(): value.strip().lower() for name, _, value in headers}


class _Reader:
    """Reads one answer."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._bytes = bytearray()

    def answer(self, limit: int) -> tuple[int, bytes]:
        status, headers = self.head()
        return status, b"".join(self.body(headers, limit))

    def head(self) -> tuple[int, dict[str, str]]:
        status = 100
        while status < 200:  # 100 Continue and its like announce the real one
            status, headers = parse_head(self._until(b"\r\n\r\n"))
        return status, headers

    def body(self, headers: dict[str, str], limit: int) -> Iterator[bytes]:
        """In pieces, which end where the answer says that it ends, or with an HttpError."""
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", ""):
            yield from self._chunked(limit)
        elif length is None:
            yield from self._rest(limit)
        elif not (length.isascii() and length.isdigit() and len(length) < 20):
            raise HttpError(f"says that its answer has {length[:60]!r} bytes")
        else:
            yield from self._pieces(_checked(int(length), limit))

    def _chunked(self, limit: int) -> Iterator[bytes]:
        taken = 0
        while True:
            try:
                line = self._until(b"\r\n")
            except HttpError:
                raise HalfAnswerError("ended in the middle of an answer") from None
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                size = -1
            if size < 0:
                raise HttpError(f"sent {line[:60]!r} where the size of a chunk belongs")
            taken = _checked(taken + size, limit)
            if size == 0:  # no trailers are waited for: the connection ends here
                return
            yield from self._pieces(size)
            if self._exactly(2) != b"\r\n":
                raise HttpError("sent a chunk longer than it said")

    def _rest(self, limit: int) -> Iterator[bytes]:
        taken, more = 0, True
        while more:
            taken = _checked(taken + len(self._bytes), limit)  # the head may have come with too much already
            yield self._take(len(self._bytes))
            more = self._more()

    def _pieces(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._bytes and not self._more():
                raise HalfAnswerError("ended in the middle of an answer")
            piece = self._take(min(count, len(self._bytes)))
            count -= len(piece)
            yield piece

    def _exactly(self, count: int) -> bytes:
        while len(self._bytes) < count:
            if not self._more():
                raise HalfAnswerError("ended in the middle of an answer")
        return self._take(count)

    def _until(self, end: bytes) -> bytes:
        looked = 0
        while (at := self._bytes.find(end, looked)) < 0:
            looked = max(0, len(self._bytes) - len(end))
            if looked > HEAD_LIMIT or not self._more():
                raise HttpError("did not answer in HTTP" if looked else "ended without an answer")
        head = self._take(at)
        self._take(len(end))
        return head

    def _take(self, count: int) -> bytes:
        taken = bytes(self._bytes[:count])
        del self._bytes[:count]
        return taken

    def _more(self) -> bool:
        _limit(self._connection, self._deadline)
        received = self._connection.recv(READ_SIZE)
        self._bytes += received
        return bool(received)


def _checked(size: int, limit: int) -> int:
    if size > limit:
        raise TooLargeError(f"sent an answer of more than {limit >> 20} MiB")
    return size
