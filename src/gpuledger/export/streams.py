"""Server-sent events: every tick to everybody who watches, written and compressed once for all of them."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass

BEAT_S = 15.0
"""Ticks may be slow: a line this often tells proxies, and us, that somebody is still there."""
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LAST_BLOCK = b"\x03\x00"


@dataclass(frozen=True, slots=True)
class Event:
    """Some bytes, also as blocks of deflate that refer to nothing before them: they fit into any stream."""

    plain: bytes
    deflated: bytes

    @classmethod
    def of(cls, plain: bytes) -> Event:
        """Level 1: see `bodies.compress`."""
        stream = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        return cls(plain, stream.compress(plain) + stream.flush(zlib.Z_FULL_FLUSH))


RETRY = Event.of(b"retry: 2000\n\n")
BEAT = Event.of(b": still here\n\n")


class Streams:
    """Those who watch, `most` at a time. `newest` gives the event of the last tick."""

    def __init__(self, newest: Callable[[], Event | None], most: int, *, beat_s: float = BEAT_S) -> None:
        self._newest, self._most, self._beat_s = newest, most, beat_s
        self._changed = threading.Condition()
        self._ticks = 0
        self._open = 0
        self._closed = False

    @property
    def open(self) -> int:
        """How many watch now."""
        return self._open

    def wake(self) -> None:
        """There is a new tick."""
        with self._changed:
            self._ticks += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End them all."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, *, gzip: bool) -> Stream | None:
        """One more who watches; None when there are enough."""
        with self._changed:
            if self._closed or self._open >= self._most:
                return None
            self._open += 1
            return Stream(self, gzip=gzip)

    def leave(self) -> None:
        """One less."""
        with self._changed:
            self._open -= 1

    def after(self, seen: int) -> tuple[int, Event | None]:
        """What comes after that many ticks: the newest event, or a beat when nothing does; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ticks != seen or self._closed, self._beat_s)
            if self._closed:
                return seen, None
            ticks = self._ticks
        return ticks, (self._newest() if ticks != seen else None) or BEAT


class Stream:
    """One who watches. Gets the newest tick whenever it can take one, so that a slow one falls behind nothing."""

    def __init__(self, streams: Streams, *, gzip: bool) -> None:
        self._streams, self._gzip = streams, gzip
        self._begun = self._ended = self._left = False
        self._seen = 0
        self._check, self._size = 0, 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        if not self._begun:
            self._begun = True
            return (_GZIP_HEAD if self._gzip else b"") + self._pack(RETRY)
        self._seen, event = self._streams.after(self._seen)
        if event is not None:
            return self._pack(event)
        self._ended = True
        if not self._gzip:
            raise StopIteration
        return _LAST_BLOCK + struct.pack("<II", self._check, self._size & 0xFFFFFFFF)

    def close(self) -> None:
        """Make room for another, also when nothing was ever sent."""
        if not self._left:
            self._left = True
            self._streams.leave()

    def _pack(self, event: Event) -> bytes:
        if not self._gzip:
            return event.plain
        self._check = zlib.crc32(event.plain, self._check)
        self._size += len(event.plain)
        return event.deflated
