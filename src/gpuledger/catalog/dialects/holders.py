"""Whose a device is: the places of a tick, who is on each of them, and who holds it alone.

A place is a GPU, or a MIG instance of one. Those who are there come from the processes; who holds it, from them and
from what the kubelet or Docker gave to whom.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.model import OUTSIDE, Account, ContainerUse, MemoryAccount, Owner, Reading, Tick

SHORT_ID = 12
"""Characters of a container's id that stand for its name where nobody knows that."""


class Whose(NamedTuple):
    """A container as dialects label it; in order, so that rounding is settled always alike."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""


NOBODY = Whose()


@dataclass(slots=True)
class Place:
    """A device and everybody on it. A MIG instance cut again into compute instances is one place."""

    gpu: Reading
    reading: Reading
    account: Account | None = None
    """The ledger of the GPU; None for a MIG instance."""
    memory: MemoryAccount | None = None
    cut: bool = False
    """Whether this is a GPU that has MIG instances."""
    uses: dict[Whose, list[ContainerUse]] = field(default_factory=dict)
    """By container; those that left and are still shown too."""
    holder: Whose = NOBODY
    """The one container or pod it is held by; nobody when there are several."""
    alone: bool = False
    """Whether all that the device does is its holder's."""
    waiting: set[Whose] = field(default_factory=set)
    """Those who were given a part of it and have no process there: their part is 0, and that is known."""
    unnamed: bool = False
    """Whether a container of a pod is on it, and nobody knows of which."""

    def here(self) -> list[Whose]:
        """Those with a process on it now."""
        return [whose for whose, uses in self.uses.items() if any(use.processes for use in uses)]


def whose(owner: Owner, *, pod_uid: bool) -> Whose:
    """The labels of an owner that has a container."""
    name = owner.container or ("" if owner.pod else owner.container_id[:SHORT_ID])
    return Whose(owner.namespace, owner.pod, name, owner.pod_uid if pod_uid else "")


def places(tick: Tick, *, pod_uid: bool) -> list[Place]:
    """Every GPU, followed by its MIG instances."""
    found: dict[tuple[str, int | None], Place] = {}
    by_device: dict[str, Place] = {}
    nameless: set[str] = set()
    outside: set[str] = set()
    gpus = {reading.device.uuid: reading for reading in tick.readings if not reading.device.parent_uuid}
    for reading in tick.readings:
        device = reading.device
        gpu = gpus.get(device.gpu_uuid)
        if gpu is None:  # an instance without its GPU
            continue
        instance = device.gpu_instance_id if device.parent_uuid else None
        place = found.setdefault((gpu.device.uuid, instance), _place(tick, gpu, reading))
        by_device[device.uuid] = place
        if device.parent_uuid:
            found[gpu.device.uuid, None].cut = True
        for resident in reading.residents or ():
            owner = tick.owners.by_pid.get(resident.pid)
            if owner is None or not owner.container_id:
                (outside if _is_outside(owner) else nameless).add(place.reading.device.uuid)
    used: dict[str, list[ContainerUse]] = {}
    for use in tick.containers:
        if (there := by_device.get(use.device.uuid)) is not None:
            used.setdefault(there.reading.device.uuid, []).append(use)
    given = _given(tick, by_device)
    for place in found.values():
        uuid = place.reading.device.uuid
        _seat(place, used.get(uuid, []), given.get(uuid, []), pod_uid=pod_uid)
        _settle(place, given.get(uuid, []), nameless=uuid in nameless, outside=uuid in outside)
    return list(found.values())


def _place(tick: Tick, gpu: Reading, reading: Reading) -> Place:
    uuid = reading.device.uuid
    return Place(gpu, reading, tick.accounts.get(uuid), tick.memory.get(uuid))


def _seat(place: Place, used: list[ContainerUse], given: list[Whose], *, pod_uid: bool) -> None:
    """Everybody's uses. A container whose pod has no name is of the one pod that was given the place."""
    pods = {(who.namespace, who.pod) for who in given}
    uids = {
        use.owner.pod_uid
        for use in used
        if use.processes and (_is_unnamed(use.owner) or (use.owner.namespace, use.owner.pod) in pods)
    }
    # What an earlier pod left there has another uid, and is not the new pod's.
    is_known = len(pods) == 1 and given[0].pod != "" and len(uids) == 1
    for use in used:
        who = whose(use.owner, pod_uid=pod_uid)
        if _is_unnamed(use.owner) and is_known and use.owner.pod_uid in uids:
            container = given[0].container if len(given) == 1 else who.container
            who = given[0]._replace(container=container, pod_uid=who.pod_uid)
        elif _is_unnamed(use.owner) and use.processes:
            place.unnamed = True
        place.uses.setdefault(who, []).append(use)


def _is_outside(owner: Owner | None) -> bool:
    """Whether a process is known to be in no container; of one that nobody knows, it may be the holder's."""
    return owner is not None and (bool(owner.unit or owner.job) or owner.reason == OUTSIDE) and not owner.pod_uid


def _is_unnamed(owner: Owner) -> bool:
    return owner.pod_uid != "" and not owner.pod


def _given(tick: Tick, by_device: dict[str, Place]) -> dict[str, list[Whose]]:
    given: dict[str, dict[Whose, None]] = {}
    granted = [(g.device.uuid, Whose(g.namespace, g.pod, g.container)) for g in tick.owners.granted]
    granted += [(device.uuid, Whose(container=name or id_[:SHORT_ID])) for device, name, id_ in tick.owners.given]
    for uuid, to_whom in granted:
        if uuid in by_device:
            given.setdefault(by_device[uuid].reading.device.uuid, {})[to_whom] = None
    return {uuid: list(all_of_them) for uuid, all_of_them in given.items()}


def _settle(place: Place, given: Iterable[Whose], *, nameless: bool, outside: bool) -> None:
    """Who holds it: the only pod among those who are there and those who were given it."""
    here = place.here()
    without_uid = {who._replace(pod_uid="") for who in here}
    left = {who._replace(pod_uid=""): who for who in place.uses}  # their processes are gone, or were never listed
    waiting = [left.get(who, who) for who in given if who not in without_uid]
    everybody = [*here, *waiting]
    pods = {(who.namespace, who.pod) for who in everybody}
    if len(everybody) == 1:
        place.holder = everybody[0]
        place.alone = not outside and not (nameless and here)
    elif len(pods) == 1 and everybody[0].pod:
        place.holder = here[0]._replace(container="") if here else everybody[0]._replace(container="")
    if not place.alone and not place.unnamed:  # whose the unnamed one is, its part is not 0
        place.waiting.update(waiting)
        for who in waiting:
            place.uses.setdefault(who, [])
    if place.cut:
        place.holder, place.alone = NOBODY, False
