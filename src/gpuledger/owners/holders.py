"""Who may hold memory of a device: those whose memory map names it, who were given it, or whose environment does. Pure.

Access is not use: what is made of these is a guess, and the books show it as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from gpuledger.model import EVIDENCE, Device, Facts, Holder, Owner
from gpuledger.owners import devices
from gpuledger.owners.grants import Grants
from gpuledger.owners.names import Container, Names
from gpuledger.owners.search import Clue

MAPS, ALLOCATION, ENVIRONMENT = EVIDENCE
NOTHING_VISIBLE = ("", "none", "void")


def by_grants(grants: Grants, names: Sequence[Names], with_names: Callable[[Owner], Owner]) -> tuple[Holder, ...]:
    """Running containers that were given a device, or whose environment names it as their runtime knows it."""
    running = {(c.namespace, c.pod, c.name): c for one in names for c in one.containers.values() if c.pod}
    found: dict[Holder, None] = {}
    for grant in grants.to_pods:
        owner = _of_pod(grant.namespace, grant.pod, grant.container, running)
        if owner is not None:
            found[Holder(grant.device, with_names(owner), ALLOCATION)] = None
    for evidence, given in ((ALLOCATION, grants.to_containers), (ENVIRONMENT, grants.by_environment)):
        for device, _, container_id in given:
            found[Holder(device, with_names(Owner(container_id=container_id)), evidence)] = None
    return tuple(found)


def _of_pod(namespace: str, pod: str, name: str, running: dict[tuple[str, str, str], Container]) -> Owner | None:
    """Kubelets before 1.34 still list pods that have ended; whoever knows containers knows better."""
    container = running.get((namespace, pod, name))
    if container is None:
        return None if running else Owner(namespace=namespace, pod=pod, container=name)
    return Owner(container_id=container.id, pod_uid=container.pod_uid, namespace=namespace, pod=pod, container=name)


def by_clues(
    clues: Iterable[Clue], inventory: Sequence[Device], owner_of: Callable[[Facts], Owner]
) -> tuple[Holder, ...]:
    """Processes that have a GPU in their memory map, and containers whose processes' environment names one."""
    index = devices.DeviceIndex(inventory)
    by_uuid = {device.uuid: device for device in inventory}
    found: dict[Holder, None] = {}
    for clue in clues:
        owner = owner_of(clue.facts)
        for device in _mapped(clue.minors, inventory):
            found[Holder(device, owner, MAPS, clue.facts.pid)] = None
        for uuid in (uuid for name in _visible(clue.visible) for uuid in index.resolve(devices.parse(name))):
            found[Holder(by_uuid[uuid], owner, ENVIRONMENT)] = None
    return tuple(found)


def _mapped(minors: Sequence[int], inventory: Sequence[Device]) -> Iterator[Device]:
    """A map names the whole GPU; of one that is cut it does not say which part, unless there is but one."""
    for gpu in (device for device in inventory if not device.parent_uuid and device.minor in minors):
        parts = [device for device in inventory if device.parent_uuid == gpu.uuid]
        if len(parts) <= 1:
            yield parts[0] if parts else gpu


def _visible(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip()) not in NOTHING_VISIBLE]
