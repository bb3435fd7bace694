"""Static files: read on the first request, then kept in memory, plain and compressed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuledger.web.http import Request, Response
from gpuledger.web.responses import compress, encoded

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


@dataclass(frozen=True, slots=True)
class File:
    """A file in memory."""

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
        return File(plain, b"".join(compress([plain])), f'"{zlib.crc32(plain):08x}-{len(plain)}"')
