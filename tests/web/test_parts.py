"""Parts: compressed once, joined to valid gzip, behind ticks, and within a limit of memory."""

from __future__ import annotations

import gzip
import random
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.web import parts
from gpuledger.web.parts import PIECE, Part, Parts, gzipped, inflated
from tests.web.clients import parsed


@given(st.lists(st.lists(st.binary(max_size=200), max_size=3), max_size=5), st.integers(1, 30_000))
def test_parts_are_one_gzip_stream(texts: list[list[bytes]], factor: int) -> None:
    """Any parts, empty ones included, have the right checksum and size together, whatever they had alone."""
    whole = b"".join(chunk * factor for chunks in texts[:2] for chunk in chunks)
    joined = [Part([chunk * factor for chunk in chunks]) for chunks in texts[:2]]

    assert gzip.decompress(b"".join(gzipped(joined))) == whole
    assert b"".join(inflated(joined)) == whole


def noise(size: int) -> bytes:
    """Text that cannot be compressed."""
    return random.Random(size).randbytes(size)


def body(created: Parts, part: Part, *headers: str) -> Iterator[bytes]:
    """The body of a response, which is too large to be sent as a whole."""
    pieces = created.response(parsed("GET / HTTP/1.1", *headers), "text/plain", [part]).body
    assert not isinstance(pieces, bytes)
    return iter(pieces)


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_slow_readers_hold_a_limited_number_of_bytes(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """46 readers that each began another tick: the oldest parts are dropped and their readers cut, the newest stay."""
    monkeypatch.setattr(parts, "MOST_BYTES", 10 * PIECE)
    created, readers = Parts(), []
    for _ in range(46):
        readers.append(body(created, created.create([noise(2 * PIECE)]), f"Accept-Encoding: {encoding}"))
        next(readers[-1])
    alive = [part for reference in created._alive if (part := reference()) is not None and part.deflated]

    assert sum(len(part.deflated or b"") for part in alive) <= 10 * PIECE
    with pytest.raises(ConnectionAbortedError):
        list(readers[0])
    assert list(readers[-1])


def test_readers_of_the_same_part_hold_it_once() -> None:
    """Nothing is copied for a reader but the piece that it is sent."""
    created = Parts()
    part = created.create([noise(100 * PIECE)])
    readers = [body(created, part) for _ in range(46)]
    first = [next(reader) for reader in readers]

    assert [reference() for reference in created._alive] == [part]
    assert max(map(len, first)) <= 2 * PIECE


def test_parts_that_were_read_are_forgotten() -> None:
    """A part without readers and without a page takes no memory."""
    created = Parts()
    for _ in range(10):
        created.create([noise(PIECE)])

    assert len(created._alive) <= 2


@pytest.mark.parametrize("rendering", [True, False])
def test_a_tick_comes_first(rendering: bool) -> None:
    """Neither rendering nor reading goes on while a tick is made."""
    between_ticks = threading.Event()
    created = Parts(between_ticks)
    between_ticks.set()
    part = created.create([noise(9 * PIECE)])
    done = threading.Event()

    def chunks() -> Iterator[bytes]:
        yield from (noise(100) for _ in range(9))

    def work() -> None:
        _ = created.create(chunks()) if rendering else list(body(created, part))
        done.set()

    between_ticks.clear()
    thread = threading.Thread(target=work)
    thread.start()
    assert not done.wait(0.2)
    between_ticks.set()
    assert done.wait(5)
    thread.join()


def test_a_tick_that_hangs_delays_no_scrape_for_long() -> None:
    """If the driver does not return, a response waits PAUSE_S in all, not for each piece."""
    created = Parts(threading.Event())
    started = time.monotonic()
    part = created.create(noise(PIECE) for _ in range(9))
    assert list(body(created, part))

    assert time.monotonic() - started < 6 * parts.PAUSE_S
