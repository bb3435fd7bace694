"""An HTTP/1.1 client for one server on a unix or TCP socket, with one connection per request.

The standard library's client takes megabytes of memory. Whatever a server sends, a call ends before its deadline with a
response of limited size or with an HttpError, which quotes nothing of the response: problems are public.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

from gpuledger.errors import HttpError
from gpuledger.net.address import Address
from gpuledger.net.answers import http_error
from gpuledger.net.tls import ClientTls, TlsSettings
from gpuledger.runtime.deadline import Deadline

HEAD_LIMIT = 64 << 10
MOST_HEADS = 10
FEW_CHUNKS, SMALL_CHUNK = 1000, 256
"""A response may have this many chunks, and one more per SMALL_CHUNK bytes: each costs 2 us of CPU time. Go's servers
(dcgm-exporter, Docker, Kubernetes, Prometheus) fill chunks of 2 KiB, and an event of Docker has 300 bytes."""
READ_SIZE = 256 << 10
PROTOCOL = b"HTTP/1."
NO_HTTP = "did not answer in HTTP"
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;.*)?", re.DOTALL)
FORM = "Content-Type: application/x-www-form-urlencoded"
NO_TLS = TlsSettings()


class Client:
    """Sends requests to one server."""

    def __init__(self, address: Address, *, name: str = "", tls: TlsSettings = NO_TLS) -> None:
        self.address = address
        self.name = name or str(address)
        """The server in messages."""
        is_secure = bool(address.host and (address.tls or tls.files))
        self._tls = ClientTls(tls) if is_secure else None

    def get(self, target: str, timeout_s: float, limit: int, *headers: str) -> tuple[int, bytes]:
        """Status and body of one response of at most `limit` bytes; raises HttpError."""
        with self.stream(target, timeout_s, limit, *headers) as response:
            return response.status, response.body()

    @contextmanager
    def stream(
        self, target: str, timeout_s: float, limit: int, *headers: str, body: bytes | None = None
    ) -> Iterator[Response]:
        """A response after its head has arrived; its body is read as it arrives. POST if the request has a body."""
        response = self.open(target, Deadline(timeout_s), limit, *headers, body=body)
        try:
            response.read_head()
            yield response
        finally:
            response.close()

    def open(
        self, target: str, deadline: Deadline, limit: int | None, *headers: str, body: bytes | None = None
    ) -> Response:
        """Send a request. The caller reads the response and closes it; `limit=None` is for streams without an end."""
        method = "GET" if body is None else "POST"
        if body is not None:
            headers = (*headers, f"Content-Length: {len(body)}")
        lines = (f"{method} {target} HTTP/1.1", f"Host: {self.address.authority}", "User-Agent: gpuledger",
                 "Connection: close", *headers, "", "")  # fmt: skip
        try:
            connection = self._connect(deadline)
            try:
                if self._tls is not None:
                    connection.settimeout(deadline.left_s())
                    connection = self._tls.wrap(connection, self.address.host)
                connection.settimeout(deadline.left_s())
                # A server that refuses a client certificate closes before it reads the request; its alert tells why.
                with suppress(ConnectionError):
                    connection.sendall("\r\n".join(lines).encode() + (body or b""))
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise http_error(error, self.name, deadline, self.address.path) from error
        return Response(connection, deadline, self.name, limit)

    def _connect(self, deadline: Deadline) -> socket.socket:
        address = self.address
        if address.path:
            return _connected(socket.AF_UNIX, address.path, deadline)
        failure: OSError = OSError(f"{address.host} has no address")
        # As bytes: a str goes through IDNA and its tables.
        for family, _, _, _, place in socket.getaddrinfo(address.host.encode(), address.port, type=socket.SOCK_STREAM):
            try:
                return _connected(family, place, deadline)
            except OSError as error:
                failure = error
        raise failure


def _connected(family: int, place: object, deadline: Deadline) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(deadline.left_s())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.connect(place)  # type: ignore[arg-type]  # a path, or an address of getaddrinfo
    except BaseException:
        connection.close()
        raise
    return connection


class Response:
    """A response that is read as it arrives. One thread reads; any thread may close it."""

    def __init__(self, connection: socket.socket, deadline: Deadline, name: str, limit: int | None) -> None:
        self._connection = connection
        self._deadline = deadline
        self._name = name
        self._parser = ResponseParser(limit)
        self._early = b""
        """Body bytes that came with the head."""
        self._lock = threading.Lock()
        """Held while the socket is read, so that no other thread closes it meanwhile."""
        self._closed = False

    @property
    def status(self) -> int:
        """The status code; 0 until the head has arrived."""
        return self._parser.status

    @property
    def headers(self) -> dict[str, str]:
        """Names and values in lower case."""
        return self._parser.headers

    @property
    def done(self) -> bool:
        """Whether the whole body has arrived."""
        return self._parser.done

    def read_head(self) -> None:
        """Wait for the status and the headers, until the deadline."""
        while not self.status:
            self._early += self._next()

    def pieces(self) -> Iterator[bytes]:
        """The body as it arrives, until the deadline."""
        self.read_head()
        early, self._early = self._early, b""
        yield early
        while not self.done:
            yield self._next()

    def body(self, limit: int | None = None) -> bytes:
        """The whole body, which arrives before the deadline; of at most `limit` bytes."""
        body = bytearray()
        try:
            for piece in self.pieces():
                body += piece
                if limit is not None and len(body) > limit:
                    raise HttpError(f"{self._name} sent an answer of more than {limit >> 20} MiB", kind="size")
            return bytes(body)
        finally:
            body.clear()  # the traceback of an error keeps this frame

    def poll(self, timeout_s: float) -> bytes | None:
        """Body bytes that arrive within this time, regardless of the deadline; None if nothing arrives."""
        early, self._early = self._early, b""
        if early or self.done:
            return early
        try:
            return self._receive(timeout_s)
        except TimeoutError:
            return None

    def close(self) -> None:
        """Close the connection, or let the thread that is reading it do so."""
        self._closed = True
        with suppress(OSError):
            # Not the method of a TLS socket, which would change objects that the reader uses.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
        if self._lock.acquire(blocking=False):
            try:
                self._connection.close()
            finally:
                self._lock.release()

    def _next(self) -> bytes:
        try:
            return self._receive(self._deadline.left_s())
        except TimeoutError as error:
            raise http_error(error, self._name, self._deadline) from error

    def _receive(self, timeout_s: float) -> bytes:
        try:
            with self._lock:
                self._connection.settimeout(timeout_s)
                received = self._connection.recv(READ_SIZE)
            return self._parser.feed(received)
        except TimeoutError:
            raise
        except OSError as error:
            raise http_error(error, self._name, self._deadline) from error
        except HttpError as error:
            raise HttpError(f"{self._name} {error}", kind=error.kind) from None
        finally:
            if self._closed:
                self.close()


class ResponseParser:
    """Parses one response in pieces of any size. Does no I/O; the caller adds the server's name to error messages."""

    def __init__(self, limit: int | None) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self._limit = limit
        self._buffer = bytearray()
        self._is_closed = False
        self._size = 0
        self._pieces: list[bytes] = []
        self._steps = self._parse()

    def feed(self, data: bytes) -> bytes:
        """The body bytes in `data`, which is empty once the server has closed the connection. Raises HttpError."""
        self._buffer += data
        self._is_closed = not data
        if not self.done:
            self.done = next(self._steps, True)
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)

    def _parse(self) -> Generator[bool, None, None]:
        """Yield False whenever more bytes are needed."""
        for _ in range(MOST_HEADS):  # 100 Continue and the like come before the response
            status, headers = parse_head((yield from self._head()))
            if status >= 200:
                break
        else:
            raise HttpError("sent no final response", kind="http")
        self.status, self.headers = status, headers
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", ""):
            yield from self._chunks()
        elif length is None:
            while not self._is_closed:
                self._count(len(self._buffer))
                self._take(len(self._buffer))
                yield False
        elif not (length.isascii() and length.isdigit() and len(length) < 20):
            raise HttpError("sent an invalid Content-Length", kind="http")
        else:
            self._count(int(length))
            yield from self._copy(int(length))

    def _head(self) -> Generator[bool, None, bytes]:
        while (end := self._buffer.find(b"\r\n\r\n", 0, HEAD_LIMIT + 4)) < 0:
            head = bytes(self._buffer[: len(PROTOCOL)])
            if self._is_closed and not head:
                raise HttpError("closed the connection without an answer", kind="http")
            if self._is_closed or len(self._buffer) > HEAD_LIMIT or head != PROTOCOL[: len(head)]:
                raise HttpError(NO_HTTP, kind="http")
            yield False
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        return head

    def _chunks(self) -> Generator[bool, None, None]:
        chunks = 0
        while size := (yield from self._chunk_size()):  # trailers after the last chunk are not read
            self._count(size)
            chunks += 1
            if chunks > FEW_CHUNKS + self._size // SMALL_CHUNK:
                raise HttpError("sent too many small chunks", kind="http")
            yield from self._copy(size)
            while len(self._buffer) < 2:
                yield self._more()
            if self._buffer[:2] != b"\r\n":
                raise HttpError("sent a chunk longer than its size", kind="http")
            del self._buffer[:2]

    def _chunk_size(self) -> Generator[bool, None, int]:
        while (end := self._buffer.find(b"\r\n", 0, HEAD_LIMIT)) < 0 and len(self._buffer) < HEAD_LIMIT:
            yield self._more()
        match = CHUNK_SIZE.fullmatch(bytes(self._buffer[: max(end, 0)]))
        if match is None:
            raise HttpError("sent an invalid chunk size", kind="http")
        del self._buffer[: end + 2]
        return int(match[1], 16)

    def _copy(self, count: int) -> Generator[bool, None, None]:
        while count:
            count -= self._take(min(count, len(self._buffer)))
            if count:
                yield self._more()

    def _more(self) -> bool:
        if self._is_closed:
            raise HttpError("closed the connection in the middle of an answer", kind="half")
        return False

    def _take(self, count: int) -> int:
        self._pieces.append(bytes(self._buffer[:count]))
        del self._buffer[:count]
        return count

    def _count(self, size: int) -> None:
        self._size += size
        if self._limit is not None and self._size > self._limit:
            raise HttpError(f"sent an answer of more than {self._limit >> 20} MiB", kind="size")


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers of a response, in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, status_and_reason = first.partition(" ")
    status = status_and_reason[:3]
    if not version.startswith("HTTP/1.") or not (len(status) == 3 and status.isascii() and status.isdigit()):
        raise HttpError(NO_HTTP, kind="http")
    headers = (line.partition(":") for line in lines)
    return int(status), {name.strip().lower(): value.strip().lower() for name, _, value in headers}
