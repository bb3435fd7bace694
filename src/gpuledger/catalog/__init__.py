"""Every metric, declared once: name, type, unit, help, origin, labels and where its value comes from.

docs/metrics.md, the renderers and the tests all read this table. Each family describes one kind of thing (the exporter,
a GPU, a MIG instance, a process); the labels of that kind come first on each of its series.
"""

from collections.abc import Collection

from gpuledger.catalog import allocation, exporter, gpu, process, tokens
from gpuledger.catalog.family import Family, Kind, Moment, Series, Type, Value

GROUPS: dict[str, tuple[Family, ...]] = {
    "exporter": exporter.FAMILIES,
    "gpu": gpu.GPUS,
    "mig": gpu.MIG_INSTANCES,
    "process": (*process.PROCESSES, *process.DCGM_PROCESSES),
    "container": process.CONTAINERS,
    "allocation": allocation.ALLOCATIONS,
    "tokens": tokens.FAMILIES,
    "activity": (*gpu.UNATTRIBUTED_ACTIVITY, *process.ACTIVITIES),
    "engines": process.ENGINES,
    "hardware": gpu.HARDWARE,
}
"""Metrics that a scrape can select with `collect[]`, or leave out with `exclude[]`."""
OPTIONAL = ("activity", "engines", "hardware")
"""Groups that few need: without `collect[]`, they are exposed only with `--collector.NAME`."""
CATALOG: tuple[Family, ...] = tuple(family for families in GROUPS.values() for family in families)


def groups_with(optional: Collection[str]) -> list[str]:
    """The groups of a scrape that selects none, if these optional groups are enabled."""
    return [name for name in GROUPS if name not in OPTIONAL or name in optional]


def families_in(groups: Collection[str]) -> tuple[Family, ...]:
    """The families of these groups."""
    return tuple(family for name, families in GROUPS.items() if name in groups for family in families)


__all__ = [
    "CATALOG", "GROUPS", "OPTIONAL", "Family", "Kind", "Moment", "Series", "Type", "Value", "families_in",
    "groups_with",
]  # fmt: skip
