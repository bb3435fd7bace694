"""Writing a recording: ticks as they come, into a file that is whole when it appears."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, cast

from gpuledger import __version__
from gpuledger.errors import RecordingError
from gpuledger.model import Tick
from gpuledger.sources.recording import Encoder, header

if TYPE_CHECKING:  # in the standard library since 3.11
    from typing_extensions import Self


class Recorder:
    """Used in a `with` block. The file takes its name at the end; a recording that broke off leaves none."""

    def __init__(self, path: Path, interval_s: float) -> None:
        self._path = path
        self._interval_s = interval_s
        self._partial = path.with_name(path.name + ".partial")
        self._encoder = Encoder()
        self.ticks = 0

    def __enter__(self) -> Self:
        try:
            raw = gzip.open(self._partial, "wt", encoding="utf-8", compresslevel=9)
        except OSError as error:
            raise RecordingError(f"cannot write {self._path}: {error.strerror}; choose another folder") from None
        self._file = cast("TextIO", raw)
        self._line(json.dumps(header(made_by=f"gpuledger {__version__}", interval_s=self._interval_s)))
        return self

    def write(self, tick: Tick) -> None:
        """Append a tick."""
        self._line(self._encoder.line(tick))
        self.ticks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._partial, self._path)  # noqa: PTH105 - atomic
        else:
            self._partial.unlink(missing_ok=True)

    def _line(self, line: str) -> None:
        try:
            self._file.write(line + "\n")
        except OSError as error:
            raise RecordingError(f"cannot write {self._path}: {error.strerror}") from None
