"""The allocations of a tick, and the allocation that each process belongs to.

A process belongs to one allocation at most, so that no joule is counted for two.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm

from gpuledger.model import NOBODY, OUTSIDE, Device, Owner, Tick, job_id
from gpuledger.model.holders import allocations

ClaimKey = tuple[str, ...]
"""uuid of the device, kind of the owner, and its names."""
UNALLOCATED: ClaimKey = ()
"""Stands for the MIG instances without an allocation."""
POD, CONTAINER, JOB = "pod", "container", "job"
SLICES = re.compile("[1-9](?=[cg])")


@dataclass(frozen=True, slots=True)
class Claim:
    """A device allocated to a pod's container, a container or a job. Replicas for one container are one claim."""

    key: ClaimKey
    device: Device
    owner: Owner


def claim_key(device: Device, owner: Owner) -> ClaimKey:
    """The identity of an allocation."""
    if owner.pod:
        return device.uuid, POD, owner.namespace, owner.pod, owner.container
    if owner.job:
        return device.uuid, JOB, owner.job
    return device.uuid, CONTAINER, owner.container_id


def find_claims(tick: Tick) -> tuple[Claim, ...]:
    """The allocations in force.

    A pod that is listed without a running container has ended: kubelets before 1.34 still list it. If no runtime is
    read, every listed pod counts. A pod's container that Docker reports too counts once, as the pod's.
    """
    entitled = [holder for holder in tick.owners.holders if holder.evidence == "allocation"]
    running = {claim_key(h.device, h.owner): h.owner for h in entitled if h.owner.pod and h.owner.container_id}
    in_pods = {h.owner.container_id for h in entitled if h.owner.pod}
    claims: dict[ClaimKey, Claim] = {}
    for device, owner in allocations(tick):
        key = claim_key(device, owner)
        if owner.pod and running:
            if key not in running:
                continue
            owner = replace(owner, pod_uid=running[key].pod_uid)  # noqa: PLW2901 - the same owner, with its uid
        if owner.container_id not in in_pods or not owner.container_id:
            claims.setdefault(key, Claim(key, device, owner))
    return tuple(claims.values())


class Claims:
    """The allocations of a tick, by owner and by device."""

    def __init__(self, claims: Iterable[Claim], devices: Iterable[Device] = ()) -> None:
        self.all = tuple(claims)
        self._by_key = {claim.key: claim for claim in self.all}
        self._of_pod: dict[ClaimKey, list[Claim]] = {}
        self.by_device: dict[str, list[Claim]] = {}
        self.by_gpu: dict[str, list[Claim]] = {}
        for claim in self.all:
            self.by_device.setdefault(claim.device.uuid, []).append(claim)
            self.by_gpu.setdefault(claim.device.gpu_uuid, []).append(claim)
            if claim.owner.pod:
                self._of_pod.setdefault(claim.key[:-1], []).append(claim)
            if claim.owner.pod_uid:
                self._of_pod.setdefault((claim.device.uuid, POD, claim.owner.pod_uid), []).append(claim)
        self._slices: dict[str, Counter[str]] = {}
        for device in devices:
            if device.parent_uuid:
                self._slices.setdefault(device.parent_uuid, Counter())[device.uuid] = _slices(device)

    def of(self, device: Device, owner: Owner) -> Claim | None:
        """The allocation that a process belongs to: of its MIG instance or else of the GPU; of its pod first."""
        for uuid in dict.fromkeys((device.uuid, device.gpu_uuid)):
            if not owner.container or not owner.pod:  # not named yet
                names = (owner.namespace, owner.pod) if owner.pod else (owner.pod_uid,)
                in_pod = self._of_pod.get((uuid, POD, *names), ())
                if len(in_pod) == 1:
                    return in_pod[0]
            for key in (
                (uuid, POD, owner.namespace, owner.pod, owner.container),
                (uuid, CONTAINER, owner.container_id),
                (uuid, JOB, job_id(owner.job)),
            ):
                if key[-1] and (claim := self._by_key.get(key)) is not None:
                    return claim
        return None

    def weights(self, gpu: str) -> dict[ClaimKey, int]:
        """The parts of a physical GPU that its allocations have; UNALLOCATED has the rest.

        A MIG instance is its slices of those of all instances. A device that is allocated several times is divided
        equally, and so is a GPU that is allocated both as a whole and by instance.
        """
        claims = self.by_gpu.get(gpu, [])
        slices = self._slices.get(gpu)
        if slices is None or any(not claim.device.parent_uuid for claim in claims):
            return dict.fromkeys((claim.key for claim in claims), 1)
        devices = {claim.device.uuid for claim in claims}
        scale = lcm(*(len(self.by_device[uuid]) for uuid in devices))
        weights = {c.key: slices[c.device.uuid] * scale // len(self.by_device[c.device.uuid]) for c in claims}
        return weights | {UNALLOCATED: scale * sum(n for uuid, n in slices.items() if uuid not in devices)}


def _slices(device: Device) -> int:
    """The slices of a MIG instance, as `report` counts them: 3 for the profile 3g.71gb."""
    match = SLICES.match(device.mig_profile)
    return int(match[0]) if match else 1


def is_unclear(owner: Owner) -> bool:
    """Whether a process may belong to an owner that is not known yet."""
    return owner == NOBODY or bool(owner.reason and owner.reason != OUTSIDE)
