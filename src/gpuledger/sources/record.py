"""Writing a recording: ticks as they come, into a file that is whole when it appears."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuledger import __version__
from gpuledger.model import Tick
from gpuledger.sources.recording import Encoder, header
from gpuledger.wholefile import replacing


class Recorder:
    """Appends ticks to a recording."""

    def __init__(self, file: gzip.GzipFile, interval_s: float) -> None:
        self._file = file
        self._encoder = Encoder()
        self._last_ns = -1
        self.ticks = 0
        self._line(json.dumps(header(made_by=f"gpuledger {__version__}", interval_s=interval_s)))

    def write(self, tick: Tick) -> None:
        """Append a tick, unless it is not after the one before: a clock set back, or a replay that repeats itself."""
        if tick.time_ns <= self._last_ns:
            return
        self._last_ns = tick.time_ns
        self._line(self._encoder.line(tick))
        self.ticks += 1

    def _line(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")


@contextmanager
def recording(path: Path, interval_s: float) -> Iterator[Recorder]:
    """A recorder whose file takes its name at the end of the block; a recording that broke off leaves none."""
    with replacing(path) as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file) as packed:
        yield Recorder(packed, interval_s)
