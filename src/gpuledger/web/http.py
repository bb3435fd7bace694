"""The part of HTTP/1.x that an exporter needs: parsing request heads and framing responses.

Pure: bytes to values and back, without sockets or a clock; `server.py` does the I/O. The standard `http.server` would
load `email` and `socketserver`, which cost 6 MB of resident memory.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

REASONS = {
    200: "OK",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

LIVENESS, READINESS = ("/healthz", "/-/healthy"), ("/readyz", "/-/ready")
"""Paths of health checks: those of Kubernetes, and those of Prometheus."""
PROBES = LIVENESS + READINESS

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VISIBLE = re.compile(r"[!-~]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a tab is allowed in a header value
_VERSION = re.compile(r"HTTP/([0-9])\.([0-9])")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ABSOLUTE = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_BATCH = 32 * 1024  # a family has a few hundred bytes; one system call per family would be slow


class BadRequest(Exception):  # noqa: N818 - named after the status
    """An invalid request: the status of the response, and a line with the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per client. Times are in seconds."""

    head_bytes: int = 16 * 1024
    line_bytes: int = 8 * 1024
    headers: int = 100
    requests: int = 1000  # on one connection
    head_s: float = 5.0  # for the whole head
    idle_s: float = 75.0  # between two requests
    write_s: float = 30.0  # for the whole response
    live_s: float = 5.0  # for one part of a live response
    queue_s: float = 5.0  # in which a request waits for a thread


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Viewer:
    """A client that sees own workloads only: as a user of this host, or as a user of Kubernetes."""

    name: str
    uid: int | None = None
    """None for a user of Kubernetes, and for a user without an account on this host."""
    readable: Callable[[Collection[str]], frozenset[str]] | None = None
    """Those of the namespaces whose pods a user of Kubernetes may get; raises ReviewError. None for a user of this
    host."""


@dataclass(frozen=True, slots=True)
class Request:
    """One parsed request head. Header names are lower case; repeated headers are joined with a comma."""

    method: str
    path: str  # percent-decoded
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    version: str  # HTTP/1.0 or HTTP/1.1
    keep_alive: bool
    address: str = ""  # of the client
    viewer: Viewer | None = None  # None if the client sees everything


@dataclass(frozen=True, slots=True)
class Response:
    """A response. A body that is not `bytes` is streamed, and closed at the end if it has a `close` method.

    `frame` adds the framing headers.
    """

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes | Iterable[bytes]
    live: bool = False
    """Whether each part is sent at once, until the body ends and the connection is closed."""

    def close(self) -> None:
        """Release the resources of a body such as a generator or a stream."""
        close: Callable[[], None] | None = getattr(self.body, "close", None)
        if close is not None:
            close()

    @classmethod
    def text(cls, status: int, message: str, *headers: tuple[str, str]) -> "Response":
        """A plain text response of one line."""
        return cls(status, (("Content-Type", "text/plain; charset=utf-8"), *headers), f"{message}\n".encode())


def head_end(buffer: bytes | bytearray, limits: Limits = DEFAULT_LIMITS) -> int:
    """The length of the head at the start of the buffer, including the blank line; 0 if it is not complete."""
    if buffer.find(b"\n", 0, limits.line_bytes) < 0 and len(buffer) >= limits.line_bytes:
        raise BadRequest(414, f"the request line is too long; keep it under {limits.line_bytes} bytes")
    ends = [buffer.find(mark) + len(mark) for mark in (b"\n\r\n", b"\n\n") if mark in buffer]
    end = min(ends, default=0)
    if (end or len(buffer)) > limits.head_bytes:
        raise BadRequest(431, f"the request head is too large; keep it under {limits.head_bytes} bytes")
    return end


def parse_head(data: bytes, limits: Limits = DEFAULT_LIMITS, address: str = "") -> Request:
    """Parse a request head, with or without its final blank line. Raises only BadRequest."""
    first, *rest = [line.removesuffix("\r") for line in data.decode("latin-1").rstrip("\r\n").split("\n")]
    method, target, version = _request_line(first)
    headers = _headers(rest, limits.headers)
    if version == "HTTP/1.1" and ("host" not in headers or "," in headers["host"]):
        raise BadRequest(400, "an HTTP/1.1 request needs exactly one Host header; add it")
    path, query = _target(method, target)
    options = {option.strip().lower() for option in headers.get("connection", "").split(",")}
    keep_alive = "close" not in options and (version == "HTTP/1.1" or "keep-alive" in options)
    return Request(method, path, query, headers, version, keep_alive, address)


def frame(response: Response, request: Request | None, *, keep_alive: bool) -> tuple[Iterable[bytes], bool]:
    """The bytes to send, in pieces, and whether the connection can be reused.

    Without a request (it could not be parsed) the response is framed for HTTP/1.1. A header that would break the
    framing raises ValueError before anything is sent.
    """
    body = response.body
    streamed = not isinstance(body, bytes)
    old = request is not None and request.version == "HTTP/1.0"
    if response.live or (streamed and old):  # HTTP/1.0 has no chunks: the body ends with the connection
        keep_alive = False
    headers = [*response.headers, ("X-Content-Type-Options", "nosniff")]
    if isinstance(body, bytes):
        if response.status != 304:  # its Content-Length would be that of the omitted body
            headers.append(("Content-Length", str(len(body))))
    elif not old:
        headers.append(("Transfer-Encoding", "chunked"))
    if not keep_alive or old:
        headers.append(("Connection", "keep-alive" if keep_alive else "close"))
    head = _head(response.status, headers)
    if request is not None and request.method == "HEAD":
        return (head,), keep_alive
    if isinstance(body, bytes):  # one packet for a small response, no copy of a large one
        return ((head + body,) if len(body) <= _BATCH else (head, body)), keep_alive
    return _stream(head, body if response.live else _batches(body), chunked=not old), keep_alive


def _head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise ValueError(f"invalid response header {name!r}: {value!r}; a value is one line of text")
        lines.append(f"{name}: {value}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _stream(head: bytes, parts: Iterable[bytes], *, chunked: bool) -> Iterator[bytes]:
    yield head
    for part in parts:
        yield b"%x\r\n%b\r\n" % (len(part), part) if chunked else part
    if chunked:
        yield b"0\r\n\r\n"


def _batches(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Joins parts to larger pieces. No piece is empty, because an empty chunk would end a chunked body."""
    batch: list[bytes] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part)
        if size >= _BATCH:
            yield b"".join(batch)
            batch, size = [], 0
    if size:
        yield b"".join(batch)


def _request_line(line: str) -> tuple[str, str, str]:
    words = line.split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _VISIBLE.fullmatch(words[1]):
        raise BadRequest(400, "the request line is malformed; send for example: GET /metrics HTTP/1.1")
    method, target, version = words
    matched = _VERSION.fullmatch(version)
    if matched is None:
        raise BadRequest(400, "the request line does not end in a protocol version; end it in HTTP/1.1")
    if matched[1] != "1":
        raise BadRequest(505, f"{version} is not supported; use HTTP/1.1")
    return method, target, "HTTP/1.0" if matched[2] == "0" else "HTTP/1.1"


def _headers(lines: Sequence[str], max_headers: int) -> dict[str, str]:
    if len(lines) > max_headers:
        raise BadRequest(431, f"the request has too many headers; send at most {max_headers}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if line[:1] in (" ", "\t"):
            raise BadRequest(400, "a header is folded over two lines; write it on one")
        if not colon or not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise BadRequest(400, "a header is malformed; write each as Name: value")
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _target(method: str, target: str) -> tuple[str, dict[str, list[str]]]:
    """Path and query of a request target."""
    if method == "CONNECT" or (method, target) == ("OPTIONS", "*"):
        return target, {}  # not a path; `responses.refusal` responds to it
    absolute = _ABSOLUTE.match(target)
    if absolute:
        target = target[absolute.end() :]
        target = target if target.startswith("/") else f"/{target}"
    if not target.startswith("/"):
        raise BadRequest(400, "the request target is not a path; start it with a slash, as in /metrics")
    path, _, raw = target.partition("?")
    query: dict[str, list[str]] = {}
    for pair in raw.split("&"):
        name, _, value = pair.replace("+", " ").partition("=")
        if pair:
            query.setdefault(_unquote(name), []).append(_unquote(value))
    return _unquote(path), query


def _unquote(text: str) -> str:
    """Percent-decode strictly: invalid UTF-8 and control characters are errors."""
    if _BAD_ESCAPE.search(text):
        raise BadRequest(400, "a percent sign in the request target is not an escape; write it as %25")
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise BadRequest(400, "the request target does not decode to UTF-8; escape the UTF-8 bytes") from None
    if _CONTROL.search(decoded):
        raise BadRequest(400, "the request target contains a control character; remove it")
    return decoded
