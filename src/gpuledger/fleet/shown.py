"""What the service shows at one moment, and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from gpuledger.catalog import Family, Kind, Series
from gpuledger.catalog.exporter import FAMILIES as EXPORTER_FAMILIES
from gpuledger.catalog.family import C, G, Thing, at, flag
from gpuledger.catalog.kinds import EXPORTER
from gpuledger.fleet.in_use import Key, Usage

FROM = "what Prometheus answers"
SELF = "gpuledger itself"


@dataclass(frozen=True, slots=True)
class Shown:
    """The last good answers, unless they are too old, and how the asking goes."""

    usages: tuple[Usage, ...] = ()
    """Empty when nothing is known that is new enough; else the whole cluster first."""
    percent: bool = False
    """Whether utilizations are from 0 to 100 and not to 1."""
    success: bool = False
    reason: str = "not asked yet"
    refreshes: int = 0
    failures: tuple[tuple[str, int], ...] = ()
    asked_s: float | None = None
    """Unix time of the last good answers, by the clock of Prometheus."""
    duration_ns: int = 0
    series: tuple[tuple[str, int], ...] = ()
    dropped: int = 0
    warnings: tuple[str, ...] = ()
    source: str = "prometheus"

    @property
    def up(self) -> bool:
        """Whether there are values to show."""
        return bool(self.usages)


def _ratio(name: str) -> Callable[[tuple[Usage, bool]], float | None]:
    def read(thing: tuple[Usage, bool]) -> float | None:
        value: float | None = getattr(thing[0], name)
        return None if value is None else value / 100 if thing[1] else value

    return read


def _count(name: str) -> Callable[[tuple[Usage, bool]], int | None]:
    read = attrgetter(name)
    return lambda thing: read(thing[0])


def _classic(shown: Shown) -> float | None:
    return shown.usages[0].utilization if shown.usages else None


def _asked(shown: Shown) -> Series:
    return [((name,), count) for name, count in shown.series]


def families(groupings: tuple[Key, ...]) -> tuple[Family, ...]:
    """All metrics of the service; those of groups have the labels of all groupings, each those of its own."""
    names = tuple(dict.fromkeys(name for grouping in groupings for name in grouping))
    places = {"+".join(grouping): [names.index(name) for name in grouping] for grouping in groupings}

    def things(shown: Shown) -> Iterator[Thing]:
        for usage in shown.usages:
            values = [""] * len(names)
            for place, value in zip(places.get(usage.by, ()), usage.labels, strict=True):
                values[place] = value
            yield (usage.by, *values), (usage, shown.percent)

    group = Kind(("by", *names), things, sparse=True)
    return (
        next(family for family in EXPORTER_FAMILIES if family.name == "gpuledger_build_info"),
        Family("gpu_fleet_up", G, EXPORTER,
               "1 while what is shown is new enough; 0 when Prometheus has not answered for --max-age: no value then.",
               SELF, flag("up")),
        Family("gpu_fleet_in_use_utilization_ratio", G, group, "Mean utilization of the GPUs in use; 0 when none is.",
               FROM, _ratio("utilization"), unit="ratio"),
        Family("gpu_fleet_in_use_memory_utilization_ratio", G, group,
               "Mean share of time in which memory was read or written, of the GPUs in use; 0 when none is.",
               FROM, _ratio("memory"), unit="ratio"),
        Family("gpu_fleet_gpus", G, group, "GPUs seen: those with a utilization.", FROM, _count("gpus")),
        Family("gpu_fleet_gpus_in_use", G, group, "GPUs in use, by the rule of --in-use.", FROM, _count("in_use")),
        Family("gpu_fleet_gpus_idle", G, group, "GPUs not in use, by the same rule.", FROM, _count("idle")),
        Family("gpu_fleet_gpus_allocated", G, group,
               "GPUs that somebody was given, used or not; absent where nobody would know.",
               FROM, _count("allocated")),
        Family("avg_GPU_utilization", G, EXPORTER,
               "The same as the whole cluster's utilization, in the unit of the query, under its classic name.",
               FROM, _classic),
        Family("gpu_fleet_refresh_success", G, EXPORTER, "1 when the last refresh worked, else 0; the log says why.",
               SELF, flag("success")),
        Family("gpu_fleet_refreshes_total", C, EXPORTER, "How often Prometheus was asked.", SELF, at("refreshes")),
        Family("gpu_fleet_refresh_failures_total", C, EXPORTER, "How often there was no good answer, by reason.",
               SELF, series=lambda shown: [((kind,), n) for kind, n in shown.failures], labels=("reason",)),
        Family("gpu_fleet_refresh_duration_seconds", G, EXPORTER, "How long the last good refresh took.",
               SELF, at("duration_ns", 1e9), unit="seconds"),
        Family("gpu_fleet_data_timestamp_seconds", G, EXPORTER,
               "Moment of the last good answers, by the clock of Prometheus.", FROM, at("asked_s"), unit="seconds"),
        Family("gpu_fleet_query_series", G, EXPORTER, "Series in the last good answer to each query.",
               FROM, series=_asked, labels=("query",)),
        Family("gpu_fleet_query_dropped_series", G, EXPORTER,
               "Series of the last good answers left out because their value is no number.", FROM, at("dropped")),
        Family("gpu_fleet_query_warnings", G, EXPORTER,
               "Warnings in the last good answers, such as of a partial one; the log has them.",
               FROM, lambda shown: len(shown.warnings)),
    )  # fmt: skip
