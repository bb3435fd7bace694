"""Ticks with allocations, for the tests of the idle ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuledger.books import Books
from gpuledger.model import Allocation, AllocationUse, Device, Holder, Owner, Tick
from tests.builders import GPU, S, World

POD = Owner(namespace="ml", pod="train-0", container="main", container_id="c1", pod_uid="u1")
OTHER = Owner(namespace="ml", pod="serve-0", container="main", container_id="c2", pod_uid="u2")
DOCKER = Owner(container="triton", container_id="d1")
JOB = Owner(job="slurm/211", user="alice")


def grant(owner: Owner = POD, device: Device = GPU, replica: str = "") -> Allocation:
    """The device, allocated to the pod by the kubelet."""
    return Allocation(device, replace(owner, container_id="", pod_uid=""), "nvidia.com/gpu", replica)


def to_docker(device: Device = GPU) -> Allocation:
    """The device, passed to a container by Docker."""
    return Allocation(device, DOCKER)


def running(owner: Owner = POD, device: Device = GPU) -> Holder:
    """The pod's running container, as a runtime reports it."""
    return Holder(device, owner, "allocation")


def with_allocations(tick: Tick, owners: dict[int, Owner] | None = None, **allocations: Any) -> Tick:
    """The tick with these owners of processes and these fields of `Owners`."""
    allocations.setdefault("allocations", (grant(),))
    return replace(tick, owners=replace(tick.owners, by_pid=owners or {}, **allocations))


class Node:
    """A GPU and its books, whose time goes on from tick to tick."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.books = Books(**settings)
        self.allocations: dict[str, Any] = {}
        """Of every tick: the fields of `Owners`."""

    def tick(
        self,
        *pids: int,
        owners: dict[int, Owner] | None = None,
        allocations: dict[str, Any] | None = None,
        **more: Any,
    ) -> Tick:
        """Book a tick. Every process is that of POD unless its owner is given."""
        owners = dict.fromkeys(pids, POD) | (owners or {})
        tick = self.world.tick(*pids, **{"mj": 0, "utilization_pct": 0, **more})
        return self.books.book(with_allocations(tick, owners, **(self.allocations | (allocations or {}))))

    def one(self, *pids: int, **more: Any) -> AllocationUse:
        """The only allocation after a tick."""
        (use,) = self.tick(*pids, **more).allocations
        return use


def seconds(use: AllocationUse) -> dict[str, float]:
    """By state, without zeros."""
    times = {"busy": use.busy_ns, **dict(use.idle_ns), "unknown": use.unknown_ns}
    return {state: ns / S for state, ns in times.items() if ns}


def joules(use: AllocationUse) -> dict[str, float]:
    """By state, without zeros."""
    return {state: mj / 1000 for state, mj in use.energy_mj if mj}
