"""The pages of the service."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.export.bodies import Bodies
from gpuledger.export.http import Request, Response, not_found
from gpuledger.export.negotiate import choose_encoding, choose_format
from gpuledger.export.text import Renderer
from gpuledger.fleet.in_use import Key
from gpuledger.fleet.shown import Shown, families


class Pages:
    """Answers requests. `shown` gives what is known, `tried_s_ago` when it was last tried to know more."""

    def __init__(
        self,
        shown: Callable[[], Shown],
        tried_s_ago: Callable[[], float],
        *,
        groupings: tuple[Key, ...],
        longest_s: float,
        telemetry_path: str = "/metrics",
    ) -> None:
        self._shown, self._tried_s_ago, self._longest_s = shown, tried_s_ago, longest_s
        self._bodies = Bodies(Renderer(families(groupings)))
        self._pages: dict[str, Callable[[Request], Response]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            telemetry_path: self._metrics,
        }

    def __call__(self, request: Request) -> Response:
        """The page for a request."""
        page = self._pages.get(request.path)
        return page(request) if page is not None else not_found(request.path, sorted(self._pages))

    def _metrics(self, request: Request) -> Response:
        fmt = choose_format(request.headers.get("accept"))
        encoding = choose_encoding(request.headers.get("accept-encoding"))
        headers = [("Content-Type", fmt.content_type), ("Vary", "Accept, Accept-Encoding")]
        if encoding != "identity":
            headers.append(("Content-Encoding", encoding))
        return Response(200, headers, self._bodies.get(self._shown(), fmt, encoding))

    def _healthz(self, _: Request) -> Response:
        """Alive: it goes on asking. A Prometheus that is down is no reason to be restarted."""
        ago_s = self._tried_s_ago()
        if ago_s > self._longest_s:
            return Response.text(503, f"Prometheus was not asked for {ago_s:.0f} s; the thread that does has stopped")
        return Response.text(200, "ok")

    def _readyz(self, request: Request) -> Response:
        shown = self._shown()
        if not shown.up:
            return Response.text(503, f"there is nothing to show: {shown.reason}")
        return self._healthz(request)
