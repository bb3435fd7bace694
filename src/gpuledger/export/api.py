"""`/api/v1`: the last tick as people see it, the ten minutes before it, and every tick as it comes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.export.bodies import compress
from gpuledger.export.files import Files
from gpuledger.export.http import Request, Response
from gpuledger.export.negotiate import choose_encoding
from gpuledger.export.streams import Event, Streams
from gpuledger.model import Tick
from gpuledger.view.history import History
from gpuledger.view.snapshot import VERSION, snapshot

ROOT = "/api/v1"
MOST_STREAMS = 16
DESCRIPTION = "openapi.json"
NO_STORE = ("Cache-Control", "no-store")
BEGIN, END = b"data: ", b"\n\n"
"""Around the JSON of an event, which is one line."""


class Api:
    """Answers from what is published; nothing is written while nobody asks. All of it is GET.

    Streams take a quarter of the connections at most, so that who watches never keeps a scraper out.
    """

    def __init__(self, history: History, *, node: str = "", max_connections: int = 64) -> None:
        self._history, self._node = history, node
        self._tick: Tick | None = None
        self._event: Event | None = None
        self._lock = threading.Lock()
        self._kept_past: tuple[Tick | None, bytes] | None = None
        self._past_lock = threading.Lock()
        self._files = Files(Path(__file__).parent)
        self.streams = Streams(self._newest, min(MOST_STREAMS, max_connections // 4))
        self.pages: dict[str, Callable[[Request], Response]] = {
            f"{ROOT}/": self._index,
            f"{ROOT}/snapshot": self._snapshot,
            f"{ROOT}/history": self._past,
            f"{ROOT}/events": self._events,
            f"{ROOT}/{DESCRIPTION}": lambda request: self._files.answer(DESCRIPTION, request),
        }

    def publish(self, tick: Tick) -> None:
        """A tick is finished."""
        self._history.add(tick)
        with self._lock:
            self._tick, self._event, self._kept_past = tick, None, None
        self.streams.wake()

    def close(self) -> None:
        """End the streams."""
        self.streams.close()

    def _newest(self) -> Event | None:
        """Written by the first who wants it; the others wait for that."""
        with self._lock:
            if self._event is None and self._tick is not None:
                picture = snapshot(self._tick, self._history.before(), node=self._node)
                self._event = Event.of(BEGIN + _json(picture) + END)
            return self._event

    def _snapshot(self, request: Request) -> Response:
        event = self._newest()
        if event is None:
            return Response.text(503, "the first reading is not done yet; try again in a second", ("Retry-After", "1"))
        return _answer(request, event.plain[len(BEGIN) : -len(END)])

    def _past(self, request: Request) -> Response:
        """Written once a tick: the loop waits while the history is looked at, and many pages may open at once."""
        with self._past_lock:
            tick, kept = self._tick, self._kept_past
            if kept is None or kept[0] is not tick:
                kept = self._kept_past = (tick, _json(self._history.picture()))
        return _answer(request, kept[1])

    def _events(self, request: Request) -> Response:
        gzip = choose_encoding(request.headers.get("accept-encoding")) == "gzip"
        headers = [("Content-Type", "text/event-stream"), NO_STORE, ("Vary", "Accept-Encoding")]
        headers += [("Content-Encoding", "gzip")] * gzip
        if request.method == "HEAD":
            return Response(200, headers, b"")
        stream = self.streams.join(gzip=gzip)
        if stream is None:
            return Response.text(503, f"enough are watching; ask {ROOT}/snapshot instead", ("Retry-After", "10"))
        return Response(200, headers, stream, live=True)

    def _index(self, request: Request) -> Response:
        described: dict[str, Any] = json.loads(self._files.text(DESCRIPTION))
        resources = [{"path": path, "about": item["get"]["summary"]} for path, item in described["paths"].items()]
        return _answer(request, _json({"version": VERSION, "gpuledger": __version__, "resources": resources}))


def _json(picture: object) -> bytes:
    return json.dumps(picture, separators=(",", ":"), allow_nan=False).encode()


def _answer(request: Request, body: bytes) -> Response:
    headers = [("Content-Type", "application/json"), NO_STORE, ("Vary", "Accept-Encoding")]
    if choose_encoding(request.headers.get("accept-encoding")) == "gzip":
        return Response(200, [*headers, ("Content-Encoding", "gzip")], b"".join(compress([body])))
    return Response(200, headers, body)
