"""Allocations of this host's devices, and processes and containers that may hold memory of a device. Pure.

An allocation grants access and does not prove use: memory that the books attribute by allocation is marked as inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpuledger.model import EVIDENCE, NO_INDEX, Allocation, Device, Facts, Holder, Owner
from gpuledger.model.problem import Problem
from gpuledger.owners.entitlements import PLACEHOLDERS, Asked, Fractions
from gpuledger.owners.kernel import devices
from gpuledger.owners.kernel.search import Clue
from gpuledger.owners.names import Container, Names

MAPS, ALLOCATION, ENVIRONMENT = EVIDENCE
NOTHING_VISIBLE = ("", "none", "void")


@dataclass(frozen=True, slots=True)
class Ignored:
    """Containers that read GPUs and use none, such as exporters. What the kubelet allocates to them still counts."""

    own: frozenset[str] = frozenset()
    """Ids of the exporter's own containers."""
    patterns: tuple[str, ...] = ()
    """Of NAMESPACE/POD, or of the name of a container outside of pods."""

    def __contains__(self, owner: Owner) -> bool:
        name = f"{owner.namespace}/{owner.pod}" if owner.pod else owner.container
        matching = (pattern for pattern in self.patterns if ("/" in pattern) == bool(owner.pod))
        is_ignored = owner.container_id in self.own or owner.namespace in PLACEHOLDERS
        return is_ignored or any(fnmatchcase(name, pattern) for pattern in matching)


NONE_IGNORED = Ignored()


@dataclass(frozen=True, slots=True)
class Allocations:
    """All devices that are allocated, used or not."""

    to_pods: tuple[Allocation, ...] = ()
    to_containers: tuple[Allocation, ...] = ()
    by_environment: tuple[Allocation, ...] = ()
    """Of containers, known only from NVIDIA_VISIBLE_DEVICES."""
    to_jobs: tuple[Allocation, ...] = ()
    unknown_ids: int = 0
    """Device ids of the kubelet whose format is unknown."""
    malformed: tuple[Problem, ...] = ()
    """Pods whose annotations do not tell what they asked for."""

    def all(self) -> tuple[Allocation, ...]:
        """Every allocation."""
        return (*self.to_pods, *self.to_containers, *self.by_environment, *self.to_jobs)


def find_allocations(
    names: Sequence[Names],
    inventory: Iterable[Device],
    ignored: Ignored = NONE_IGNORED,
    memory_bytes: Mapping[str, int | None] | None = None,
) -> Allocations:
    """The allocations of these devices according to all providers, without duplicates, except `ignored` ones.

    Instead of a pod that only reserves a GPU, and of what the kubelet lists for a pod of HAMi, the pods count to which
    a scheduler gave a part of the GPU. `memory_bytes` is the memory of each device.

    If there are no devices, because this machine has no driver, the allocations themselves tell which it has.
    """
    known = tuple(inventory) or _allocated_devices(names)
    index = devices.DeviceIndex(known)
    by_uuid = {device.uuid: device for device in known}
    by_index = {(device.index, device.gpu_instance_id): device for device in known}
    replicas = Counter(uuid for known in names for i in known.replicas for uuid in index.resolve(devices.parse(i)))
    asked = Asked(by_uuid, memory_bytes or {}, replicas)
    to_pods: dict[Allocation, None] = {}
    to_containers: dict[Allocation, None] = {}
    by_environment: dict[Allocation, None] = {}
    to_jobs: list[Allocation] = []
    unknown_ids = 0
    fractions = Fractions(names, lambda device_id: index.resolve(devices.parse(device_id)))
    for listed, share in fractions.allocations():
        ref = devices.parse(listed.device_id)
        unknown_ids += ref.form == "unknown"
        owner = Owner(namespace=listed.namespace, pod=listed.pod, container=listed.container)
        for uuid in index.resolve(ref):
            entitlement = asked.of_share(uuid, share) if share else asked.of_device(uuid, ref)
            to_pods[Allocation(by_uuid[uuid], owner, listed.resource, ref.replica or "", entitlement)] = None
    for provider_names in names:
        # A user's daemon could name the containers of others.
        containers = provider_names.containers.values() if provider_names.uid is None else ()
        for container in (container for container in containers if _owner_of(container) not in ignored):
            owner = Owner(container=container.name, container_id=container.id)
            for ids, allocated in ((container.device_ids, to_containers), (container.visible_ids, by_environment)):
                for device_id in ids:
                    for uuid in index.resolve(devices.parse(device_id)):
                        allocated[Allocation(by_uuid[uuid], owner, entitlement=asked.of_device(uuid))] = None
        for place, jobs in provider_names.jobs.items():
            if place in by_index:
                device, accounts = by_index[place], provider_names.accounts
                to_jobs += [
                    Allocation(
                        device, Owner(job=job, account=accounts.get(job, "")), entitlement=asked.of_device(device.uuid)
                    )
                    for job in jobs
                ]
    return Allocations(
        to_pods=tuple(to_pods),
        to_containers=tuple(to_containers),
        by_environment=tuple(by_environment),
        to_jobs=tuple(to_jobs),
        unknown_ids=unknown_ids,
        malformed=tuple(fractions.problems()),
    )


def _owner_of(container: Container) -> Owner:
    return Owner(namespace=container.namespace, pod=container.pod, container=container.name, container_id=container.id)


def _allocated_devices(names: Sequence[Names]) -> tuple[Device, ...]:
    refs = (devices.parse(allocation.device_id) for known in names for allocation in known.allocations)
    uuids = dict.fromkeys(ref.uuid for ref in refs if ref.form in ("gpu-uuid", "mig-uuid") and ref.uuid)
    return tuple(Device(NO_INDEX, uuid) for uuid in uuids)


def holders_by_allocation(
    allocations: Allocations, names: Sequence[Names], with_names: Callable[[Owner], Owner]
) -> tuple[Holder, ...]:
    """Running containers with an allocation of a device, or whose NVIDIA_VISIBLE_DEVICES names it."""
    running = {(c.namespace, c.pod, c.name): c for known in names for c in known.containers.values() if c.pod}
    holders: dict[Holder, None] = {}
    for allocation in allocations.to_pods:
        in_pod = _running_owner(allocation.owner, running)
        if in_pod is not None:
            holders[Holder(allocation.device, with_names(in_pod), ALLOCATION)] = None
    for evidence, allocated in ((ALLOCATION, allocations.to_containers), (ENVIRONMENT, allocations.by_environment)):
        for allocation in allocated:
            owner = Owner(container_id=allocation.owner.container_id)
            holders[Holder(allocation.device, with_names(owner), evidence)] = None
    return tuple(holders)


def _running_owner(owner: Owner, running: dict[tuple[str, str, str], Container]) -> Owner | None:
    """None if the pod has ended: kubelets before 1.34 still list it, but no provider lists its containers."""
    container = running.get((owner.namespace, owner.pod, owner.container))
    if container is None:
        return None if running else owner
    return replace(owner, container_id=container.id, pod_uid=container.pod_uid)


def holders_by_clues(
    clues: Iterable[Clue],
    inventory: Sequence[Device],
    owner_of: Callable[[Facts], Owner],
    ignored: Ignored = NONE_IGNORED,
) -> tuple[Holder, ...]:
    """Processes with a GPU in their memory map, and containers whose processes' environment names one.

    Processes of `ignored` containers and of pods that only reserve a GPU are left out.
    """
    index = devices.DeviceIndex(inventory)
    by_uuid = {device.uuid: device for device in inventory}
    holders: dict[Holder, None] = {}
    for clue in clues:
        owner = owner_of(clue.facts)
        if owner in ignored:
            continue
        for device in _mapped(clue.minors, inventory):
            holders[Holder(device, owner, MAPS, clue.facts.pid)] = None
        names = (part.strip() for part in clue.visible.split(","))
        for name in (name for name in names if name not in NOTHING_VISIBLE):
            for uuid in index.resolve(devices.parse(name)):
                holders[Holder(by_uuid[uuid], owner, ENVIRONMENT)] = None
    return tuple(holders)


def _mapped(minors: Sequence[int], inventory: Sequence[Device]) -> Iterator[Device]:
    """The devices of these minor numbers. A map does not name a MIG instance, unless the GPU has only one."""
    for gpu in (device for device in inventory if not device.parent_uuid and device.minor in minors):
        instances = [device for device in inventory if device.parent_uuid == gpu.uuid]
        if len(instances) <= 1:
            yield instances[0] if instances else gpu
