"""Which containers and pods hold a device. Pure: everything comes from a tick.

A container holds a device if one of its processes is on it, or if the kubelet, Docker or a scheduler allocated the
device to it. Dialects, upstream enrichment, scaling and the inference of unlisted memory all use this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuledger.model import (
    EVIDENCE,
    OUTSIDE,
    SHORT_ID,
    UNKNOWN_OWNER,
    Account,
    Allocation,
    ContainerUse,
    Device,
    Holder,
    MemoryAccount,
    Owner,
    Reading,
    Resident,
    Tick,
)

OwnerKey = tuple[str, ...]


class HolderLabels(NamedTuple):
    """A container, or a whole pod if `container` is empty, as labels. Ordered, so that rounding is reproducible."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""


NO_HOLDER = HolderLabels()


# -- allocations


def allocations(tick: Tick) -> Iterator[Allocation]:
    """Every allocation, with the workload of a pod, which is taken from its processes or from its containers."""
    known = [*(use.owner for use in tick.processes), *(holder.owner for holder in tick.owners.holders)]
    workloads = {(owner.namespace, owner.pod): owner.workload_name for owner in known if owner.workload_name}
    for allocation in tick.owners.allocations:
        workload = workloads.get((allocation.owner.namespace, allocation.owner.pod), "") if allocation.owner.pod else ""
        yield replace(allocation, owner=replace(allocation.owner, workload_name=workload)) if workload else allocation


# -- holders of every device, for metrics that are split by container


@dataclass(slots=True)
class Holding:
    """A GPU or MIG instance and the containers that hold it. Compute instances of a MIG instance are one holding."""

    gpu: Reading
    reading: Reading
    account: Account | None = None
    """The ledger of the GPU; None for a MIG instance."""
    memory: MemoryAccount | None = None
    has_instances: bool = False
    """Whether this is a GPU with MIG instances."""
    uses: dict[HolderLabels, list[ContainerUse]] = field(default_factory=dict)
    """By container, including containers whose processes have exited."""
    holder: HolderLabels = NO_HOLDER
    """The only container or pod that holds the device; NO_HOLDER if there are several."""
    alone: bool = False
    """Whether the holder is the only user of the device."""
    waiting: set[HolderLabels] = field(default_factory=set)
    """Holders of an allocation without a process on the device; their share is 0."""
    has_unnamed: bool = False
    """Whether a container of an unknown pod is on the device."""
    holders: list[HolderLabels] = field(default_factory=list)
    """All holders. A container of an unknown pod is one only if no allocation names a pod that it may belong to."""

    def present(self) -> list[HolderLabels]:
        """The containers with a process on the device now."""
        return [labels for labels, uses in self.uses.items() if any(use.processes for use in uses)]


def holder_labels(owner: Owner, *, pod_uid: bool) -> HolderLabels:
    """The labels of an owner that is a container; a container without a name is shown by its id."""
    container = owner.container or ("" if owner.pod else owner.container_id[:SHORT_ID])
    return HolderLabels(owner.namespace, owner.pod, container, owner.pod_uid if pod_uid else "")


def holdings(tick: Tick, *, pod_uid: bool) -> list[Holding]:
    """Every GPU, followed by its MIG instances."""
    result: dict[tuple[str, int | None], Holding] = {}
    by_device: dict[str, Holding] = {}
    with_unknown: set[str] = set()
    with_outsiders: set[str] = set()
    gpus = {reading.device.uuid: reading for reading in tick.readings if not reading.device.parent_uuid}
    for reading in tick.readings:
        device = reading.device
        gpu = gpus.get(device.gpu_uuid)
        if gpu is None:  # an instance without its GPU
            continue
        instance = device.gpu_instance_id if device.parent_uuid else None
        new = Holding(gpu, reading, account=tick.accounts.get(device.uuid), memory=tick.memory.get(device.uuid))
        holding = by_device[device.uuid] = result.setdefault((gpu.device.uuid, instance), new)
        if device.parent_uuid:
            result[gpu.device.uuid, None].has_instances = True
        for resident in reading.residents or ():
            owner = tick.owners.by_pid.get(resident.pid)
            if owner is None or not owner.container_id:
                (with_outsiders if _is_outside(owner) else with_unknown).add(holding.reading.device.uuid)
    uses: dict[str, list[ContainerUse]] = {}
    for use in tick.containers:
        if (holding_of_use := by_device.get(use.device.uuid)) is not None:
            uses.setdefault(holding_of_use.reading.device.uuid, []).append(use)
    allocated = _allocated_labels(tick, by_device)
    for holding in result.values():
        uuid = holding.reading.device.uuid
        outer = {holder_labels(use.owner.outer, pod_uid=False) for use in uses.get(uuid, []) if use.owner.outer}
        claims = [labels for labels in allocated.get(uuid, []) if labels not in outer]
        for use in uses.get(uuid, []):
            holding.has_unnamed |= _is_unnamed(use.owner) and use.processes > 0
            holding.uses.setdefault(holder_labels(use.owner, pod_uid=pod_uid), []).append(use)
        _find_holder(holding, claims, unknown=uuid in with_unknown, outsiders=uuid in with_outsiders)
    return list(result.values())


def _allocated_labels(tick: Tick, by_device: Mapping[str, Holding]) -> dict[str, list[HolderLabels]]:
    labels: dict[str, dict[HolderLabels, None]] = {}
    for allocation in tick.owners.allocations:
        uuid, owner = allocation.device.uuid, allocation.owner
        if uuid in by_device and not owner.job:
            labels.setdefault(by_device[uuid].reading.device.uuid, {})[holder_labels(owner, pod_uid=False)] = None
    return {uuid: list(holders) for uuid, holders in labels.items()}


def _find_holder(holding: Holding, claims: Iterable[HolderLabels], *, unknown: bool, outsiders: bool) -> None:
    """Set the holder: the only container or pod that has a process or an allocation."""
    present = holding.present()
    present_without_uid = {labels._replace(pod_uid="") for labels in present}
    departed = {labels._replace(pod_uid=""): labels for labels in holding.uses}
    waiting = [departed.get(claim, claim) for claim in claims if claim not in present_without_uid]
    holders = [*present, *waiting]
    named = [labels for labels in present if not any(_is_unnamed(use.owner) for use in holding.uses[labels])]
    holding.holders = [*named, *waiting] if waiting else present
    pods = {(labels.namespace, labels.pod) for labels in holders}
    if len(holders) == 1:
        holding.holder = holders[0]
        holding.alone = not outsiders and not (unknown and present)
    elif len(pods) == 1 and holders[0].pod:
        holding.holder = holders[0]._replace(container="")
    if not holding.alone and not holding.has_unnamed:  # the unnamed container may belong to a waiting pod
        holding.waiting.update(waiting)
        for labels in waiting:
            holding.uses.setdefault(labels, [])
    if holding.has_instances:
        holding.holder, holding.alone = NO_HOLDER, False


def _is_outside(owner: Owner | None) -> bool:
    """Whether a process is known to be in no container; an unknown process may belong to the holder."""
    if owner is None or owner.pod_uid or owner.outer is not None:
        return False
    return bool(owner.unit or owner.job) or owner.reason == OUTSIDE


def _is_unnamed(owner: Owner) -> bool:
    return owner.pod_uid != "" and not owner.pod


# -- pods of every device, for the labels of an upstream exporter


@dataclass(frozen=True, slots=True)
class DevicePods:
    """The devices of this host, and the containers of pods that hold them."""

    devices: tuple[Device, ...] = ()
    holders: tuple[tuple[str, tuple[HolderLabels, ...]], ...] = ()
    """By uuid of the device."""


def device_pods(tick: Tick) -> DevicePods:
    """The pods to which each device is allocated; without an allocation, the pod of all its processes."""
    held: dict[str, set[HolderLabels]] = {}
    for allocation in tick.owners.allocations:
        if allocation.owner.pod:
            held.setdefault(allocation.device.uuid, set()).add(holder_labels(allocation.owner, pod_uid=False))
    with_instances = {reading.device.parent_uuid for reading in tick.readings}
    for reading in tick.readings:
        uuid = reading.device.uuid
        if uuid not in held and uuid not in with_instances and (labels := _resident_pod(tick, reading)):
            held[uuid] = labels
    devices = {reading.device.uuid: reading.device for reading in tick.readings}
    for allocation in tick.owners.allocations:  # on a machine without a driver
        if allocation.owner.pod:
            devices.setdefault(allocation.device.uuid, allocation.device)
    return DevicePods(
        devices=tuple(devices.values()),
        holders=tuple((uuid, tuple(sorted(held[uuid]))) for uuid in sorted(held)),
    )


def _resident_pod(tick: Tick, reading: Reading) -> set[HolderLabels]:
    """The containers with processes on the device; empty unless all processes belong to one pod."""
    owners = [tick.owners.by_pid.get(resident.pid) for resident in reading.residents or ()]
    labels = {HolderLabels(owner.namespace, owner.pod, owner.container) for owner in owners if owner and owner.pod}
    pods = {(owner.namespace, owner.pod) if owner else None for owner in owners}
    return labels if len(pods) == 1 else set()


def single_pod(holders: Sequence[HolderLabels]) -> HolderLabels | None:
    """The only pod among the holders, with its container if there is only one."""
    if len({(labels.namespace, labels.pod) for labels in holders}) != 1:
        return None
    return holders[0] if len(holders) == 1 else holders[0]._replace(container="")


# -- candidates for memory that no listed process holds


def memory_candidates(
    residents: Sequence[Resident], holders: Iterable[Holder], by_pid: Mapping[int, Owner]
) -> dict[OwnerKey, Owner]:
    """The owners that may hold unlisted memory, according to the best evidence.

    The best evidence is a listed process without an amount of memory. Owners with a listed amount are not candidates;
    processes outside of containers are.
    """
    listed = {resident.pid: by_pid.get(resident.pid, UNKNOWN_OWNER) for resident in residents}
    without_amount = {
        owner_key(listed[resident.pid], resident.pid): listed[resident.pid]
        for resident in residents
        if resident.memory_bytes is None
    }
    listed_keys = {owner_key(owner, pid) for pid, owner in listed.items()}
    by_evidence: dict[str, dict[OwnerKey, Owner]] = {evidence: {} for evidence in EVIDENCE}
    for holder in holders:
        key = owner_key(holder.owner, holder.pid)
        if key not in listed_keys and holder.pid not in listed:
            by_evidence[holder.evidence][key] = holder.owner
    return next((candidates for candidates in (without_amount, *by_evidence.values()) if candidates), {})


def owner_key(owner: Owner, pid: int | None) -> OwnerKey:
    """Identity of an owner: by names first, because the kubelet reports no container ids."""
    if owner.pod and owner.container:
        return "pod", owner.namespace, owner.pod, owner.container
    if owner.container_id:
        return "container", owner.container_id
    return "process", str(pid)
