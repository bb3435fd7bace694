"""Answers from the snapshots of one or more exporters: the use by owner, idle allocations, costs, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from gpuledger.model import IDLE_REASONS
from gpuledger.model.owners import Owner
from gpuledger.model.plaintext import plain
from gpuledger.tools.idle.rows import rows_of_node
from gpuledger.tools.prices import Prices
from gpuledger.tools.text import JOULES_PER_KWH, gib, moment, percent, span
from gpuledger.tools.top.rows import Choice, TableRow, rows
from gpuledger.web.snapshot.schema import MEASURED, AllocationRow, Gpu, Snapshot, UseRow, sum_known

Answer = list[dict[str, Any]]


def in_namespace(snapshot: Snapshot, namespace: str) -> Snapshot:
    """The snapshot with the pods of one namespace; with all owners if `namespace` is empty."""
    if not namespace:
        return snapshot
    return replace(
        snapshot,
        processes=tuple(row for row in snapshot.processes if row.pod and row.namespace == namespace),
        containers=tuple(row for row in snapshot.containers if row.pod and row.namespace == namespace),
        allocations=tuple(row for row in snapshot.allocations if row.pod and row.namespace == namespace),
    )


def uses(snapshots: Iterable[Snapshot]) -> list[tuple[Snapshot, TableRow]]:
    """The rows of `top`, one for each pod, container, job or service on each node."""
    return [(snapshot, row) for snapshot in snapshots for row in rows(snapshot, Choice("pod"))]


def who_uses(snapshots: Iterable[Snapshot]) -> Answer:
    """The use of GPUs by owner, those with the most memory first."""
    answer = [
        {
            "node": snapshot.node,
            "owner": row.owner,
            **_names(row.uses[0]),
            "gpus": list(row.gpus),
            "processes": row.processes,
            "memory_bytes": row.memory_bytes,
            "inferred_bytes": row.inferred_bytes,
            "sm_ratio": row.sm,
            "watts": row.watts,
            "joules": row.joules,
            "energy": None if row.is_estimated is None else "estimated" if row.is_estimated else "measured",
            "asked_gpus": row.asked,
            "used_of_asked_gpus": row.asked_used,
        }
        for snapshot, row in uses(snapshots)
    ]
    return sorted(answer, key=lambda row: (-(row["memory_bytes"] or 0), row["node"], row["owner"]))


def nodes(snapshots: Iterable[Snapshot]) -> Answer:
    """The GPUs of each node."""
    return [_node(snapshot, [gpu for gpu in snapshot.gpus if not gpu.parent_uuid]) for snapshot in snapshots]


def _node(snapshot: Snapshot, gpus: Sequence[Gpu]) -> dict[str, Any]:
    known = [gpu.utilization_ratio for gpu in gpus if gpu.utilization_ratio is not None]
    return {
        "node": snapshot.node,
        "gpus": len(gpus),
        "up": sum(gpu.up for gpu in gpus),
        "in_use": sum(gpu.in_use is True for gpu in gpus),
        "utilization_ratio": sum(known) / len(known) if known else None,
        "memory_used_bytes": sum_known(gpu.memory.used_bytes for gpu in gpus),
        "memory_total_bytes": sum_known(gpu.memory.total_bytes for gpu in gpus),
        "watts": sum_known(gpu.power_watts for gpu in gpus),
        "own_view_of": snapshot.viewer,
    }


def idle(snapshots: Iterable[Snapshot], prices: Prices) -> Answer:
    """The allocations that are idle now."""
    return [
        {"node": row.node, "owner": row.owner.display_name, "gpu": row.gpu, "uuid": row.uuid, "state": row.state,
         "idle_since": moment(row.idle_since), "idle_seconds": row.idle_seconds, "gpu_hours": row.gpu_hours,
         "kwh": row.kwh, "cost": row.cost, "command": row.command}
        for row in chain.from_iterable(rows_of_node(snapshot, prices) for snapshot in snapshots)
    ]  # fmt: skip


def costs(snapshots: Iterable[Snapshot], prices: Prices) -> Answer:
    """GPU-hours, energy and cost of each owner since its exporter started, or since the first one of a journal."""
    answer: dict[tuple[str, str], dict[str, Any]] = {}
    for snapshot in snapshots:
        for allocation in snapshot.allocations:
            entry = _entry(answer, snapshot, allocation)
            entry["gpu_hours"] += allocation.allocated_seconds * _part(allocation) / 3600
            if allocation.joules:  # the GPU reports energy
                entry["kwh"] = entry["kwh"] or 0.0
        in_no_container = [process for process in snapshot.processes if not process.container_id]
        for use in (*snapshot.containers, *in_no_container):
            if use.joules:
                entry = _entry(answer, snapshot, use)
                entry["kwh"] = (entry["kwh"] or 0.0) + sum(use.joules.values()) / JOULES_PER_KWH
    for entry in answer.values():
        entry["cost"] = prices.cost(entry["gpu_hours"], entry["kwh"])
        entry["currency"] = prices.currency
    return sorted(
        answer.values(), key=lambda row: (-(row["cost"] or 0.0), -row["gpu_hours"], row["node"], row["owner"])
    )


def _entry(
    answer: dict[tuple[str, str], dict[str, Any]], snapshot: Snapshot, row: UseRow | AllocationRow
) -> dict[str, Any]:
    owner = _owner(row)
    start = {"node": snapshot.node, "owner": owner, "gpu_hours": 0.0, "kwh": None}
    return answer.setdefault((snapshot.node, owner), start)


def _owner(row: UseRow | AllocationRow) -> str:
    """The pod, or else the owner."""
    return Owner(namespace=row.namespace, pod=row.pod).display_name if row.pod else row.owner


def _part(allocation: AllocationRow) -> float:
    """The part of a GPU that an allocation is."""
    return 1 / (allocation.shared_by or 1) if allocation.asked_ratio is None else allocation.asked_ratio


def _names(use: UseRow) -> dict[str, str]:
    return {
        name: getattr(use, name)
        for name in ("namespace", "pod", "job", "unit", "user", "workload")
        if getattr(use, name)
    }


def why(snapshots: Iterable[Snapshot], name: str, namespace: str = "") -> list[str]:
    """How it is known what a pod, container, job or service uses; empty if no exporter knows it."""
    return [plain(line) for snapshot in snapshots for line in _why(snapshot, name, namespace)]


def _why(snapshot: Snapshot, name: str, namespace: str) -> Iterator[str]:
    def is_meant(row: UseRow | AllocationRow) -> bool:
        return name in (row.pod, row.owner, _owner(row)) and namespace in ("", row.namespace)

    allocations = [row for row in snapshot.allocations if is_meant(row)]
    containers = [row for row in snapshot.containers if is_meant(row)]
    processes = [row for row in snapshot.processes if is_meant(row)]
    if not (allocations or containers or processes):
        return
    known: list[UseRow | AllocationRow] = [*allocations, *containers, *processes]
    yield f"{', '.join(dict.fromkeys(row.owner for row in known))} on {snapshot.node or 'this host'}"
    for row in allocations:
        since = f"GPU {row.gpu} for {span(row.allocated_seconds)}{_asked(row)}"
        yield f"  allocated   {since}; {_state(row, snapshot.time)}"
    if not allocations:
        yield "  allocated   no device that a kubelet, a runtime or a prolog reports"
    for process in processes:
        place = ", ".join(filter(None, (process.runtime, process.container_id[:12], process.unit, process.job)))
        yield f"  process     {process.pid} {process.process_name} on GPU {process.gpu}; its cgroup: {place or 'none'}"
        yield f"              {gib(process.memory_bytes)} GiB listed by the driver; {_energy(process)}"
        if process.unknown_because:
            yield f"              not fully known: {process.unknown_because}"
    for container in containers:
        name = f"{container.container or container.container_id[:12]} on GPU {container.gpu}"
        yield f"  container   {name}: {_energy(container)}, exited processes included"
        if container.inferred_bytes:
            yield f"              {gib(container.inferred_bytes)} GiB inferred, held by no listed process"


def _asked(row: AllocationRow) -> str:
    asked = [f"{percent(row.asked_ratio)} % of its compute"] if row.asked_ratio is not None else []
    asked += [f"{gib(row.asked_bytes)} GiB"] if row.asked_bytes is not None else []
    return f", asked for {' and '.join(asked)} ({row.entitlement})" if asked else ""


def _state(row: AllocationRow, now: float) -> str:
    if row.state not in IDLE_REASONS or row.idle_since is None:
        return row.state
    return f"idle ({row.state}) for {span(max(0.0, now - row.idle_since))}, since {moment(row.idle_since)}"


def _energy(use: UseRow) -> str:
    parts = [f"{joules:.1f} J {'measured' if method in MEASURED else f'estimated by {method}'}"
             for method, joules in sorted(use.joules.items(), key=lambda item: -item[1])]  # fmt: skip
    error = getattr(use, "energy_share_error_ratio", None)
    return ", ".join(parts or ["no energy yet"]) + (f", share ± {percent(error)} %" if error is not None else "")
