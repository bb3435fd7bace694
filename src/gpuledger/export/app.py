"""The pages: which path shows what. Only ever looks at the last finished tick."""

from __future__ import annotations

import html
import time
from collections.abc import Callable

from gpuledger import __version__
from gpuledger.export.bodies import Bodies
from gpuledger.export.http import Request, Response, not_found
from gpuledger.export.json import learned_json
from gpuledger.export.negotiate import choose_encoding, choose_format
from gpuledger.export.text import Renderer
from gpuledger.model import Tick

HTML = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
)
JSON = (("Content-Type", "application/json"),)


class App:
    """Answers requests. `latest` gives the last tick, `age_s` how old it is."""

    def __init__(
        self,
        latest: Callable[[], Tick | None],
        age_s: Callable[[], float | None],
        *,
        interval_s: float,
        driver_timeout_s: float = 0.0,
        telemetry_path: str = "/metrics",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._latest = latest
        self._age_s = age_s
        self._oldest_s = max(10.0, 5 * interval_s, 3 * driver_timeout_s)
        self._monotonic = monotonic
        self._started = monotonic()
        self._telemetry_path = telemetry_path
        self._bodies = Bodies(Renderer())
        self._pages: dict[str, Callable[[Request], Response]] = {
            "/": self._landing,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/api/v1/fingerprints": self._fingerprints,
            telemetry_path: self._metrics,
        }

    def __call__(self, request: Request) -> Response:
        """The page for a request."""
        page = self._pages.get(request.path)
        return page(request) if page is not None else not_found(request.path, sorted(self._pages))

    def _metrics(self, request: Request) -> Response:
        tick = self._latest()
        if tick is None:
            return Response.text(503, "the first reading is not done yet; try again in a second")
        fmt = choose_format(request.headers.get("accept"))
        encoding = choose_encoding(request.headers.get("accept-encoding"))
        headers = [("Content-Type", fmt.content_type), ("Vary", "Accept, Accept-Encoding")]
        if encoding != "identity":
            headers.append(("Content-Encoding", encoding))
        return Response(200, headers, self._bodies.get(tick, fmt, encoding))

    def _fingerprints(self, _: Request) -> Response:
        tick = self._latest()
        if tick is None:
            return Response.text(503, "the first reading is not done yet; try again in a second")
        return Response(200, JSON, learned_json(tick))

    def _healthz(self, _: Request) -> Response:
        """Alive: the loop ticks. A driver that is down is no reason to be restarted."""
        age_s = self._age_s()
        if age_s is None:
            age_s = self._monotonic() - self._started
        if age_s > self._oldest_s:
            return Response.text(503, f"no tick was finished for {age_s:.0f} s; the loop has stopped")
        return Response.text(200, "ok")

    def _readyz(self, request: Request) -> Response:
        if self._latest() is None:
            return Response.text(503, "the first reading is not done yet")
        return self._healthz(request)

    def _landing(self, _: Request) -> Response:
        path = html.escape(self._telemetry_path)
        return Response(200, HTML, LANDING.format(path=path, version=__version__, state=self._state()).encode())

    def _state(self) -> str:
        tick = self._latest()
        if tick is None:
            return "The first reading is not done yet."
        if not tick.driver.up:
            return f"The driver cannot be read: {html.escape(tick.driver.reason)}"
        gpus = [r for r in tick.readings if not r.device.parent_uuid]
        up = sum(r.up for r in gpus)
        recording = " This is a recording, not this host." if tick.source == "replay" else ""
        return f"{up} of {len(gpus)} GPUs up, {len(tick.resident_pids())} processes on them.{recording}"


LANDING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>gpuledger</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 0; }}
h1 {{ background: #2d6a4f; color: #fff; margin: 0; padding: .6em 1em; font-size: 1.4em; }}
main {{ padding: 1em 1.4em; }}
</style></head><body><h1>gpuledger {version}</h1><main>
<p>{state}</p>
<ul><li><a href="{path}">Metrics</a></li><li><a href="/healthz">Health</a></li><li><a href="/readyz">Ready</a></li></ul>
</main></body></html>
"""
