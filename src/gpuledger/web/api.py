"""`/api/v1`: the snapshot of the last tick, the hour before it, and a stream of ticks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.errors import ReviewError
from gpuledger.model import Tick
from gpuledger.web.http import Request, Response, Viewer
from gpuledger.web.negotiate import choose_encoding
from gpuledger.web.parts import Part, Parts
from gpuledger.web.responses import MANY_STREAMS, NOT_READY, Files, encoded, unavailable
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.codec import encode, schemas
from gpuledger.web.snapshot.history import History, Past
from gpuledger.web.snapshot.own import Scope, namespaces_of, own_past, own_snapshot
from gpuledger.web.snapshot.schema import VERSION, Snapshot
from gpuledger.web.streams import Streams

ROOT = "/api/v1"
DESCRIPTION = "openapi.json"
MAX_STREAMS = 16
MOST_PAGES = 64
"""Encoded pages in memory; each tenant has two."""
NO_STORE = ("Cache-Control", "no-store")
EVENTS = "text/event-stream"


class Api:
    """Serves the published tick. All requests are GET; JSON is encoded on the first request for a tick.

    Streams take a quarter of the connections at most, so that browsers cannot lock out a scraper.
    """

    def __init__(
        self, history: History, *, node: str = "", max_connections: int = 64, parts: Parts | None = None
    ) -> None:
        self._history, self._node, self._parts = history, node, parts or Parts()
        self._tick: Tick | None = None
        self._pages_lock = threading.Lock()
        self._cached: dict[tuple[object, ...], tuple[object, Part]] = {}
        self._files = Files(Path(__file__).parent, describe)
        self.streams = Streams(self._newest, min(MAX_STREAMS, max_connections // 4))
        self.own = frozenset(f"{ROOT}/{name}" for name in ("", "snapshot", "history", DESCRIPTION))
        """Paths of pages that are open to tenants. A stream would outlive their rights."""
        self.pages: dict[str, Callable[[Request], Response]] = {
            f"{ROOT}/": self._index,
            f"{ROOT}/snapshot": self._snapshot,
            f"{ROOT}/history": self._past,
            f"{ROOT}/events": self._events,
            f"{ROOT}/{DESCRIPTION}": lambda request: self._files.answer(DESCRIPTION, request),
        }

    def publish(self, tick: Tick) -> None:
        """Serve a finished tick from now on."""
        self._history.add(tick)
        self._tick = tick
        self.streams.wake()

    def close(self) -> None:
        """End all streams."""
        self.streams.close()

    def _newest(self) -> Part | None:
        """The snapshot of the last tick, shared by pages and streams."""
        tick = self._tick
        if tick is None:
            return None

        def body() -> bytes:
            before, colours = self._history.before(), self._history.colours.now
            return encode(snapshot(tick, before, node=self._node, colours=colours))

        return self._part(f"{ROOT}/snapshot", tick, body)

    def _snapshot(self, request: Request) -> Response:
        if request.viewer is not None:
            return self._own(request, request.viewer)
        part = self._newest()
        return NOT_READY if part is None else self._send(request, part)

    def _past(self, request: Request) -> Response:
        if request.viewer is not None:
            return self._own(request, request.viewer)
        return self.shared(request, self._tick, lambda: encode(self._history.past()))

    def _own(self, request: Request, viewer: Viewer) -> Response:
        """The snapshot or the history of one tenant."""
        tick, before = self._tick, self._history.before()
        if tick is None:
            return NOT_READY
        try:
            namespaces = viewer.readable(namespaces_of(tick)) if viewer.readable else None
        except ReviewError as error:
            return unavailable(error)
        scope = Scope(viewer.name, namespaces, viewer.uid)

        def body() -> bytes:
            if request.path == f"{ROOT}/snapshot":
                return encode(own_snapshot(tick, before, scope, node=self._node))
            return encode(own_past(self._history.past(), tick, scope))

        return self.shared(request, tick, body, scope)

    def shared(self, request: Request, of: object, body: Callable[[], bytes], scope: Scope | None = None) -> Response:
        """A page that is encoded once, as long as it is `of` the same tick, because many clients may open it."""
        return self._send(request, self._part(request.path, of, body, scope))

    def _send(self, request: Request, part: Part) -> Response:
        return self._parts.response(request, "application/json", [part], NO_STORE, vary="Accept-Encoding")

    def _part(self, path: str, of: object, body: Callable[[], bytes], scope: Scope | None = None) -> Part:
        key = path, scope
        with self._pages_lock:
            cached = self._cached.get(key)
            if cached is None or cached[0] is not of or cached[1].deflated is None:
                self._cached.pop(key, None)
                while len(self._cached) >= MOST_PAGES:
                    del self._cached[next(iter(self._cached))]
                cached = self._cached[key] = of, self._parts.create([body()])
            return cached[1]

    def _events(self, request: Request) -> Response:
        if request.method == "HEAD":
            return encoded(request, EVENTS, lambda _: b"", NO_STORE)
        gzip = choose_encoding(request.headers.get("accept-encoding")) == "gzip"
        stream = self.streams.join(gzip=gzip)
        if stream is None:
            return MANY_STREAMS
        return encoded(request, EVENTS, lambda _: stream, NO_STORE, live=True)

    def _index(self, request: Request) -> Response:
        description: dict[str, Any] = json.loads(self._files.text(DESCRIPTION))
        resources = [{"path": path, "about": item["get"]["summary"]} for path, item in description["paths"].items()]
        index = {"version": VERSION, "gpuledger": __version__, "resources": resources}
        return self.shared(request, self._files, lambda: encode(index))


def describe(name: str, text: str) -> str:
    """The text of a file; that of openapi.json with the schemas derived from the dataclasses of the snapshot."""
    if name != DESCRIPTION:
        return text
    description: dict[str, Any] = json.loads(text)
    description["components"]["schemas"] |= schemas(Snapshot, Past)
    return json.dumps(description, indent=2) + "\n"
