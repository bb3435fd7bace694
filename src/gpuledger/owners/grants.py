"""Who was given which device: what the kubelet, Docker and schedulers say, as devices of this host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuledger.model import Device, Granted
from gpuledger.owners import devices
from gpuledger.owners.names import Names


@dataclass(frozen=True, slots=True)
class Grants:
    """All devices that were given to somebody, used or not."""

    to_pods: tuple[Granted, ...] = ()
    to_containers: tuple[tuple[Device, str, str], ...] = ()
    """With the container's name and id."""
    by_environment: tuple[tuple[Device, str, str], ...] = ()
    """The same, where only NVIDIA_VISIBLE_DEVICES says so."""
    to_jobs: tuple[tuple[Device, str], ...] = ()
    unknown_ids: int = 0
    """Ids of the kubelet in a form nobody knows."""


def find(names: Sequence[Names], inventory: Iterable[Device]) -> Grants:
    """What these names say about these devices; what is said twice is there once."""
    known = tuple(inventory)
    index = devices.DeviceIndex(known)
    by_uuid = {device.uuid: device for device in known}
    places = {(device.index, device.gpu_instance_id): device for device in known}
    to_pods: dict[Granted, None] = {}
    to_containers: dict[tuple[Device, str, str], None] = {}
    by_environment: dict[tuple[Device, str, str], None] = {}
    to_jobs: list[tuple[Device, str]] = []
    unknown_ids = 0
    for one in names:
        for a in one.allocations:
            ref = devices.parse(a.device_id)
            unknown_ids += ref.form == "unknown"
            for uuid in index.resolve(ref):
                grant = Granted(by_uuid[uuid], a.namespace, a.pod, a.container, a.resource, ref.replica or "")
                to_pods[grant] = None
        for container in one.containers.values():
            for ids, found in ((container.device_ids, to_containers), (container.visible_ids, by_environment)):
                for device_id in ids:
                    for uuid in index.resolve(devices.parse(device_id)):
                        found[by_uuid[uuid], container.name, container.id] = None
        for place, jobs in one.jobs.items():
            if place in places:
                to_jobs += [(places[place], job) for job in jobs]
    return Grants(tuple(to_pods), tuple(to_containers), tuple(by_environment), tuple(to_jobs), unknown_ids)
