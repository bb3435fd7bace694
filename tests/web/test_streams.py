"""Server-sent events: every tick to all open streams."""

from __future__ import annotations

import gzip
import threading
import zlib

import pytest

from gpuledger.web.streams import BEAT, RETRY, Event, Stream, Streams


class Ticks:
    """Streams with numbered events, and the number of events that were encoded."""

    def __init__(self, most: int = 4, beat_s: float = 5.0) -> None:
        self.number = 0
        self.streams = Streams(
            lambda: Event.of(b"data: %d\n\n" % self.number) if self.number else None, most, beat_s=beat_s
        )

    def tick(self) -> None:
        """One more."""
        self.number += 1
        self.streams.wake()

    def join(self, *, gzip: bool = False) -> Stream:
        """An open stream after its first part."""
        stream = self.streams.join(gzip=gzip)
        assert stream is not None
        return stream


def test_the_newest_tick_at_once_and_then_each() -> None:
    """First the delay of reconnects; a client that was slow for three ticks gets the last of them."""
    ticks = Ticks()
    ticks.tick()
    stream = ticks.join()

    assert next(stream) == RETRY.plain
    assert next(stream) == b"data: 1\n\n"
    for _ in range(3):
        ticks.tick()
    assert next(stream) == b"data: 4\n\n"


def test_it_waits_for_the_next() -> None:
    """And gets it when it comes."""
    ticks = Ticks()
    stream = ticks.join()
    next(stream)
    timer = threading.Timer(0.05, ticks.tick)
    timer.start()

    assert next(stream) == b"data: 1\n\n"
    timer.join()


def test_a_beat_while_nothing_comes() -> None:
    """A comment, which a browser does not show."""
    ticks = Ticks(beat_s=0.01)
    stream = ticks.join()
    next(stream)

    assert next(stream) == BEAT.plain
    assert BEAT.plain.startswith(b":")


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
    got = [next(stream), next(stream)]
    ticks.tick()
    got.append(next(stream))
    ticks.streams.close()
    got += list(stream)

    body = b"".join(got)
    assert (gzip.decompress(body) if packed else body) == RETRY.plain + b"data: 1\n\ndata: 2\n\n"
    assert ticks.streams.join(gzip=packed) is None


def test_compressed_events_are_read_as_they_come() -> None:
    """Each can be unpacked when it is there, whatever the stream had before."""
    ticks = Ticks()
    ticks.tick()
    early = ticks.join(gzip=True)
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    assert reader.decompress(next(early)) == RETRY.plain
    assert reader.decompress(next(early)) == b"data: 1\n\n"
    ticks.tick()
    late = ticks.join(gzip=True)
    other = zlib.decompressobj(zlib.MAX_WBITS | 16)
    other.decompress(next(late))

    assert reader.decompress(next(early)) == other.decompress(next(late)) == b"data: 2\n\n"
