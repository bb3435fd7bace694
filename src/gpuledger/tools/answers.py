"""Answers from the snapshots of one or more exporters: the use by owner, idle allocations, costs, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from gpuledger.model import ADVICE_AFTER_S, IDLE_REASONS
from gpuledger.model.owners import Owner
from gpuledger.model.plaintext import plain
from gpuledger.tools.idle.rows import IdleRow, ranked, rows_of_node
from gpuledger.tools.prices import Prices
from gpuledger.tools.text import JOULES_PER_KWH, gib, moment, percent, span
from gpuledger.tools.top.rows import Choice, TableRow, rows
from gpuledger.web.snapshot.schema import MEASURED, AllocationRow, Snapshot, UseRow, sum_known

Answer = list[dict[str, Any]]


def in_namespace(snapshot: Snapshot, namespace: str) -> Snapshot:
    """The snapshot with the pods of one namespace; with all owners if `namespace` is empty."""
    if not namespace:
        return snapshot
    own: dict[str, Any] = {
        name: tuple(row for row in getattr(snapshot, name) if row.pod and row.namespace == namespace)
        for name in ("processes", "containers", "allocations")
    }
    return replace(snapshot, **own)


def uses(snapshots: Iterable[Snapshot]) -> list[tuple[str, TableRow]]:
    """The node and the row of `top` of each pod, container, job or service, those with the most memory first."""
    pairs = ((snapshot.node, row) for snapshot in snapshots for row in rows(snapshot, Choice("pod")))
    return sorted(pairs, key=lambda pair: (-(pair[1].memory_bytes or 0), pair[0], pair[1].owner))


def who_uses(rows: Iterable[tuple[str, TableRow]]) -> Answer:
    """The use of GPUs by owner, from `uses`."""
    names = ("namespace", "pod", "job", "unit", "user", "workload")
    return [
        {"node": node, "owner": row.owner,
         **{name: text for name in names if (text := getattr(row.uses[0], name))},
         "gpus": list(row.gpus), "processes": row.processes, "memory_bytes": row.memory_bytes,
         "inferred_bytes": row.inferred_bytes, "sm_ratio": row.sm, "watts": row.watts, "joules": row.joules,
         "energy": None if row.is_estimated is None else "estimated" if row.is_estimated else "measured",
         "asked_gpus": row.asked, "used_of_asked_gpus": row.asked_used}
        for node, row in rows
    ]  # fmt: skip


def nodes(snapshots: Iterable[Snapshot]) -> Answer:
    """The GPUs of each node."""
    answer = []
    for snapshot in snapshots:
        gpus = [gpu for gpu in snapshot.gpus if not gpu.parent_uuid]
        known = [gpu.utilization_ratio for gpu in gpus if gpu.utilization_ratio is not None]
        answer.append({
            "node": snapshot.node, "gpus": len(gpus), "up": sum(gpu.up for gpu in gpus),
            "in_use": sum(gpu.in_use is True for gpu in gpus),
            "utilization_ratio": sum(known) / len(known) if known else None,
            "memory_used_bytes": sum_known(gpu.memory.used_bytes for gpu in gpus),
            "memory_total_bytes": sum_known(gpu.memory.total_bytes for gpu in gpus),
            "watts": sum_known(gpu.power_watts for gpu in gpus), "own_view_of": snapshot.viewer,
        })  # fmt: skip
    return answer


def idle(snapshots: Iterable[Snapshot], prices: Prices, min_s: float = ADVICE_AFTER_S) -> tuple[list[IdleRow], int]:
    """The allocations that are idle for so long, as in `gpuledger idle`, and the number of those idle for less."""
    rows = [row for snapshot in snapshots for row in rows_of_node(snapshot, prices)]
    listed = ranked(rows, min_s)
    return listed, len(rows) - len(listed)


def costs(snapshots: Iterable[Snapshot], prices: Prices) -> Answer:
    """GPU-hours, energy and cost of each owner since its exporter started, or since the first one of a journal.

    In an own view, the hours on a device that several owners have without parts are not known.
    """
    answer: dict[tuple[str, str], dict[str, Any]] = {}

    def add(node: str, row: UseRow | AllocationRow, gpu_hours: float | None, kwh: float) -> None:
        key = node, _owner(row)
        entry = answer.setdefault(key, {"node": node, "owner": key[1], "gpu_hours": 0.0, "kwh": None})
        entry["gpu_hours"] = None if None in (entry["gpu_hours"], gpu_hours) else entry["gpu_hours"] + gpu_hours
        if row.joules:  # the GPU reports energy
            entry["kwh"] = (entry["kwh"] or 0.0) + kwh

    for snapshot in snapshots:
        for allocation in snapshot.allocations:
            part = allocation.asked_ratio
            if part is None and allocation.shared_by:
                part = 1 / allocation.shared_by
            add(snapshot.node, allocation, None if part is None else allocation.allocated_seconds * part / 3600, 0.0)
        for use in (*snapshot.containers, *(row for row in snapshot.processes if not row.container_id)):
            if use.joules:
                add(snapshot.node, use, 0.0, sum(use.joules.values()) / JOULES_PER_KWH)
    for entry in answer.values():
        hours = entry["gpu_hours"]
        entry |= {"cost": None if hours is None else prices.cost(hours, entry["kwh"]), "currency": prices.currency}
    return sorted(answer.values(), key=lambda e: (-(e["cost"] or 0.0), -(e["gpu_hours"] or 0.0), e["node"], e["owner"]))


def _owner(row: UseRow | AllocationRow) -> str:
    """The pod, or else the owner."""
    return Owner(namespace=row.namespace, pod=row.pod).display_name if row.pod else row.owner


def why(snapshots: Iterable[Snapshot], name: str, namespace: str = "") -> list[str]:
    """How it is known what a pod, container, job or service uses; empty if no exporter knows it."""
    return [plain(line) for snapshot in snapshots for line in _why(snapshot, name, namespace)]


def _why(snapshot: Snapshot, name: str, namespace: str) -> Iterator[str]:
    def is_meant(row: UseRow | AllocationRow) -> bool:
        return name in (row.pod, row.owner, _owner(row)) and namespace in ("", row.namespace)

    allocations = [row for row in snapshot.allocations if is_meant(row)]
    containers = [row for row in snapshot.containers if is_meant(row)]
    processes = [row for row in snapshot.processes if is_meant(row)]
    owners = dict.fromkeys(row.owner for rows in (allocations, containers, processes) for row in rows)
    if not owners:
        return
    yield f"{', '.join(owners)} on {snapshot.node or 'this host'}"
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
        label = f"{container.container or container.container_id[:12]} on GPU {container.gpu}"
        yield f"  container   {label}: {_energy(container)}, exited processes included"
        if container.inferred_bytes:
            yield f"              {gib(container.inferred_bytes)} GiB inferred, held by no listed process"


def _asked(row: AllocationRow) -> str:
    asked = [f"{percent(row.asked_ratio)} % of its compute"] if row.asked_ratio is not None else []
    asked += [f"{gib(row.asked_bytes)} GiB"] if row.asked_bytes is not None else []
    return f", asked for {' and '.join(asked)} ({row.entitlement})" if asked else ""


def _state(row: AllocationRow, now_s: float) -> str:
    if row.state not in IDLE_REASONS or row.idle_since is None:
        return row.state
    return f"idle ({row.state}) for {span(max(0.0, now_s - row.idle_since))}, since {moment(row.idle_since)}"


def _energy(use: UseRow) -> str:
    parts = [f"{joules:.1f} J {'measured' if method in MEASURED else f'estimated by {method}'}"
             for method, joules in sorted(use.joules.items(), key=lambda item: -item[1])]  # fmt: skip
    error = getattr(use, "energy_share_error_ratio", None)
    return ", ".join(parts or ["no energy yet"]) + (f", share ± {percent(error)} %" if error is not None else "")
