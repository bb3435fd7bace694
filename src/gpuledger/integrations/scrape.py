"""The metrics of a dcgm-exporter, read from its URL or from a file within limits of size and time."""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuledger.errors import HttpError, UpstreamError
from gpuledger.integrations.exposition import DEFAULT_LIMITS, Limits, Parser, ScrapedFamily
from gpuledger.net.address import Place
from gpuledger.net.answers import refused
from gpuledger.net.http import Client

HEADERS = ("Accept: text/plain;version=0.0.4", "Accept-Encoding: gzip")
GZIP = zlib.MAX_WBITS | 16
PIECE = 256 << 10
SETTLED_NS = 2_000_000_000
"""A file may change twice within one tick of the kernel's clock and keep its time stamp."""

REASONS = {"permission": "unreachable", "missing": "unreachable", "refused": "unreachable", "tls": "unreachable"}
"""Kinds of HttpError that are merged in the label `reason`."""
FIXES = {
    "half": "the last response is still served",
    "timeout": "check whether it is overloaded",
    "unreachable": "check whether the dcgm-exporter is running",
    "tls": "add its CA certificate to the trust store of this host",
}
OTHER_SERVER = "check whether it is a dcgm-exporter"
HEALTHY = "check whether it is a healthy dcgm-exporter"
REFUSALS = {
    401: ("authentication is not supported", "allow access without authentication from this host"),
    403: ("authentication is not supported", "allow access without authentication from this host"),
    404: ("", "use the whole URL, such as http://localhost:9400/metrics"),
}


class Answer(NamedTuple):
    """A response of a source."""

    families: list[ScrapedFamily] | None
    """None if they have not changed since the last read."""
    age_s: float = 0.0
    """Age of the metrics."""


class Source(Protocol):
    """A source of metrics."""

    def read(self) -> Answer:
        """All metrics; raises UpstreamError."""


class Page:
    """Metrics at a URL."""

    def __init__(self, place: Place, timeout_s: float, limits: Limits = DEFAULT_LIMITS) -> None:
        if place.address is None:
            raise ValueError(f"{place} is a file")
        self._client, self._place = Client(place.address, name=str(place)), place
        self._timeout_s, self._limits = timeout_s, limits

    def read(self) -> Answer:
        """The metrics, parsed while they arrive."""
        place = self._place
        try:
            with self._client.stream(place.target, self._timeout_s, self._limits.size, *HEADERS) as response:
                if response.status != 200:
                    raise refused(UpstreamError, str(place), response.status, REFUSALS, HEALTHY, kind="http")
                encoding = response.headers.get("content-encoding", "identity")
                if encoding not in ("gzip", "x-gzip", "identity"):
                    what = f"{place} responds with an encoding that was not requested"
                    raise UpstreamError(what, kind="http")
                pieces = response.pieces()
                return Answer(_parsed(place, unzipped(pieces) if "gzip" in encoding else pieces, self._limits))
        except HttpError as error:
            reason = REASONS.get(error.kind, error.kind)
            fix = FIXES.get(error.kind) or FIXES.get(reason, OTHER_SERVER)
            raise UpstreamError(error.problem.what, fix, reason) from error


class File:
    """Metrics in a file, parsed again when it has changed. A file that is no longer updated is an error."""

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
        self._signature: tuple[int, ...] = ()

    def read(self) -> Answer:
        """The metrics. A half-written file ends without a newline, which is an error until the next read."""
        try:
            # A pipe would block. A link is followed: some textfile directories are links.
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
                return self._read(os.fstat(file.fileno()), iter(lambda: file.read(PIECE), b""))
        except OSError as error:
            self._signature = ()
            raise self._unreadable(f"cannot read {self._path}: {error.strerror or error}") from error

    def _unreadable(self, what: str) -> UpstreamError:
        return UpstreamError(what, "set the path of the file that is written", "unreachable")

    def _read(self, info: os.stat_result, content: Iterable[bytes]) -> Answer:
        if not stat.S_ISREG(info.st_mode):
            raise self._unreadable(f"{self._path} is not a regular file")
        now_ns = self._now_ns()
        age_s = (now_ns - info.st_mtime_ns) / 1e9
        if age_s > self._max_age_s:
            what = f"{self._path} has not been written for more than {self._max_age_s:g} s"
            raise UpstreamError(what, "check whether the program that writes it is running", "stale")
        signature = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
        if signature == self._signature:
            return Answer(None, age_s)
        self._signature = ()
        families = _parsed(self._path, content, self._limits)
        self._signature = signature if now_ns - info.st_mtime_ns > SETTLED_NS else ()
        return Answer(families, age_s)


def unzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress gzip in pieces, so that a decompression bomb exceeds the parser's limit early."""
    stream = zlib.decompressobj(GZIP)
    for piece in pieces:
        compressed = piece
        while compressed and not stream.eof:
            try:
                yield stream.decompress(compressed, PIECE)
            except zlib.error as error:
                raise UpstreamError(f"is not valid gzip: {error}", kind="format") from error
            compressed = stream.unconsumed_tail
        if stream.unused_data:
            raise UpstreamError("has data after the end of its gzip stream", kind="format")
    if not stream.eof:
        raise UpstreamError("has a truncated gzip stream", kind="half")


def _parsed(place: object, pieces: Iterable[bytes], limits: Limits) -> list[ScrapedFamily]:
    parser = Parser(limits)
    try:
        for piece in pieces:
            parser.feed(piece)
        return parser.end()
    except UpstreamError as error:
        problem = error.problem
        raise UpstreamError(f"the response of {place} {problem.what}", problem.fix, problem.kind) from error
