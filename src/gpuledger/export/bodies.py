"""Rendered ticks, kept until the next one: a second Prometheus costs no second rendering."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from gpuledger.catalog import Moment
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer

LARGEST_KEPT_BYTES = 2 << 20
"""A plain body past this size is streamed instead of kept: 100,000 series are 23 MB as text, 3 MB compressed."""
GZIP = zlib.MAX_WBITS | 16


class Bodies:
    """Bodies by format and encoding, of the newest tick only. Safe to ask from many threads.

    `more` gives what comes after our own metrics, as text.
    """

    def __init__(self, renderer: Renderer, more: Callable[[], Iterable[bytes]] | None = None) -> None:
        self._renderer = renderer
        self._more = more or tuple
        self.openmetrics = renderer.openmetrics and more is None
        """Nobody else's counters have the names that OpenMetrics wants."""
        self._lock = threading.Lock()
        self._tick: Moment = None
        self._kept: dict[tuple[Format, str], bytes] = {}

    def get(self, tick: Moment, fmt: Format, encoding: str) -> bytes | Iterable[bytes]:
        """The body whole, or in chunks when it is too large to keep."""
        with self._lock:
            if tick is not self._tick:
                self._tick, self._kept = tick, {}
            key = (fmt, encoding)
            if key in self._kept:
                return self._kept[key]
            chunks = chain(self._renderer.chunks(tick, fmt), self._more())
            body = b"".join(compress(chunks)) if encoding == "gzip" else whole(chunks)
            if isinstance(body, bytes):
                self._kept[key] = body
            return body


def compress(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Level 1: a tenth of the size for a third of the time of level 6."""
    stream = zlib.compressobj(1, zlib.DEFLATED, GZIP)
    for chunk in chunks:
        if data := stream.compress(chunk):
            yield data
    yield stream.flush()


def whole(chunks: Iterator[bytes]) -> bytes | Iterable[bytes]:
    """In one piece, unless it is too large to be kept."""
    taken: list[bytes] = []
    size = 0
    for chunk in chunks:
        taken.append(chunk)
        size += len(chunk)
        if size > LARGEST_KEPT_BYTES:
            return chain(taken, chunks)
    return b"".join(taken)
