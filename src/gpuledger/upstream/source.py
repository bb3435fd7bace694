"""The metrics of a dcgm-exporter, read from its URL or from a file within limits of size and time."""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuledger.errors import HttpError, UpstreamError
from gpuledger.net.address import Address, has_credentials, parse_url
from gpuledger.net.http import Client
from gpuledger.upstream.exposition import DEFAULT_LIMITS, Family, Limits, Parser

HEADERS = ("Accept: text/plain;version=0.0.4", "Accept-Encoding: gzip")
GZIP = zlib.MAX_WBITS | 16
PIECE = 256 << 10
SETTLED_NS = 2_000_000_000
"""Within one tick of the kernel's clock a file can change twice and keep its time stamp."""

REASONS = {"permission": "unreachable", "missing": "unreachable", "refused": "unreachable", "tls": "unreachable"}
"""Kinds of HttpError that the label `reason` does not tell apart."""
FIXES = {
    "half": "the last metrics stay for now",
    "timeout": "is it overloaded?",
    "unreachable": "is the dcgm-exporter running?",
    "tls": "trust the authority of its certificate on this host",
}
OTHER_SERVER = "is it a dcgm-exporter?"
REFUSALS = {
    401: ("requires a login, which is not supported", "let it answer without one here"),
    403: ("requires a login, which is not supported", "let it answer without one here"),
    404: ("", "give the whole address, such as http://localhost:9400/metrics"),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where metrics are: a page of a server, or a file."""

    address: Address | None = None
    target: str = ""
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"http{'s' * bool(self.address and self.address.tls)}://{self.address}{self.target}"


def parse_place(text: str) -> Place:
    """Parse `http://host:9400/metrics`, `https://...`, a path or `file:///path`; ValueError says what is accepted."""
    path = text.removeprefix("file://")
    if path.startswith("/") and "\0" not in path:
        return Place(path=path)
    if has_credentials(text):
        raise ValueError("holds a user name or password, which is not supported; use a dcgm-exporter without a login")
    address, target = parse_url(text) or (None, "")
    if address is None:
        raise ValueError("is no page and no file; write http://localhost:9400/metrics or /run/prometheus/dcgm.prom")
    target = target.partition("#")[0]
    return Place(address, target if target.strip("/") else "/metrics")


class Answer(NamedTuple):
    """The metrics of a source."""

    families: list[Family] | None
    """None if they have not changed since the last read."""
    age_s: float = 0.0
    """How long ago they were written."""


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
        """The metrics, parsed as they arrive."""
        place = self._place
        try:
            with self._client.stream(place.target, self._timeout_s, self._limits.size, *HEADERS) as response:
                if response.status != 200:
                    raise _refused(place, response.status)
                encoding = response.headers.get("content-encoding", "identity")
                if encoding not in ("gzip", "x-gzip", "identity"):
                    what = f"{place} answers in the encoding {encoding[:40]!r}, which was not requested"
                    raise UpstreamError(what, kind="http")
                pieces = response.pieces()
                return Answer(_parsed(place, unzipped(pieces) if "gzip" in encoding else pieces, self._limits))
        except HttpError as error:
            reason = REASONS.get(error.kind, error.kind)
            fix = FIXES.get(error.kind) or FIXES.get(reason, OTHER_SERVER)
            raise UpstreamError(error.problem.what, fix, reason) from error


class File:
    """Metrics in a file, which is read again when it has changed. A file that is no longer written is an error."""

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
        """The metrics. A half-written file ends without a newline, and is read again the next time."""
        try:
            # A pipe would block. A link is followed: some textfile directories are links.
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
                return self._read(os.fstat(file.fileno()), iter(lambda: file.read(PIECE), b""))
        except OSError as error:
            self._signature = ()
            raise self._unreadable(f"cannot read {self._path}: {error.strerror or error}") from error

    def _unreadable(self, what: str) -> UpstreamError:
        return UpstreamError(what, "name the file that is written", "unreachable")

    def _read(self, info: os.stat_result, content: Iterable[bytes]) -> Answer:
        if not stat.S_ISREG(info.st_mode):
            raise self._unreadable(f"{self._path} is no regular file")
        now_ns = self._now_ns()
        age_s = (now_ns - info.st_mtime_ns) / 1e9
        if age_s > self._max_age_s:
            what = f"{self._path} was not written for more than {self._max_age_s:g} s"
            raise UpstreamError(what, "is the program that writes it still running?", "stale")
        signature = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)
        if signature == self._signature:
            return Answer(None, age_s)
        self._signature = ()
        families = _parsed(self._path, content, self._limits)
        self._signature = signature if now_ns - info.st_mtime_ns > SETTLED_NS else ()
        return Answer(families, age_s)


def unzipped(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress gzip, at most one piece at a time, so that a decompression bomb meets the parser's limit."""
    stream = zlib.decompressobj(GZIP)
    for piece in pieces:
        rest = piece
        while rest and not stream.eof:
            try:
                yield stream.decompress(rest, PIECE)
            except zlib.error as error:
                raise UpstreamError(f"is no valid gzip: {error}", kind="format") from error
            rest = stream.unconsumed_tail
        if stream.unused_data:
            raise UpstreamError("has data after the end of its gzip stream", kind="format")
    if not stream.eof:
        raise UpstreamError("ends in the middle of its gzip stream, so the rest is missing", kind="half")


def _parsed(place: object, pieces: Iterable[bytes], limits: Limits) -> list[Family]:
    parser = Parser(limits)
    try:
        for piece in pieces:
            parser.feed(piece)
        return parser.end()
    except UpstreamError as error:
        problem = error.problem
        raise UpstreamError(f"the answer of {place} {problem.what}", problem.fix, problem.kind) from error


def _refused(place: Place, status: int) -> UpstreamError:
    if 300 <= status < 400:
        what = f"{place} answers {status}, a redirect, which is not followed"
        return UpstreamError(what, "give the address it leads to", "http")
    reason, fix = REFUSALS.get(status, ("", "is it a healthy dcgm-exporter?"))
    return UpstreamError(f"{place} answers {status}{reason and f': it {reason}'}", fix, "http")
