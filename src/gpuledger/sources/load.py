"""A recording from disk: every way in which a file can be wrong is one RecordingError."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from gpuledger.errors import RecordingError
from gpuledger.model import Tick
from gpuledger.sources.recording import Decoder, check_header

LARGEST_BYTES = 1 << 30
"""Unpacked. A recording of a day at 1 s ticks has some 300 MB; anything past this is a bomb."""
LONGEST_LINE_BYTES = 1 << 24
"""A tick of 8 GPUs with 1000 processes has a fiftieth of it."""


def read(path: Path) -> bytes:
    """The file as it is; kept by the caller, because it may change or go while it is played."""
    try:
        if path.exists() and not path.is_file():
            raise RecordingError(f"cannot replay {path}: it is no regular file; name one that `gpuledger record` wrote")
        return path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"cannot replay {path}: {error.strerror}; name one that `gpuledger record` wrote"
        ) from None


def load(packed: bytes, path: Path) -> Iterator[Tick]:
    """The ticks of a recording; RecordingError names the file and the line that is wrong."""
    try:
        yield from _ticks(packed)
    except RecordingError as error:
        raise RecordingError(f"cannot replay {path}: {error}") from None
    except EOFError:
        raise RecordingError(f"cannot replay {path}: it is truncated; record it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RecordingError(f"cannot replay {path}: it is damaged or no recording: {error}") from None


def _ticks(packed: bytes) -> Iterator[Tick]:
    decoder = Decoder()
    last_ns = -1
    lines = _lines(packed)
    check_header(next(lines, ""))
    for number, line in enumerate(lines, start=2):
        try:
            tick = decoder.tick(line)
        except RecordingError as error:
            raise RecordingError(f"line {number}: {error}; record it again") from None
        if tick.time_ns <= last_ns:
            raise RecordingError(f"line {number}: its time is not after that of the line before; record it again")
        last_ns = tick.time_ns
        yield tick
    if last_ns < 0:
        raise RecordingError("it holds no readings; record it again")


def _lines(packed: bytes) -> Iterator[str]:
    seen = 0
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        while line := file.readline(LONGEST_LINE_BYTES):
            seen += len(line)
            if seen > LARGEST_BYTES:
                raise RecordingError(f"it unpacks to more than {LARGEST_BYTES >> 20} MiB")
            if not line.endswith(b"\n"):
                raise RecordingError("its last line has no end, or is far too long")
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise RecordingError("it is not text in UTF-8") from None
