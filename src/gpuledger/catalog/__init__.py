"""Every metric, declared once: name, type, unit, help, origin, labels and where its value comes from.

docs/metrics.md, the renderers and the tests all read this table. Each family describes one kind of thing (the exporter,
a GPU, a MIG instance, a process); the labels of that kind come first on each of its series.
"""

from gpuledger.catalog import allocation, exporter, gpu, process, tokens
from gpuledger.catalog.family import Family, Kind, Moment, Series, Type, Value

CATALOG: tuple[Family, ...] = (
    *exporter.FAMILIES,
    *gpu.GPUS,
    *gpu.MIG_INSTANCES,
    *process.PROCESSES,
    *process.DCGM_PROCESSES,
    *process.CONTAINERS,
    *allocation.ALLOCATIONS,
    *tokens.FAMILIES,
)

__all__ = ["CATALOG", "Family", "Kind", "Moment", "Series", "Type", "Value"]
