"""The GPUs of one workload on this node in a few numbers, for an autoscaler that asks exporters and no Prometheus.

What is asked for may be in the query, `?namespace=ml&in_use=resident`, or in the path, `/namespace=ml/in_use=resident`:
KEDA drops the query when it asks all endpoints of a service.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpuledger.export.http import Response
from gpuledger.model import Granted, Owner, Reading, Tick

PATH = "/api/v1/scaling"
RULES = ("busy", "allocated", "resident")
WHO = ("namespace", "pod", "container", "workload")
GIVERS = ("podresources", "docker", "podman", "hpcdir")
"""Providers that know what was given to whom."""

NAMERS = {
    "namespace": ("podresources", "cri", "kubernetes"),
    "pod": ("podresources", "cri", "kubernetes"),
    "workload": ("kubernetes",),
}
"""Providers that know a name. With none of them, nothing of that name is nothing known."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose GPUs to count, everybody's when all are empty, and when one is in use."""

    namespace: str = ""
    pod: str = ""
    """With a star at its end, all pods whose name begins so."""
    container: str = ""
    workload: str = ""
    in_use: str = "busy"

    def fits(self, owner: Owner) -> bool:
        """Whether it is one of those."""
        begins = self.pod.endswith("*") and owner.pod.startswith(self.pod[:-1])
        return (
            self.namespace in ("", owner.namespace)
            and (begins or self.pod in ("", owner.pod))
            and self.container in ("", owner.container)
            and self.workload in ("", owner.workload_name)
        )


def answer(tick: Tick, path: str, query: Mapping[str, list[str]]) -> Response:
    """200 with the numbers; 400 for what cannot be asked, 503 for what is not known, so that nobody scales by it."""
    asked = [(name, text) for name, texts in query.items() for text in texts]
    asked += [(name, text) for name, _, text in (part.partition("=") for part in path.split("/")) if name]
    allowed = (*WHO, "in_use")
    for name, text in asked:
        if name not in allowed or not text:
            what = f"{name} without a value" if name in allowed else f"{name!r} is none of them"
            return Response.text(400, f"{what}; ask for {', '.join(allowed)}, as in {PATH}?namespace=ml")
    wanted = Wanted(**dict(asked))
    if len(dict(asked)) < len(asked):
        return Response.text(400, "the same is asked for twice; ask once")
    if wanted.in_use not in RULES:
        return Response.text(400, f"there is no rule in_use={wanted.in_use}; there are {', '.join(RULES)}")
    if unknown := _unknown(tick, wanted):
        return Response.text(503, unknown)
    numbers = count(tick, wanted)
    if wanted.in_use == "allocated" and numbers["gpus_allocated"] is None:
        return Response.text(503, "nobody here knows who was given a GPU; ask for in_use=busy or resident")
    body = json.dumps({"time": tick.time_ns / 1e9, "in_use": wanted.in_use, **numbers}, indent=1) + "\n"
    return Response(200, (("Content-Type", "application/json"), ("Cache-Control", "no-store")), body.encode())


def count(tick: Tick, wanted: Wanted) -> dict[str, float | None]:
    """Of the GPUs and instances with a utilization that these are on or were given."""
    on_it = {use.device.uuid for use in tick.processes if use.active and wanted.fits(use.owner)}
    grants = list(_given(tick))
    given = {uuid for uuid, owner in grants if wanted.fits(owner)}
    everybody = not any(getattr(wanted, name) for name in WHO)
    gpus = in_use = allocated = 0
    percent = 0.0
    for reading in tick.readings:
        uuid, busy = reading.device.uuid, _busy_percent(reading)
        if busy is None or not (everybody or uuid in on_it or uuid in given):
            continue
        gpus += 1
        allocated += uuid in given
        if {"busy": busy > 0, "allocated": uuid in given, "resident": uuid in on_it}[wanted.in_use]:
            in_use += 1
            percent += busy
    mean = percent / in_use if in_use else 0.0
    knows = bool(grants) or any(p.up and p.name in GIVERS for p in tick.owners.providers)
    return {
        "gpus": gpus,
        "gpus_in_use": in_use,
        "gpus_allocated": allocated if knows else None,
        "busy_gpus": round(percent / 100, 6),
        "utilization_ratio": round(mean / 100, 6),
        "utilization_percent": round(mean, 4),
    }


def _unknown(tick: Tick, wanted: Wanted) -> str:
    """Why it cannot be told, if it cannot."""
    if not tick.driver.up:
        return f"the driver cannot be read: {tick.driver.reason}"
    names = (name for name in NAMERS if getattr(wanted, name) and not _is_known(tick, name))
    name = next(names, "")
    return f"nobody here knows a {name}; is one of {', '.join(NAMERS[name])} asked?" if name else ""


def _is_known(tick: Tick, name: str) -> bool:
    """Whether somebody would tell it, or has."""
    field = "workload_name" if name == "workload" else name
    owners = [*(use.owner for use in tick.processes), *(owner for _, owner in _given(tick))]
    return any(p.up and p.name in NAMERS[name] for p in tick.owners.providers) or any(getattr(o, field) for o in owners)


def _busy_percent(reading: Reading) -> float | None:
    """Of a GPU that is cut into instances only these say it."""
    if not reading.device.parent_uuid:
        return reading.utilization_pct
    return reading.activity.sm_pct if reading.activity is not None else None


def _given(tick: Tick) -> Iterator[tuple[str, Owner]]:
    """Who was given which device; the workload of a pod is known from its processes, or from who knows containers."""
    owners = tick.owners
    seen = [*(use.owner for use in tick.processes), *(holder.owner for holder in owners.holders)]
    workloads = {(owner.namespace, owner.pod): owner for owner in seen if owner.pod and owner.workload_name}
    for grant in owners.granted:
        yield grant.device.uuid, _owner(grant, workloads.get((grant.namespace, grant.pod)))
    for device, name, container_id in owners.given:
        yield device.uuid, Owner(container=name, container_id=container_id)
    for device, job in owners.granted_jobs:
        yield device.uuid, Owner(job=job)


def _owner(grant: Granted, workload: Owner | None) -> Owner:
    owner = Owner(namespace=grant.namespace, pod=grant.pod, container=grant.container)
    return owner if workload is None else replace(owner, workload_name=workload.workload_name)
