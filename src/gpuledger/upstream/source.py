"""Reading a dcgm-exporter's metrics from its page or from a file, within limits of size and time."""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuledger.httpclient import Client, HalfAnswerError, HttpError, TooLargeError
from gpuledger.upstream.exposition import DEFAULT_LIMITS, Family, Limits, Parser
from gpuledger.upstream.failure import UpstreamError
from gpuledger.upstream.place import Place

ASKED_FOR = ("Accept: text/plain;version=0.0.4", "Accept-Encoding: gzip", "User-Agent: gpuledger")
GZIP = zlib.MAX_WBITS | 16
PIECE = 256 << 10
SETTLED_NS = 2_000_000_000
"""Within one tick of the kernel's clock a file can change again and look the same."""


class Answer(NamedTuple):
    """What a source says."""

    families: list[Family] | None
    """None when they are the same as last time."""
    age_s: float = 0.0
    """How long ago it was written."""


class Source(Protocol):
    """Somewhere metrics are read from."""

    def read(self) -> Answer:
        """All it has; raises UpstreamError."""


class Page:
    """Asks a server each time."""

    def __init__(self, place: Place, timeout_s: float, limits: Limits = DEFAULT_LIMITS) -> None:
        if place.address is None:
            raise ValueError(f"{place} is a file")
        self._client, self._place = Client(place.address), place
        self._timeout_s, self._limits = timeout_s, limits

    def read(self) -> Answer:
        """The answer, parsed as it arrives."""
        where = self._place
        try:
            with self._client.stream(where.target, self._timeout_s, self._limits.size, *ASKED_FOR) as answer:
                status, headers, body = answer
                if status != 200:
                    raise UpstreamError("http", _refused(where, status))
                encoding = headers.get("content-encoding", "identity")
                if encoding not in ("gzip", "x-gzip", "identity"):
                    raise UpstreamError("http", f"{where} answers in {encoding[:40]!r}, which was not asked for")
                pieces = unzipped(body) if "gzip" in encoding else body
                return Answer(_parsed(where, pieces, self._limits))
        except TooLargeError as error:
            raise UpstreamError("size", f"{where} {error}; is it a dcgm-exporter?") from error
        except HalfAnswerError as error:
            raise UpstreamError("half", f"{where} {error}; what it said before stays for now") from error
        except HttpError as error:
            raise UpstreamError("http", f"{where} {error}; is it a dcgm-exporter?") from error
        except TimeoutError as error:
            message = f"no whole answer from {where} within {self._timeout_s:g} s; is it overloaded?"
            raise UpstreamError("timeout", message) from error
        except OSError as error:
            message = f"cannot reach {where}: {error.strerror or error}; is the dcgm-exporter running?"
            raise UpstreamError("unreachable", message) from error


class File:
    """Reads a file again when it is another one. One that nobody writes any more is no answer."""

    def __init__(
        self,
        place: Place,
        max_age_s: float,
        limits: Limits = DEFAULT_LIMITS,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._path, self._limits = Path(place.path), limits
        self._max_age_s = max_age_s
        self._now_ns = now_ns
        self._seen: tuple[int, ...] = ()

    def read(self) -> Answer:
        """Its content; a half-written one ends without a newline, and is read again next time."""
        try:
            # A pipe would block, and a link is followed: the textfile directories of some are links.
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - of a descriptor
                return self._read(os.fstat(file.fileno()), iter(lambda: file.read(PIECE), b""))
        except OSError as error:
            self._seen = ()
            message = f"cannot read {self._path}: {error.strerror or error}; name the file that is written"
            raise UpstreamError("unreachable", message) from error

    def _read(self, info: os.stat_result, content: Iterable[bytes]) -> Answer:
        if not stat.S_ISREG(info.st_mode):
            raise UpstreamError("unreachable", f"{self._path} is no regular file; name the file that is written")
        now_ns = self._now_ns()
        age_s = (now_ns - info.st_mtime_ns) / 1e9
        if age_s > self._max_age_s:
            raise UpstreamError("stale", f"{self._path} was not written for more than {self._max_age_s:g} s; "
                                "does whatever writes it still run?")  # fmt: skip
        signature = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
        if signature == self._seen:
            return Answer(None, age_s)
        self._seen = ()
        families = _parsed(self._path, content, self._limits)
        self._seen = signature if now_ns - info.st_mtime_ns > SETTLED_NS else ()
        return Answer(families, age_s)


def unzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """What was compressed, never more than a piece of it at a time, so that a bomb meets the parser's limit."""
    stream = zlib.decompressobj(GZIP)
    for piece in pieces:
        waiting = piece
        while waiting and not stream.eof:
            try:
                yield stream.decompress(waiting, PIECE)
            except zlib.error as error:
                raise UpstreamError("format", f"is not compressed as it says: {error}") from error
            waiting = stream.unconsumed_tail
        if stream.unused_data:
            raise UpstreamError("format", "goes on after the end of its compressed form")
    if not stream.eof:
        raise UpstreamError("half", "ends in the middle of its compressed form, so the rest is missing")


def _parsed(where: object, pieces: Iterable[bytes], limits: Limits) -> list[Family]:
    parser = Parser(limits)
    try:
        for piece in pieces:
            parser.feed(piece)
        return parser.end()
    except UpstreamError as error:
        raise UpstreamError(error.reason, f"the answer of {where} {error}") from error


def _refused(where: Place, status: int) -> str:
    if 300 <= status < 400:
        return f"{where} answers {status}, a redirect, which is not followed; give the address it leads to"
    if status in (401, 403):
        return f"{where} answers {status} and wants a login, which is not supported; let it answer without one here"
    if status == 404:
        return f"{where} answers 404; give the whole address, such as http://localhost:9400/metrics"
    return f"{where} answers {status}; is it a healthy dcgm-exporter?"
