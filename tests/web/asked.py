"""An app with an API, and a host with everything on it."""

from __future__ import annotations

import json
from typing import Any

from gpuledger.model import Tick
from gpuledger.web.api import ROOT, Api
from gpuledger.web.app import App
from gpuledger.web.http import Request, Response
from gpuledger.web.snapshot.history import History
from tests.web.snapshot.nodes import Node


class Asked:
    """An app with an API to which some ticks were published."""

    def __init__(self, *ticks: Tick, max_connections: int = 64) -> None:
        self.api = Api(History(1.0), node="n1", max_connections=max_connections)
        for tick in ticks:
            self.api.publish(tick)
        self.app = App(lambda: ticks[-1] if ticks else None, lambda: 0.1, interval_s=1.0, api=self.api)

    def get(self, name: str, method: str = "GET", **headers: str) -> Response:
        """An answer."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return self.app(Request(method, f"{ROOT}/{name}", {}, named, "HTTP/1.1", keep_alive=True))

    def json(self, name: str) -> Any:
        """An answer that is JSON."""
        answer = self.get(name)
        assert (answer.status, dict(answer.headers)["Content-Type"]) == (200, "application/json")
        return json.loads(answer.body if isinstance(answer.body, bytes) else b"".join(answer.body))


def node(**more: Any) -> list[Tick]:
    """A host with everything wrong that can be."""
    made = Node(4, 40, troubled=True, **more)
    return [made.tick() for _ in range(15)]
