"""Server-sent events: the snapshot of each tick, encoded and compressed once for all open streams and the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from gpuledger.web.parts import Part, gzipped, inflated

BEAT_S = 15.0
"""Seconds between comments that keep the connection alive while no tick arrives."""
RETRY, BEAT = Part([b"retry: 2000\n\n"]), Part([b": still here\n\n"])
BEGIN, END = Part([b"data: "]), Part([b"\n\n"])
"""Around the JSON of an event, which is one line."""


class Streams:
    """The open streams, at most `max_streams`. `newest` returns the JSON of the last tick."""

    def __init__(self, newest: Callable[[], Part | None], max_streams: int, *, beat_s: float = BEAT_S) -> None:
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

    def after(self, sent: int) -> tuple[int, tuple[Part, ...]]:
        """Wait for a tick after tick number `sent`: its number and event, a heartbeat on timeout, or nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._ticks != sent or self._closed, self._beat_s)
            if self._closed:
                return sent, ()
            ticks = self._ticks
        newest = self._newest() if ticks != sent else None
        return ticks, (BEAT,) if newest is None else (BEGIN, newest, END)


class Stream:
    """One client's stream. Each event is the newest tick, so a slow client skips ticks instead of falling behind."""

    def __init__(self, streams: Streams, *, gzip: bool) -> None:
        self._streams, self._gzip = streams, gzip
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return gzipped(self.parts()) if self._gzip else inflated(self.parts())

    def parts(self) -> Iterator[Part]:
        """The text of the stream. Parts() bounds what slow clients keep of it, and cuts them off."""
        parts: tuple[Part, ...] = (RETRY,)
        sent = 0
        while parts:
            yield from parts
            sent, parts = self._streams.after(sent)

    def close(self) -> None:
        """Count this stream as closed, even if nothing was sent."""
        if not self._closed:
            self._closed = True
            self._streams.leave()
