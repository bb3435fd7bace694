"""Response bodies with metrics, cached until the next tick: a second Prometheus costs no second rendering."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from gpuledger.catalog import GROUPS, Family, Moment, families_in
from gpuledger.catalog.dialects import DIALECTS, Choices, families_of
from gpuledger.web.http import Request, Response
from gpuledger.web.negotiate import Format, choose_format
from gpuledger.web.responses import compress, encoded
from gpuledger.web.text import Renderer

LARGEST_CACHED_BYTES = 4 << 20
"""A larger body is streamed instead of cached: 100,000 series are 23 MB as text, 3 MB compressed."""
CACHED_DIALECTS = 8
"""Combinations of dialects or groups that are cached; clients choose which, but not how many."""

VARY = "Accept, Accept-Encoding"

Families = Sequence[tuple[bytes, bytes]]
"""Name and lines of each family of another exporter."""


class Bodies:
    """The bodies of the newest tick by format and encoding. Thread-safe.

    `append` returns text to put after our own metrics.
    """

    def __init__(self, renderer: Renderer, append: Callable[[], Iterable[bytes]] | None = None) -> None:
        self._renderer = renderer
        self._append = append or tuple
        self.openmetrics = renderer.openmetrics and append is None
        """Counters of other exporters do not have the names that OpenMetrics requires."""
        self._lock = threading.Lock()
        self._tick: Moment = None
        self._cache: dict[tuple[Format, str], bytes] = {}

    def response(self, request: Request, tick: Moment) -> Response:
        """The metrics in the format and encoding that the client prefers."""
        fmt = choose_format(request.headers.get("accept")) if self.openmetrics else Format.TEXT
        return encoded(request, fmt.content_type, lambda encoding: self.get(tick, fmt, encoding), vary=VARY)

    def get(self, tick: Moment, fmt: Format, encoding: str) -> bytes | Iterable[bytes]:
        """The whole body, or chunks if it is too large to cache."""
        with self._lock:
            if tick is not self._tick:
                self._tick, self._cache = tick, {}
            key = (fmt, encoding)
            if key in self._cache:
                return self._cache[key]
            chunks = chain(self._renderer.chunks(tick, fmt), self._append())
            body = b"".join(compress(chunks)) if encoding == "gzip" else join_small(chunks)
            if isinstance(body, bytes):
                self._cache[key] = body
            return body


class DialectBodies:
    """Bodies by dialect, or by several dialects together. Created on first use: an unused dialect costs nothing.

    `append` returns text to put after families of these names.
    """

    def __init__(self, choices: Choices, append: Callable[[Collection[str]], Iterable[bytes]] | None = None) -> None:
        self._choices = choices
        self._append = append
        self._bodies: dict[tuple[str, ...], Bodies] = {}

    def get(self, dialects: Iterable[str], dcgm_names: str = "") -> Bodies:
        """The bodies of these dialects, in the order of the table whatever the order of the request."""
        requested = set(dialects)
        names = tuple(name for name in DIALECTS if name in requested)
        choices = replace(self._choices, names=dcgm_names or self._choices.names)
        return self._cached((*names, choices.names), lambda: families_of(names, choices))

    def get_groups(self, groups: Collection[str]) -> Bodies:
        """The bodies of some groups of our own metrics."""
        names = tuple(name for name in GROUPS if name in groups)
        return self._cached(("native", *names), lambda: families_in(names))

    def _cached(self, key: tuple[str, ...], families: Callable[[], tuple[Family, ...]]) -> Bodies:
        bodies = self._bodies.get(key)
        if bodies is None:
            if len(self._bodies) >= CACHED_DIALECTS:
                self._bodies = {}  # another thread may still read the old dictionary
            bodies = self._bodies.setdefault(key, self._create(families()))
        return bodies

    def _create(self, families: tuple[Family, ...]) -> Bodies:
        append = None if self._append is None else partial(self._append, {family.name for family in families})
        return Bodies(Renderer(families, created=self._choices.created), append)


class UpstreamBodies:
    """Bodies with another exporter's metrics, compressed once per response of that exporter.

    `latest` returns its families, or None if there are none to pass on.
    """

    def __init__(self, latest: Callable[[], Families | None]) -> None:
        self._latest = latest
        self._lock = threading.Lock()
        self._compressed: tuple[Families | None, bytes] = (None, b"")

    def response(self, request: Request) -> Response | None:
        """The metrics; None if there are none to pass on."""
        families = self._latest()
        if families is None:
            return None
        return encoded(request, Format.TEXT.content_type, lambda encoding: self._get(families, encoding), vary=VARY)

    def _get(self, families: Families, encoding: str) -> bytes | Iterable[bytes]:
        texts = (text for _, text in families)
        if encoding != "gzip":
            return join_small(texts)
        with self._lock:
            if self._compressed[0] is not families:
                self._compressed = (families, b"".join(compress(texts)))
            return self._compressed[1]

    def without(self, names: Collection[str]) -> Iterator[bytes]:
        """The families that can follow metrics of these names: no family may appear twice."""
        return (text for name, text in self._latest() or () if name.decode() not in names)


def join_small(chunks: Iterator[bytes]) -> bytes | Iterable[bytes]:
    """The chunks as one body, or still as chunks if they are too large to cache."""
    head: list[bytes] = []
    size = 0
    for chunk in chunks:
        head.append(chunk)
        size += len(chunk)
        if size > LARGEST_CACHED_BYTES:
            return chain(head, chunks)
    return b"".join(head)
