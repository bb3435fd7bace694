"""The files of the page: read when they are first asked for, then kept, plain and compressed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuledger.export.bodies import compress
from gpuledger.export.http import Request, Response
from gpuledger.export.negotiate import choose_encoding

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
class Kept:
    """A file in memory."""

    plain: bytes
    compressed: bytes
    tag: str
    """Changes with the content. A checksum will do, and hashlib would load OpenSSL."""


class Files:
    """Answers with files of a folder. `changed` may put something into one of them."""

    def __init__(self, folder: Path = FOLDER, changed: Callable[[str, str], str] = lambda _, text: text) -> None:
        self._folder, self._changed = folder, changed
        self._kept: dict[str, Kept] = {}

    def answer(self, name: str, request: Request) -> Response:
        """The file, or 304 for who has it already."""
        kept = self._get(name)
        headers = [
            ("Cache-Control", "no-cache"),
            ("ETag", kept.tag),
            ("Vary", "Accept-Encoding"),
            ("Content-Security-Policy", POLICY),
            ("Referrer-Policy", "no-referrer"),
        ]
        known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
        if kept.tag in known:
            return Response(304, headers, b"")
        headers.append(("Content-Type", TYPES[Path(name).suffix]))
        if choose_encoding(request.headers.get("accept-encoding")) == "gzip":
            return Response(200, [*headers, ("Content-Encoding", "gzip")], kept.compressed)
        return Response(200, headers, kept.plain)

    def text(self, name: str) -> str:
        """What is in it."""
        return self._get(name).plain.decode()

    def _get(self, name: str) -> Kept:
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = self._read(name)
        return kept

    def _read(self, name: str) -> Kept:
        plain = self._changed(name, (self._folder / name).read_text(encoding="utf-8")).encode()
        return Kept(plain, b"".join(compress([plain])), f'"{zlib.crc32(plain):08x}-{len(plain)}"')
