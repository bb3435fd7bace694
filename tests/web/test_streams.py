"""Server-sent events: every tick to all open streams."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator

import pytest

from gpuledger.web.parts import Part, gzipped, inflated
from gpuledger.web.streams import BEAT, RETRY, Stream, Streams

GREETING = b"retry: 2000\n\n"


class Ticks:
    """Streams with numbered events, and the number of events that were encoded."""

    def __init__(self, most: int = 4, beat_s: float = 5.0) -> None:
        self.number = 0
        self.streams = Streams(lambda: Part([b"%d" % self.number]) if self.number else None, most, beat_s=beat_s)

    def tick(self) -> None:
        """One more."""
        self.number += 1
        self.streams.wake()

    def join(self, *, gzip: bool = False) -> Stream:
        """An open stream after its first part."""
        stream = self.streams.join(gzip=gzip)
        assert stream is not None
        return stream


def event(parts: Iterator[bytes]) -> bytes:
    """The next event of a stream."""
    text = b""
    while not text.endswith(b"\n\n"):
        text += next(parts)
    return text


def test_the_newest_tick_at_once_and_then_each() -> None:
    """First the delay of reconnects; a client that was slow for three ticks gets the last of them."""
    ticks = Ticks()
    ticks.tick()
    stream = iter(ticks.join())

    assert event(stream) == GREETING
    assert event(stream) == b"data: 1\n\n"
    for _ in range(3):
        ticks.tick()
    assert event(stream) == b"data: 4\n\n"


def test_it_waits_for_the_next() -> None:
    """And gets it when it comes."""
    ticks = Ticks()
    stream = iter(ticks.join())
    event(stream)
    timer = threading.Timer(0.05, ticks.tick)
    timer.start()

    assert event(stream) == b"data: 1\n\n"
    timer.join()


def test_a_beat_while_nothing_comes() -> None:
    """A comment, which a browser does not show."""
    ticks = Ticks(beat_s=0.01)
    stream = iter(ticks.join())
    event(stream)

    assert event(stream) == b"".join(inflated([BEAT]))
    assert b"".join(inflated([BEAT])).startswith(b":")


def test_the_number_of_streams_is_limited() -> None:
    """Also if the client left before the first part, and only once."""
    ticks = Ticks(most=2)
    first, second = ticks.join(), ticks.join()
    assert ticks.streams.join(gzip=False) is None
    assert ticks.streams.open == 2
    first.close()
    first.close()

    assert ticks.streams.open == 1
    ticks.join()
    assert ticks.streams.join(gzip=False) is None
    second.close()


@pytest.mark.parametrize("packed", [False, True])
def test_streams_end_with_the_exporter(packed: bool) -> None:
    """All streams end with the exporter, compressed ones as valid gzip; no stream is opened afterwards."""
    ticks = Ticks()
    ticks.tick()
    stream = ticks.join(gzip=packed)
    parts = stream.parts()
    first = [next(parts) for _ in range(4)]
    ticks.tick()
    first += [next(parts) for _ in range(3)]
    ticks.streams.close()
    first += list(parts)

    body = b"".join(gzipped(first) if packed else inflated(first))
    assert (gzip.decompress(body) if packed else body) == GREETING + b"data: 1\n\ndata: 2\n\n"
    assert b"".join(stream) == b"".join(gzipped([RETRY]) if packed else inflated([RETRY]))
    assert ticks.streams.join(gzip=packed) is None


def test_a_compressed_event_is_sent_as_a_whole() -> None:
    """No byte of it waits for the next event, and no piece is empty, which would end a chunked body."""
    ticks = Ticks()
    ticks.tick()
    stream = iter(ticks.join(gzip=True))
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    texts = (reader.decompress(piece) for piece in stream if piece)
    assert event(texts) == GREETING
    assert event(texts) == b"data: 1\n\n"
    ticks.tick()
    assert event(texts) == b"data: 2\n\n"


def test_a_slow_reader_of_a_dropped_tick_is_cut_off() -> None:
    """Parts() bounds the ticks that slow readers hold."""
    tick = Part([b"1"])
    streams = Streams(lambda: tick, 1)
    streams.wake()
    joined = streams.join(gzip=False)
    assert joined is not None
    stream = iter(joined)
    assert event(stream) == GREETING
    tick.deflated = None

    with pytest.raises(ConnectionAbortedError):
        event(stream)


def test_no_piece_is_empty() -> None:
    """An empty chunk would end the body."""
    assert list(inflated([Part([b"a"]), Part([]), Part([b""]), Part([b"b"])])) == [b"a", b"b"]
