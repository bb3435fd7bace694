"""`/api/v1/scaling`: GPU use of one workload on this node, for autoscalers that query exporters directly.

Parameters are in the query, `?namespace=ml&in_use=resident`, or in the path, `/namespace=ml/in_use=resident`: KEDA
drops the query string when it queries all endpoints of a service.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger.model import Owner, Reading, Tick, holders
from gpuledger.model.in_use import ALLOCATED, BUSY, RULES, in_use
from gpuledger.model.owners import providers_of
from gpuledger.web.http import Response

PATH = "/api/v1/scaling"
SELECTORS = ("namespace", "pod", "container", "workload")
REPORTS = {"namespace": "pods", "pod": "pods", "workload": "workloads"}
"""What a provider must report for each name. Without one, an empty result would not mean that there is no use."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The owners whose GPUs to count, all owners if everything is empty; and the rule for `in use`."""

    namespace: str = ""
    pod: str = ""
    """A name, or a prefix that ends in `*`."""
    container: str = ""
    workload: str = ""
    in_use: str = BUSY

    def matches(self, owner: Owner) -> bool:
        """Whether an owner is selected."""
        prefix = self.pod.endswith("*") and owner.pod.startswith(self.pod[:-1])
        return (
            self.namespace in ("", owner.namespace)
            and (prefix or self.pod in ("", owner.pod))
            and self.container in ("", owner.container)
            and self.workload in ("", owner.workload_name)
        )


def answer(tick: Tick, path: str, query: Mapping[str, list[str]]) -> Response:
    """200 with the numbers; 400 for invalid parameters; 503 if the result is unknown, so that nothing is scaled."""
    parameters = [(name, text) for name, texts in query.items() for text in texts]
    parameters += [(name, text) for name, _, text in (part.partition("=") for part in path.split("/")) if name]
    allowed = (*SELECTORS, "in_use")
    for name, text in parameters:
        if name not in allowed or not text:
            what = f"parameter {name} has no value" if name in allowed else f"unknown parameter {name!r}"
            return Response.text(400, f"{what}; use {', '.join(allowed)}, as in {PATH}?namespace=ml")
    selection = Selection(**dict(parameters))
    if len(dict(parameters)) < len(parameters):
        return Response.text(400, "duplicate parameter")
    if selection.in_use not in RULES:
        return Response.text(400, f"unknown rule in_use={selection.in_use}; use {', '.join(RULES)}")
    if unknown := _unknown(tick, selection):
        return Response.text(503, unknown)
    numbers = count(tick, selection)
    if selection.in_use == ALLOCATED and numbers["gpus_allocated"] is None:
        return Response.text(503, "no provider reports allocations; use in_use=busy or resident")
    body = json.dumps({"time": tick.time_ns / 1e9, "in_use": selection.in_use, **numbers}, indent=1) + "\n"
    return Response(200, (("Content-Type", "application/json"), ("Cache-Control", "no-store")), body.encode())


def count(tick: Tick, selection: Selection) -> dict[str, float | None]:
    """The numbers of GPUs and MIG instances that a selected owner uses or that are allocated to one."""
    resident = {use.device.uuid for use in tick.processes if use.active and selection.matches(use.owner)}
    allocated_to = list(holders.allocations(tick))
    allocated_uuids = {a.device.uuid for a in allocated_to if selection.matches(a.owner)}
    all_owners = not any(getattr(selection, name) for name in SELECTORS)
    gpus = used = allocated = 0
    percent = memory_percent = 0.0
    has_memory = True
    for reading in tick.readings:
        uuid, (busy, memory) = reading.device.uuid, _percents(reading)
        if busy is None or not (all_owners or uuid in resident or uuid in allocated_uuids):
            continue
        gpus += 1
        is_allocated = uuid in allocated_uuids
        allocated += is_allocated
        if in_use(selection.in_use, busy, float(uuid in resident), allocated=is_allocated):
            used += 1
            percent += busy
            memory_percent += memory or 0.0
            has_memory = has_memory and memory is not None
    mean = percent / used if used else 0.0
    memory_mean = memory_percent / used if used else 0.0
    is_reported = bool(allocated_to) or _is_up(tick, "allocations")
    return {
        "gpus": gpus,
        "gpus_in_use": used,
        "gpus_allocated": allocated if is_reported else None,
        "busy_gpus": round(percent / 100, 6),
        "utilization_ratio": round(mean / 100, 6),
        "utilization_percent": round(mean, 4),
        "memory_busy_gpus": round(memory_percent / 100, 6) if has_memory else None,
        "memory_utilization_ratio": round(memory_mean / 100, 6) if has_memory else None,
        "memory_utilization_percent": round(memory_mean, 4) if has_memory else None,
    }


def _unknown(tick: Tick, selection: Selection) -> str:
    """Why the result is unknown; empty if it is known."""
    if not tick.driver.up:
        return f"the driver cannot be read: {tick.driver.reason}"
    names = (name for name in REPORTS if getattr(selection, name) and not _is_known(tick, name))
    name = next(names, "")
    return f"no provider reports {name}; enable one of {', '.join(providers_of(REPORTS[name]))}" if name else ""


def _is_known(tick: Tick, name: str) -> bool:
    """Whether a provider reports this name, or an owner has it."""
    field = "workload_name" if name == "workload" else name
    owners = [*(use.owner for use in tick.processes), *(a.owner for a in holders.allocations(tick))]
    return _is_up(tick, REPORTS[name]) or any(getattr(owner, field) for owner in owners)


def _is_up(tick: Tick, report: str) -> bool:
    """Whether a provider that reports pods, allocations and so on answers."""
    return any(health.up and report in health.kind.reports for health in tick.owners.providers)


def _percents(reading: Reading) -> tuple[float | None, float | None]:
    """Utilization and memory activity; of a GPU with MIG instances, only the instances have them."""
    if not reading.device.parent_uuid:
        return reading.utilization_pct, reading.memory_utilization_pct
    activity = reading.activity
    return (None, None) if activity is None else (activity.sm_pct, activity.dram_pct)
