"""Every metric, declared once: name, type, unit, help, origin, labels and where its value comes from.

docs/metrics.md, the renderers and the tests all read this table. Each family describes one kind of thing (the exporter,
a GPU, a MIG instance, a process); the labels of that kind come first on each of its series.
"""

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
}
"""Metrics that a scrape can select with `collect[]`, or leave out with `exclude[]`."""
CATALOG: tuple[Family, ...] = tuple(family for families in GROUPS.values() for family in families)

__all__ = ["CATALOG", "GROUPS", "Family", "Kind", "Moment", "Series", "Type", "Value"]
