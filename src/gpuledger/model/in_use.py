"""When a GPU counts as in use, and which name providers report that it is allocated. Pure.

`/api/v1/scaling` applies these rules to a tick, `gpuledger fleet` to the metrics of many nodes.
"""

from __future__ import annotations

from gpuledger.model.owners import providers_of

BUSY, ALLOCATED, RESIDENT = RULES = ("busy", "allocated", "resident")
"""A GPU is in use if its utilization is above 0; if it is allocated; or if a process is on it."""
ALLOCATION_PROVIDERS = f"({'|'.join(providers_of('allocations'))})(-[0-9]+)?"
"""A regular expression, also of PromQL, for providers that report allocations, `docker-2` included.

While one is up, no allocation means that nothing is allocated.
"""


def in_use(rule: str, utilization: float, resident: float, *, allocated: bool) -> float:
    """The share of a GPU that is in use; `resident` is 1 if a process is on it, or the share of time with one."""
    if rule == BUSY:
        return float(utilization > 0)
    return float(allocated) if rule == ALLOCATED else resident
