"""Compressed parts of bodies, shared by all readers.

Text is rendered and compressed once, one part at a time. A body is a sequence of parts; a reader without gzip gets them
decompressed piece by piece. While a tick is made, neither goes on for up to PAUSE_S: ticks come first.

Slow readers keep the parts of old ticks. If all parts together exceed MOST_BYTES, the oldest ones are dropped, and
their readers are cut off.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from time import monotonic
from weakref import ref

from gpuledger.web.http import Request, Response
from gpuledger.web.responses import encoded

MOST_BYTES = 32 << 20
"""Compressed; 100,000 series are 3 MB."""
PIECE = 4 << 10
"""Compressed bytes that are decompressed at once; a body of at most this size is sent as a whole."""
PAUSE_S = 0.5
VARY = "Accept, Accept-Encoding"
GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
LAST_BLOCK = b"\x03\x00"
ZEROS = bytes(64 << 10)


class Part:
    """Text as deflate blocks without references to earlier data, which fit into any gzip stream."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        stream = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)  # a tenth of the size in a third of level 6's time
        self.crc = self.size = 0
        deflated: list[bytes] = []
        for chunk in chunks:
            self.crc, self.size = zlib.crc32(chunk, self.crc), self.size + len(chunk)
            deflated.append(stream.compress(chunk))
        self.deflated: bytes | None = b"".join([*deflated, stream.flush(zlib.Z_FULL_FLUSH)])
        """None if it was dropped."""
        self.length = len(self.deflated)

    def pieces(self) -> Iterator[bytes]:
        """The compressed bytes. No copy of them all is held meanwhile."""
        for start in range(0, self.length, PIECE):
            if self.deflated is None:
                raise ConnectionAbortedError("the reader was too slow")
            yield self.deflated[start : start + PIECE]


class Parts:
    """Creates parts and sends them. `between_ticks` is set while no tick is made."""

    def __init__(self, between_ticks: threading.Event | None = None) -> None:
        self._between_ticks = between_ticks
        self._lock = threading.Lock()
        self._alive: list[ref[Part]] = []

    def create(self, chunks: Iterable[bytes]) -> Part:
        """Compress a text; other texts wait."""
        with self._lock:
            part = Part(self._paused(chunks))
            alive = [part, *(other for reference in self._alive if (other := reference()) and other.deflated)]
            left = MOST_BYTES
            for other in alive:  # newest first
                left -= other.length
                if left < 0 and other is not part:
                    other.deflated = None
            self._alive = [ref(other) for other in alive]
            return part

    def response(
        self, request: Request, content_type: str, parts: Sequence[Part], *headers: tuple[str, str], vary: str = VARY
    ) -> Response:
        """The text of these parts in the encoding that the client prefers."""
        size = sum(part.length for part in parts)

        def body(encoding: str) -> bytes | Iterator[bytes]:
            pieces = self._paused(gzipped(parts) if encoding == "gzip" else inflated(parts))
            return b"".join(pieces) if size <= PIECE else pieces

        return encoded(request, content_type, body, *headers, vary=vary)

    def _paused(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        left_s = PAUSE_S
        for piece in pieces:
            if self._between_ticks is not None and not self._between_ticks.is_set() and left_s > 0:
                started = monotonic()
                self._between_ticks.wait(left_s)
                left_s -= monotonic() - started
            yield piece


def inflated(parts: Iterable[Part]) -> Iterator[bytes]:
    """The text of these parts."""
    for part in parts:
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        yield from filter(None, (stream.decompress(piece) for piece in part.pieces()))  # an empty chunk would end it


def gzipped(parts: Iterable[Part]) -> Iterator[bytes]:
    """One gzip stream."""
    crc = size = 0
    yield GZIP_HEAD
    for part in parts:
        yield from part.pieces()
        # The checksum is linear: crc(a + b) = crc(a + zeros) ^ crc(zeros) ^ crc(b).
        crc, size = _with_zeros(crc, part.size) ^ _with_zeros(0, part.size) ^ part.crc, size + part.size
    yield LAST_BLOCK + struct.pack("<II", crc, size & 0xFFFFFFFF)


def _with_zeros(crc: int, count: int) -> int:
    for start in range(0, count, len(ZEROS)):
        crc = zlib.crc32(memoryview(ZEROS)[: count - start], crc)
    return crc
