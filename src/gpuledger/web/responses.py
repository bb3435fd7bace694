"""The responses of the server itself, static files, and the encoding of all pages."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import ReviewError
from gpuledger.web.http import Request, Response
from gpuledger.web.negotiate import choose_encoding

RETRY = ("Retry-After", "1")
UNAUTHORIZED = Response.text(401, "Unauthorized", ("WWW-Authenticate", "Basic"))
FORBIDDEN = Response.text(403, "your role may open the page and /api/v1/snapshot only; ask for the role all")
NOT_RENDERED = Response.text(500, "the page could not be rendered; see the log of the exporter")
NOT_READY = Response.text(503, "the first tick is not finished; retry in a second", RETRY)
MANY_LOGINS = Response.text(503, "too many logins at a time; try again in a second", RETRY)
MANY_CONNECTIONS = Response.text(503, "all connections are in use; try again in a second", RETRY)
MANY_STREAMS = Response.text(503, "too many open streams; poll /api/v1/snapshot instead", ("Retry-After", "10"))
GZIP = zlib.MAX_WBITS | 16

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def unavailable(error: ReviewError) -> Response:
    """The response while it is not known what the client may see."""
    return Response.text(503, str(error), RETRY)


def not_found(path: str, pages: Sequence[str]) -> Response:
    """A 404 that lists the available pages."""
    return Response.text(404, f"no page at {path}; try {', '.join(pages)}")


def refusal(request: Request) -> Response | None:
    """The response to a valid request that no handler serves; None if a handler may see it."""
    if request.method not in ("GET", "HEAD"):
        message = f"method {request.method} is not supported; use GET or HEAD"
        return Response.text(405, message, ("Allow", "GET, HEAD"))
    length = request.headers.get("content-length", "0")
    if length.strip("0, ") or "transfer-encoding" in request.headers:
        return Response.text(400, "a request body is not accepted; send the request without one")
    return None


def encoded(
    request: Request,
    content_type: str,
    body: Callable[[str], bytes | Iterable[bytes]],
    *headers: tuple[str, str],
    vary: str = "Accept-Encoding",
    live: bool = False,
) -> Response:
    """A page in the encoding that the client prefers, `gzip` or `identity`, which `body` takes."""
    encoding = choose_encoding(request.headers.get("accept-encoding"))
    gzip = [("Content-Encoding", "gzip")] if encoding == "gzip" else []
    return Response(200, [("Content-Type", content_type), *headers, ("Vary", vary), *gzip], body(encoding), live)


@dataclass(frozen=True, slots=True)
class File:
    """A static file in memory, read on the first request."""

    plain: bytes
    compressed: bytes
    tag: str
    """The ETag: a checksum is enough, and hashlib would load OpenSSL."""


class Files:
    """Serves the files of a directory. `transform(name, text)` may change the text of a file."""

    def __init__(self, folder: Path = FOLDER, transform: Callable[[str, str], str] = lambda _, text: text) -> None:
        self._folder, self._transform = folder, transform
        self._files: dict[str, File] = {}

    def answer(self, name: str, request: Request) -> Response:
        """The file, or status 304 if the client has the current version."""
        file = self._get(name)
        headers = (
            ("Cache-Control", "no-cache"),
            ("ETag", file.tag),
            ("Content-Security-Policy", POLICY),
            ("Referrer-Policy", "no-referrer"),
        )
        client_tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if file.tag in client_tags:
            return Response(304, [*headers, ("Vary", "Accept-Encoding")], b"")
        bodies = {"gzip": file.compressed, "identity": file.plain}
        return encoded(request, TYPES[Path(name).suffix], bodies.__getitem__, *headers)

    def text(self, name: str) -> str:
        """The content of a file."""
        return self._get(name).plain.decode()

    def _get(self, name: str) -> File:
        if name not in self._files:
            self._files[name] = self._read(name)
        return self._files[name]

    def _read(self, name: str) -> File:
        plain = self._transform(name, (self._folder / name).read_text(encoding="utf-8")).encode()
        stream = zlib.compressobj(1, zlib.DEFLATED, GZIP)
        return File(plain, stream.compress(plain) + stream.flush(), f'"{zlib.crc32(plain):08x}-{len(plain)}"')
