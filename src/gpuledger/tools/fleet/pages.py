"""The state, the metrics and the HTTP pages of `gpuledger fleet`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from gpuledger.catalog import Family, Kind, Series, metrics
from gpuledger.catalog.exporter import FAMILIES as EXPORTER_FAMILIES
from gpuledger.catalog.family import C, G, Thing, at, flag
from gpuledger.catalog.kinds import EXPORTER
from gpuledger.tools.fleet.usage import Key, Usage
from gpuledger.web.bodies import Section, response
from gpuledger.web.http import LIVENESS, PROBES, READINESS, Request, Response
from gpuledger.web.parts import Parts
from gpuledger.web.responses import FORBIDDEN, not_found
from gpuledger.web.text import Renderer

FROM = "Prometheus"
SELF = "gpuledger itself"


@dataclass(frozen=True, slots=True)
class FleetState:
    """The last valid result, unless it is too old, and the health of the refresh."""

    usages: tuple[Usage, ...] = ()
    """The whole cluster first; empty if there is no recent result."""
    percent: bool = False
    """Whether utilizations are percentages instead of ratios."""
    success: bool = False
    reason: str = "not queried yet"
    refreshes: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    data_time_s: float | None = None
    """Unix time of the last valid result, by the clock of Prometheus."""
    duration_ns: int = 0
    series: tuple[tuple[str, int], ...] = ()
    dropped: int = 0
    warnings: tuple[str, ...] = ()
    source: str = "prometheus"

    @property
    def up(self) -> bool:
        """Whether there is a recent result."""
        return bool(self.usages)


def _ratio(name: str) -> Callable[[tuple[Usage, bool]], float | None]:
    def read(thing: tuple[Usage, bool]) -> float | None:
        value: float | None = getattr(thing[0], name)
        return None if value is None else value / 100 if thing[1] else value

    return read


def _count(name: str) -> Callable[[tuple[Usage, bool]], int | None]:
    read = attrgetter(name)
    return lambda thing: read(thing[0])


def _cluster_utilization(state: FleetState) -> float | None:
    return state.usages[0].utilization if state.usages else None


def _query_series(state: FleetState) -> Series:
    return [((name,), count) for name, count in state.series]


def families(groupings: tuple[Key, ...]) -> tuple[Family, ...]:
    """All metrics of the service. Series of a group have the labels of its grouping; the others are empty."""
    names = tuple(dict.fromkeys(name for grouping in groupings for name in grouping))
    places = {"+".join(grouping): [names.index(name) for name in grouping] for grouping in groupings}

    def things(state: FleetState) -> Iterator[Thing]:
        for usage in state.usages:
            values = [""] * len(names)
            for place, value in zip(places.get(usage.by, ()), usage.labels, strict=True):
                values[place] = value
            yield (usage.by, *values), (usage, state.percent)

    group = Kind(("by", *names), things, sparse=True)
    return (
        next(family for family in EXPORTER_FAMILIES if family.name == metrics.gpuledger_build_info),
        Family("gpu_fleet_up", G, EXPORTER,
               "1 if the result is recent; 0, without values of GPUs, if Prometheus has not answered for --max-age.",
               SELF, flag("up")),
        Family("gpu_fleet_in_use_utilization_ratio", G, group, "Mean utilization of the GPUs in use, or 0.",
               FROM, _ratio("utilization"), unit="ratio"),
        Family("gpu_fleet_in_use_memory_utilization_ratio", G, group,
               "Mean memory utilization of the GPUs in use; 0 if there are none.",
               FROM, _ratio("memory"), unit="ratio"),
        Family("gpu_fleet_gpus", G, group, "GPUs that have a utilization.", FROM, _count("gpus")),
        Family("gpu_fleet_gpus_in_use", G, group, "GPUs in use, by the rule of --in-use.", FROM, _count("in_use")),
        Family("gpu_fleet_gpus_idle", G, group, "GPUs not in use, by the same rule.", FROM, _count("idle")),
        Family("gpu_fleet_gpus_allocated", G, group,
               "Allocated GPUs, used or not; absent if no exporter reports allocations.",
               FROM, _count("allocated")),
        Family("avg_GPU_utilization", G, EXPORTER,
               "Mean utilization of the GPUs in use in the cluster, in the unit of the query.",
               FROM, _cluster_utilization),
        Family("gpu_fleet_refresh_success", G, EXPORTER, "1 if the last refresh succeeded; else see the log.",
               SELF, flag("success")),
        Family("gpu_fleet_refreshes_total", C, EXPORTER, "Refreshes since the start.", SELF, at("refreshes")),
        Family("gpu_fleet_refresh_failures_total", C, EXPORTER, "Failed refreshes, by reason.",
               SELF, series=lambda state: [((kind,), n) for kind, n in state.failures], labels=("reason",)),
        Family("gpu_fleet_refresh_duration_seconds", G, EXPORTER, "Duration of the last successful refresh.",
               SELF, at("duration_ns", 1e9), unit="seconds"),
        Family("gpu_fleet_data_timestamp_seconds", G, EXPORTER,
               "Unix time of the last valid result, by the clock of Prometheus.",
               FROM, at("data_time_s"), unit="seconds"),
        Family("gpu_fleet_query_series", G, EXPORTER, "Series in the last valid answer to each query.",
               FROM, series=_query_series, labels=("query",)),
        Family("gpu_fleet_query_dropped_series", G, EXPORTER,
               "Dropped series of the last valid answers, whose value is not a number.", FROM, at("dropped")),
        Family("gpu_fleet_query_warnings", G, EXPORTER,
               "Warnings in the last valid answers; the log has their texts.",
               FROM, lambda state: len(state.warnings)),
    )  # fmt: skip


class Pages:
    """Handles requests. `state` returns the state, `since_refresh_s` the time since the last refresh."""

    def __init__(
        self,
        state: Callable[[], FleetState],
        since_refresh_s: Callable[[], float],
        *,
        groupings: tuple[Key, ...],
        longest_s: float,
        telemetry_path: str = "/metrics",
        more: Mapping[str, Callable[[Request], Response]] | None = None,
    ) -> None:
        """`more` are other pages, by path."""
        self._state, self._since_refresh_s, self._longest_s = state, since_refresh_s, longest_s
        self._parts = Parts()
        self._section = Section(Renderer(families(groupings)), self._parts)
        self._pages: dict[str, Callable[[Request], Response]] = {
            **dict.fromkeys(LIVENESS, self._healthz),
            **dict.fromkeys(READINESS, self._readyz),
            telemetry_path: self._metrics,
            **(more or {}),
        }

    def __call__(self, request: Request) -> Response:
        """The response to a request. All pages are about the whole cluster: tenants see none of them."""
        if request.viewer is not None and request.path not in PROBES:
            return FORBIDDEN
        page = self._pages.get(request.path)
        return page(request) if page is not None else not_found(request.path, sorted(self._pages))

    def _metrics(self, request: Request) -> Response:
        return response(request, self._state(), [self._section], self._parts)

    def _healthz(self, _: Request) -> Response:
        """Whether refreshes continue. A Prometheus that is down is no reason to restart the service."""
        ago_s = self._since_refresh_s()
        if ago_s > self._longest_s:
            return Response.text(503, f"no refresh for {ago_s:.0f} s; the refresh thread has stopped")
        return Response.text(200, "ok")

    def _readyz(self, request: Request) -> Response:
        state = self._state()
        if not state.up:
            return Response.text(503, f"no recent result: {state.reason}")
        return self._healthz(request)
