"""Server-sent events: each tick is encoded and compressed once, for all open streams."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.web.parts import GZIP_HEAD, LAST_BLOCK, Part

BEAT_S = 15.0
"""Seconds between comments that keep the connection alive while no tick arrives."""


@dataclass(frozen=True, slots=True)
class Event:
    """Bytes, plain and as deflate blocks without references to earlier data, which fit into any gzip stream."""

    plain: bytes
    deflated: bytes

    @classmethod
    def of(cls, plain: bytes) -> Event:
        """Compress a text."""
        return cls(plain, Part([plain]).deflated or b"")


RETRY = Event.of(b"retry: 2000\n\n")
BEAT = Event.of(b": still here\n\n")


class Streams:
    """The open streams, at most `max_streams`. `newest` returns the event of the last tick."""

    def __init__(self, newest: Callable[[], Event | None], max_streams: int, *, beat_s: float = BEAT_S) -> None:
        self._newest, self._max_streams, self._beat_s = newest, max_streams, beat_s
        self._changed = threading.Condition()
        self._ticks = 0
        self._open = 0
        self._closed = False

    @property
    def open(self) -> int:
        """Number of open streams."""
        return self._open

    def wake(self) -> None:
        """Announce a new tick."""
        with self._changed:
            self._ticks += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, *, gzip: bool) -> Stream | None:
        """Open a stream; None if too many are open."""
        with self._changed:
            if self._closed or self._open >= self._max_streams:
                return None
            self._open += 1
            return Stream(self, gzip=gzip)

    def leave(self) -> None:
        """Count a stream as closed."""
        with self._changed:
            self._open -= 1

    def after(self, sent: int) -> tuple[int, Event | None]:
        """Wait for a tick after tick number `sent`: its number and event, a heartbeat on timeout, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ticks != sent or self._closed, self._beat_s)
            if self._closed:
                return sent, None
            ticks = self._ticks
        return ticks, (self._newest() if ticks != sent else None) or BEAT


class Stream:
    """One client's stream. Each write sends the newest tick, so a slow client skips ticks instead of falling behind."""

    def __init__(self, streams: Streams, *, gzip: bool) -> None:
        self._streams, self._gzip = streams, gzip
        self._started = self._ended = self._closed = False
        self._sent = 0
        self._check, self._size = 0, 0

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        if not self._started:
            self._started = True
            return (GZIP_HEAD if self._gzip else b"") + self._pack(RETRY)
        self._sent, event = self._streams.after(self._sent)
        if event is not None:
            return self._pack(event)
        self._ended = True
        if not self._gzip:
            raise StopIteration
        return LAST_BLOCK + struct.pack("<II", self._check, self._size & 0xFFFFFFFF)

    def close(self) -> None:
        """Count this stream as closed, even if nothing was sent."""
        if not self._closed:
            self._closed = True
            self._streams.leave()

    def _pack(self, event: Event) -> bytes:
        if not self._gzip:
            return event.plain
        self._check = zlib.crc32(event.plain, self._check)
        self._size += len(event.plain)
        return event.deflated
