"""A node for the scaling endpoint, and its answers."""

from __future__ import annotations

import json
from typing import Any

from gpuledger.model import (
    Activity,
    Allocation,
    Device,
    Driver,
    Owner,
    Owners,
    ProcessUse,
    ProviderHealth,
    Reading,
    Resident,
    Tick,
)
from gpuledger.web.app import App
from gpuledger.web.http import Response, parse_head

LLM = Owner(namespace="ml", pod="llm-7-x", container="main", workload_kind="Deployment", workload_name="llm")
WEB = Owner(namespace="web", pod="web-0", container="main")
GPUS = [Device(index=n, uuid=f"GPU-{n}") for n in range(4)]
INSTANCE = Device(index=3, uuid="MIG-1", parent_uuid="GPU-3")
KUBELET = ProviderHealth("podresources", up=True, problem=None, since_ns=1, last_success_ns=1, fetches=1, failures=0)


def on(owner: Owner, device: Device, *, active: bool = True) -> ProcessUse:
    """A process of an owner."""
    return ProcessUse(device, Resident(7, "compute"), owner=owner, active=active)


def given_to(owner: Owner, device: Device) -> Allocation:
    """A device that the kubelet allocated."""
    return Allocation(device, Owner(namespace=owner.namespace, pod=owner.pod, container=owner.container))


def node() -> Tick:
    """GPU 0 at 80 % and 1 at 40 %, of the workload; 2 allocated to web, which left it; 3 with an instance at 50 %."""
    percents = (80, 40, 0, None)
    memory = (40, 20, 0, None)
    readings = [Reading(device, utilization_pct=percent, memory_utilization_pct=memory_percent)
                for device, percent, memory_percent in zip(GPUS, percents, memory, strict=True)]  # fmt: skip
    return Tick(
        time_ns=1_700_000_000_000_000_000,
        driver=Driver(up=True),
        readings=(*readings, Reading(INSTANCE, activity=Activity(sm_pct=50.0, dram_pct=20.0))),
        processes=(on(LLM, GPUS[0]), on(LLM, GPUS[1]), on(WEB, GPUS[2], active=False), on(WEB, INSTANCE)),
        owners=Owners(allocations=(given_to(LLM, GPUS[0]), given_to(WEB, GPUS[2])), providers=(KUBELET,)),
    )


def ask(target: str, tick: Tick | None = None, age_s: float | None = 0.1) -> Response:
    """The response to a GET request."""
    app = App(lambda: tick or node(), lambda: age_s, interval_s=1.0)
    return app(parse_head(f"GET {target} HTTP/1.0\r\n\r\n".encode()))


def numbers(what: str = "", tick: Tick | None = None) -> dict[str, Any]:
    """The numbers of a successful response."""
    answer = ask(f"/api/v1/scaling{what}", tick)
    assert (answer.status, dict(answer.headers)["Content-Type"]) == (200, "application/json"), answer.body
    assert isinstance(answer.body, bytes)
    return dict(json.loads(answer.body))
