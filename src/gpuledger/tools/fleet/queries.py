"""PromQL queries for gpuledger's own metrics and for those of dcgm-exporter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.catalog import CATALOG, metrics
from gpuledger.catalog.dialects.dcgmnames import BY_OLD
from gpuledger.catalog.others import DCGM_MEMORY_ACTIVITY, DCGM_SHARING, DCGM_UTILIZATION
from gpuledger.config import durations
from gpuledger.model.in_use import ALLOCATION_PROVIDERS
from gpuledger.tools.fleet.usage import HOLDER_LABELS, SOURCES, Key
from gpuledger.tools.prometheus.expression import Expression, series, union

ALLOCATIONS = union([
    series(metrics.gpu_pod_allocation_info),
    series(metrics.gpu_container_allocation_info),
    series(metrics.gpu_job_allocation_info),
])  # fmt: skip
GPU_LABELS = frozenset(label for family in CATALOG if family.name == metrics.gpu_info for label in family.labels)


@dataclass(frozen=True, slots=True)
class FleetQueries:
    """PromQL by purpose; an empty query is not run."""

    utilization: str
    memory: str = ""
    allocated: str = ""
    resident: str = ""
    residents: str = ""
    """Processes on the GPUs, with holder labels."""
    info: str = ""
    """Additional labels of the GPUs."""
    newest: str = ""
    """One value: Unix time of the newest utilization sample."""
    known: str = ""
    """One value: above 0 if allocations are reported."""

    def per_gpu(self) -> list[tuple[str, str]]:
        """The queries that return series per GPU and are not empty, by name."""
        names = ("utilization", "memory", "allocated", "resident", "residents", "info")
        return [(name, text) for name in names if (text := getattr(self, name))]


def native(groupings: Iterable[Key], window_s: float = 0.0) -> FleetQueries:
    """Queries for gpuledger: current values or, over a window, busy seconds divided by in-use seconds."""
    labels = _sources(groupings)
    own = tuple(label for label in labels if label not in HOLDER_LABELS)
    held = tuple(label for label in labels if label in HOLDER_LABELS)
    described = tuple(label for label in labels if label in GPU_LABELS)
    busy, memory_ratio = series(metrics.gpu_utilization_ratio), series(metrics.gpu_memory_utilization_ratio)
    values: tuple[Expression, ...] = (busy, memory_ratio, series(metrics.gpu_in_use))
    if window_s:
        window, busy = durations.show(window_s), series(metrics.gpu_busy_seconds_total)
        in_use = series(metrics.gpu_in_use_seconds_total).over("rate", window)
        values = (busy.over("rate", window), memory_ratio.over("avg_over_time", window), in_use)
    utilization, memory, resident = values
    residents = series(metrics.container_gpu_detected).where("evidence", "=", "process")
    pattern = ALLOCATION_PROVIDERS
    return FleetQueries(
        utilization=_max(own, utilization),
        memory=_max((), memory),
        allocated=_max(held, ALLOCATIONS),
        resident=_max((), resident),
        residents=_max(held, residents) if held else "",
        info=_max(described, series(metrics.gpu_info)) if described else "",
        newest=_newest(busy),
        known=series(metrics.gpuledger_provider_up).where("provider", "=~", pattern).aggregate("max").text,
    )


def dcgm(groupings: Iterable[Key]) -> FleetQueries:
    """Queries for dcgm-exporter, which reports no processes and repeats the series of a shared GPU for each pod."""
    labels = ("GPU_I_ID", *_sources(groupings))
    utilizations = [series(DCGM_UTILIZATION), series(BY_OLD[DCGM_UTILIZATION].new)]
    allocated = [name.where("pod", "!=", "").op(">= bool", 0) for name in utilizations]
    return FleetQueries(
        utilization=_max(labels, _percent(DCGM_UTILIZATION), "UUID"),
        memory=_max(labels, _percent(DCGM_MEMORY_ACTIVITY), "UUID"),
        allocated=_max(labels, union([*allocated, series(DCGM_SHARING)]), "UUID"),
        newest=union(name.call("timestamp") for name in utilizations).aggregate("max").text,
    )


def _percent(old: str) -> Expression:
    """A utilization in percent, from dcgm-exporters of any version: a fleet has both for months."""
    rename = BY_OLD[old]
    return series(old).op("or", series(rename.new).op("*", rename.unit.per))


def _sources(groupings: Iterable[Key]) -> tuple[str, ...]:
    names = [source for grouping in groupings for name in grouping for source in SOURCES.get(name, (name,))]
    return tuple(dict.fromkeys(names))


def _max(labels: tuple[str, ...], query: Expression, gpu: str = "uuid") -> str:
    """One series per GPU and label set, even if several jobs scrape it; a tenth of the bytes."""
    return query.max_by(gpu, *labels).text


def _newest(query: Expression) -> str:
    return query.call("timestamp").aggregate("max").text
