"""The allocations of a tick, and the allocation that each process belongs to.

A process belongs to one allocation at most, so that no joule is counted for two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import lcm

from gpuledger.model import (
    OUTSIDE,
    TO_CONTAINER,
    TO_JOB,
    TO_POD,
    UNKNOWN_OWNER,
    Allocation,
    AllocationKey,
    Device,
    Entitlement,
    Owner,
    Tick,
    allocation_key,
    job_id,
)
from gpuledger.model.holders import allocations

UNALLOCATED: AllocationKey = ()
"""Stands for the MIG instances without an allocation."""
SLICES = re.compile("[1-9](?=[cg])")
WHOLE = ("device", "mig")
"""Sources of entitlements to a whole device."""


def in_force(tick: Tick) -> dict[AllocationKey, Allocation]:
    """The allocations in force, by key.

    A pod that is listed without a running container has ended: kubelets before 1.34 still list it. If no runtime is
    read, every listed pod counts. A pod's container that Docker reports too counts once, as the pod's.
    """
    holders = [holder for holder in tick.owners.holders if holder.evidence == "allocation" and holder.owner.pod]
    running = {allocation_key(h.device, h.owner): h.owner for h in holders if h.owner.container_id}
    in_pods = {holder.owner.container_id for holder in holders}
    current: dict[AllocationKey, Allocation] = {}
    for allocation in allocations(tick):
        key, owner = allocation.key, allocation.owner
        if owner.pod and running:
            if key not in running:
                continue
            owner = replace(owner, pod_uid=running[key].pod_uid)
        if owner.container_id not in in_pods or not owner.container_id:
            asked = allocation.entitlement
            if key in current:
                asked = _sum(current[key].entitlement, asked)
            current[key] = replace(allocation, owner=owner, entitlement=asked)
    return current


def _sum(first: Entitlement | None, second: Entitlement | None) -> Entitlement | None:
    """What an owner of several replicas of a device asked for. A device that is listed twice counts once."""
    if first is None or second is None or first.source in WHOLE or second.source in WHOLE:
        return first or second
    ratios, sizes = (first.compute_ratio, second.compute_ratio), (first.memory_bytes, second.memory_bytes)
    return replace(
        first,
        compute_ratio=None if None in ratios else sum(ratio for ratio in ratios if ratio is not None),
        memory_bytes=None if None in sizes else sum(size for size in sizes if size is not None),
    )


class Allocations:
    """The allocations of a tick by key, and their keys by device and owner."""

    def __init__(self, by_key: Mapping[AllocationKey, Allocation], devices: Iterable[Device] = ()) -> None:
        self.by_key = by_key
        self._of_pod: dict[AllocationKey, list[AllocationKey]] = {}
        self.by_device: dict[str, list[AllocationKey]] = {}
        self.by_gpu: dict[str, list[AllocationKey]] = {}
        for key, allocation in by_key.items():
            device, owner = allocation.device, allocation.owner
            self.by_device.setdefault(device.uuid, []).append(key)
            self.by_gpu.setdefault(device.gpu_uuid, []).append(key)
            if owner.pod:
                self._of_pod.setdefault(key[:-1], []).append(key)
            if owner.pod_uid:
                self._of_pod.setdefault((device.uuid, TO_POD, owner.pod_uid), []).append(key)
        self._slices: dict[str, Counter[str]] = {}
        for device in devices:
            if device.parent_uuid:
                self._slices.setdefault(device.parent_uuid, Counter())[device.uuid] = _slices(device)

    def of(self, device: Device, owner: Owner) -> AllocationKey | None:
        """The allocation that a process belongs to: of its MIG instance or else of the GPU; of its pod first.

        A GPU that is allocated to a node of kind belongs to the pods inside it.
        """
        for uuid in dict.fromkeys((device.uuid, device.gpu_uuid)):
            if not owner.container or not owner.pod:  # not named yet
                names = (owner.namespace, owner.pod) if owner.pod else (owner.pod_uid,)
                in_pod = self._of_pod.get((uuid, TO_POD, *names), ())
                if len(in_pod) == 1:
                    return in_pod[0]
            for key in (
                (uuid, TO_POD, owner.namespace, owner.pod, owner.container),
                (uuid, TO_CONTAINER, owner.container_id),
                (uuid, TO_JOB, job_id(owner.job)),
            ):
                if key[-1] and key in self.by_key:
                    return key
        return self.of(device, owner.outer) if owner.outer is not None else None

    def entitlement(self, key: AllocationKey) -> Entitlement | None:
        """What the owner asked for; None if the whole device was given to several owners, with no word of parts."""
        asked = self.by_key[key].entitlement
        if asked is not None and asked.source in WHOLE and len(self.by_device[key[0]]) > 1:
            return None
        return asked

    def weights(self, gpu: str) -> dict[AllocationKey, int]:
        """The parts of a physical GPU that its allocations have; UNALLOCATED has the rest.

        A MIG instance is its slices of those of all instances. A device that is allocated several times is divided
        equally, and so is a GPU that is allocated both as a whole and by instance.
        """
        keys, slices = self.by_gpu.get(gpu, []), self._slices.get(gpu)
        if slices is None or any(not self.by_key[key].device.parent_uuid for key in keys):
            return dict.fromkeys(keys, 1)
        devices = {key[0] for key in keys}
        scale = lcm(*(len(self.by_device[uuid]) for uuid in devices))
        weights = {key: slices[key[0]] * scale // len(self.by_device[key[0]]) for key in keys}
        return weights | {UNALLOCATED: scale * sum(n for uuid, n in slices.items() if uuid not in devices)}


def _slices(device: Device) -> int:
    """The slices of a MIG instance, as `report` counts them: 3 for the profile 3g.71gb."""
    match = SLICES.match(device.mig_profile)
    return int(match[0]) if match else 1


def is_unclear(owner: Owner) -> bool:
    """Whether a process may belong to an owner that is not known yet."""
    return owner == UNKNOWN_OWNER or bool(owner.reason and owner.reason != OUTSIDE)
