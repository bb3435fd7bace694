"""Names of metrics for queries: `metrics.gpu_up` is "gpu_up", and the name of no metric is an AttributeError."""

from __future__ import annotations

from gpuledger.catalog import CATALOG

NAMES = frozenset(family.name for family in CATALOG)


def __getattr__(name: str) -> str:
    if name not in NAMES:
        raise AttributeError(f"the catalog has no metric {name}")
    return name
