"""When a GPU counts as in use, and which name providers report that it is allocated. Pure.

`/api/v1/scaling` applies these rules to a tick, `gpuledger fleet` to the metrics of many nodes.
"""

from __future__ import annotations

BUSY, ALLOCATED, RESIDENT = RULES = ("busy", "allocated", "resident")
"""A GPU is in use if its utilization is above 0; if it is allocated; or if a process is on it."""
ALLOCATION_PROVIDERS = ("podresources", "docker", "podman", "hpcdir")
"""Kinds of providers that report allocations. While one is up, no allocation means that nothing is allocated."""


def provider_pattern(kinds: tuple[str, ...]) -> str:
    """A regular expression, also of PromQL, for the names of all providers of these kinds."""
    return f"({'|'.join(kinds)})(-[0-9]+)?"


def in_use(rule: str, utilization: float, resident: float, *, allocated: bool) -> float:
    """The share of a GPU that is in use; `resident` is 1 if a process is on it, or the share of time with one."""
    if rule == BUSY:
        return float(utilization > 0)
    return float(allocated) if rule == ALLOCATED else resident
