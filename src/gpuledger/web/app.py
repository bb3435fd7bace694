"""Routes from paths to handlers, which read only the last finished tick."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence

from gpuledger import __version__
from gpuledger.catalog import GROUPS, groups_with
from gpuledger.catalog.dialects import DIALECTS, Choices
from gpuledger.catalog.dialects.dcgmnames import NAMES
from gpuledger.model import Tick
from gpuledger.web import scaling
from gpuledger.web.api import Api
from gpuledger.web.bodies import Families, Section, Sections, UpstreamBodies, response
from gpuledger.web.http import LIVENESS, READINESS, Request, Response
from gpuledger.web.json import learned_json
from gpuledger.web.parts import Part, Parts
from gpuledger.web.responses import FOLDER, FORBIDDEN, NOT_READY, TYPES, Files, not_found
from gpuledger.web.snapshot.history import History

NO_CHOICES = Choices()
UPSTREAM_PATH = "/gpu/metrics"
"""Without an upstream, this path serves the dialect of the old pod exporter, which used it too."""
INDEX = "index.html"
FILES_PATH = "/page/"
FILES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.suffix in TYPES and path.name != INDEX))
API_LINK = ("/api/v1/", "JSON API")


class App:
    """Handles requests. `latest` returns the last tick, `age_s` its age.

    `upstream` returns another exporter's metrics; they have their own page and can be appended to ours. Without
    `has_metrics`, nothing is exposed for Prometheus.
    """

    def __init__(
        self,
        latest: Callable[[], Tick | None],
        age_s: Callable[[], float | None],
        *,
        interval_s: float,
        driver_timeout_s: float = 0.0,
        telemetry_path: str = "/metrics",
        dialects: Sequence[str] = ("native",),
        choices: Choices = NO_CHOICES,
        upstream: Callable[[], Families | None] | None = None,
        upstream_in_metrics: bool = False,
        has_metrics: bool = True,
        api: Api | None = None,
        parts: Parts | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._latest = latest
        self._age_s = age_s
        self._oldest_s = max(10.0, 5 * interval_s, 3 * driver_timeout_s)
        self._monotonic = monotonic
        self._started = monotonic()
        self._dialects = tuple(dialects)
        self._groups_by_default = groups_with(choices.optional)
        self._parts = parts or Parts()
        self._sections = Sections(choices, self._parts)
        self._upstream_bodies = UpstreamBodies(upstream or (lambda: None), self._parts)
        self._has_upstream_in_metrics = upstream is not None and upstream_in_metrics
        self._files = Files(transform=self._with_links)
        telemetry = {telemetry_path: (self._metrics, "Prometheus metrics")}
        metrics = telemetry | {
            dialect.path: (self._dialect(dialect.name), f"Metric names of {dialect.about}")
            for dialect in DIALECTS.values()
            if dialect.path
        }
        if upstream is not None:
            metrics[UPSTREAM_PATH] = self._upstream, "Metrics of the local dcgm-exporter, with pods"
        metrics = metrics | telemetry if has_metrics else {}
        self._links = [*((path, about) for path, (_, about) in metrics.items()), API_LINK]
        api = self._api = api or Api(History(interval_s))
        page = {"/": self._file(INDEX), **{f"{FILES_PATH}{name}": self._file(name) for name in FILES}}
        probes = dict.fromkeys(LIVENESS, self._healthz) | dict.fromkeys(READINESS, self._readyz)
        self._own = {*page, *probes, *api.own}
        """The paths of pages that are open to tenants."""
        self._pages: dict[str, Callable[[Request], Response]] = {
            **page,
            **probes,
            **api.pages,
            "/api/v1/fingerprints": self._fingerprints,
            scaling.PATH: self._scaling,
            **{path: page for path, (page, _) in metrics.items()},
        }

    def __call__(self, request: Request) -> Response:
        """The response to a request. Tenants get the same response for pages that are closed and that do not exist."""
        if request.viewer is not None and request.path not in self._own:
            return FORBIDDEN
        page = self._pages.get(scaling.PATH if request.path.startswith(f"{scaling.PATH}/") else request.path)
        if page is not None:
            return page(request)
        return not_found(request.path, sorted(path for path in self._pages if not path.startswith(FILES_PATH)))

    def _metrics(self, request: Request) -> Response:
        names = [name.strip() for text in request.query.get("dialect", ()) for name in text.split(",")]
        if unknown := [name for name in names if name not in DIALECTS]:
            return Response.text(400, f"unknown dialect {unknown[0]!r}; use {', '.join(DIALECTS)}")
        collected, excluded = (request.query.get(key, []) for key in ("collect[]", "exclude[]"))
        if collected or excluded:
            return self._groups(request, collected, excluded, names)
        if names:
            return self._dialects_of(request, names)
        return self._dialects_of(request, self._dialects, has_upstream=self._has_upstream_in_metrics)

    def _groups(self, request: Request, collected: list[str], excluded: list[str], names: list[str]) -> Response:
        """Some groups of metrics, as in node_exporter."""
        if collected and excluded:
            return Response.text(400, "collect[] and exclude[] cannot be combined; use one of them")
        if names or self._dialects != ("native",):
            return Response.text(400, "collect[] and exclude[] select native metrics; use neither with a dialect")
        if unknown := [name for name in (*collected, *excluded) if name not in GROUPS]:
            return Response.text(400, f"unknown group {unknown[0]!r}; use {', '.join(GROUPS)}")
        groups = set(collected) if collected else set(self._groups_by_default) - set(excluded)
        return self._render(request, self._sections.of_groups(groups))

    def _dialect(self, dialect: str) -> Callable[[Request], Response]:
        return lambda request: self._dialects_of(request, [dialect])

    def _dialects_of(self, request: Request, names: Sequence[str], *, has_upstream: bool = False) -> Response:
        """Some dialects; `?names=` selects the names of the dcgm dialect."""
        dcgm_names = "".join(request.query.get("names", ()))
        if dcgm_names not in ("", *NAMES):
            return Response.text(400, f"unknown names {dcgm_names!r}; use {', '.join(NAMES)}")
        sections, families = self._sections.of_dialects(names, dcgm_names)
        return self._render(request, sections, self._upstream_bodies.without(families) if has_upstream else None)

    def _render(self, request: Request, sections: Sequence[Section], more: Sequence[Part] | None = None) -> Response:
        tick = self._latest()
        return NOT_READY if tick is None else response(request, tick, sections, self._parts, more)

    def _upstream(self, request: Request) -> Response:
        if metrics := self._upstream_bodies.response(request):
            return metrics
        tick = self._latest()
        upstream = tick.health.upstream if tick else None
        return Response.text(503, f"no metrics to pass on: {upstream.reason if upstream else 'not read yet'}")

    def _fingerprints(self, request: Request) -> Response:
        tick = self._latest()
        return NOT_READY if tick is None else self._api.shared(request, tick, lambda: learned_json(tick))

    def _scaling(self, request: Request) -> Response:
        tick, ready = self._latest(), self._readyz(request)
        if tick is None or ready.status != 200:
            return ready  # an autoscaler must not act on old data
        return scaling.answer(tick, request.path.removeprefix(scaling.PATH), request.query)

    def _healthz(self, _: Request) -> Response:
        """Whether the loop ticks. A driver that is down is no reason to restart the exporter."""
        age_s = self._age_s()
        if age_s is None:
            age_s = self._monotonic() - self._started
        if age_s > self._oldest_s:
            return Response.text(503, f"no tick has finished for {age_s:.0f} s; the loop has stopped")
        return Response.text(200, "ok")

    def _readyz(self, request: Request) -> Response:
        return NOT_READY if self._latest() is None else self._healthz(request)

    def _file(self, name: str) -> Callable[[Request], Response]:
        return lambda request: self._files.answer(name, request)

    def _with_links(self, name: str, text: str) -> str:
        """Insert links into the page. They are relative, so that the page works behind any proxy prefix."""
        if name != INDEX:
            return text
        items = [
            f'<li><a href=".{html.escape(path)}">{html.escape(about)}</a> <code>{html.escape(path)}</code></li>'
            for path, about in self._links
        ]
        insertions = {
            "links": "".join([items[0], *items[1:][-1:]]),
            "dialects": "".join(items[1:-1]),
            "version": __version__,
        }
        for place, insertion in insertions.items():
            text = text.replace(f"<!-- {place} -->", insertion)
        return text
