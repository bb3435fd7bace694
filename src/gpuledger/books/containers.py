"""Containers on devices: the sums of their processes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.model import ContainerUse, ProcessUse


def containers(uses: Iterable[ProcessUse]) -> tuple[ContainerUse, ...]:
    """One row a container and device. Memory or utilization that a process does not tell is left out of the sum."""
    groups: dict[tuple[str, str], list[ProcessUse]] = {}
    for use in uses:
        if use.owner.container_id:
            groups.setdefault((use.owner.container_id, use.device.uuid), []).append(use)
    return tuple(_sum(group) for group in groups.values())


def _sum(group: list[ProcessUse]) -> ContainerUse:
    memory = [use.resident.memory_bytes for use in group if use.resident.memory_bytes is not None]
    sm = [use.sample.sm_pct for use in group if use.sample is not None]
    return ContainerUse(
        device=group[0].device,
        owner=group[0].owner,
        processes=len(group),
        memory_bytes=sum(memory) if memory else None,
        sm_pct=sum(sm) if sm else None,
    )
