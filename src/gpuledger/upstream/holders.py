"""Who holds which device: what the kubelet gave, and where it says nothing, whose processes are there. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpuledger.model import Device, Reading, Tick


class Holder(NamedTuple):
    """A container of a pod. The container is empty where several of the pod hold the device."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Holdings:
    """The devices of this host, and who holds those that somebody holds. Equal ones give equal labels."""

    devices: tuple[Device, ...] = ()
    holders: tuple[tuple[str, tuple[Holder, ...]], ...] = ()
    """By the device's uuid; one holder for each pod and container."""


def holdings(tick: Tick) -> Holdings:
    """Of a tick. A device nobody was given belongs to a pod if all processes on it are that pod's."""
    held: dict[str, set[Holder]] = {}
    for grant in tick.owners.granted:
        if grant.pod:
            held.setdefault(grant.device.uuid, set()).add(Holder(grant.namespace, grant.pod, grant.container))
    cut = {reading.device.parent_uuid for reading in tick.readings}
    for reading in tick.readings:
        uuid = reading.device.uuid
        if uuid not in held and uuid not in cut and (users := _users(tick, reading)):
            held[uuid] = users
    return Holdings(
        devices=tuple(reading.device for reading in tick.readings),
        holders=tuple((uuid, tuple(sorted(held[uuid]))) for uuid in sorted(held)),
    )


def _users(tick: Tick, reading: Reading) -> set[Holder]:
    """Those whose processes are on the device; nobody when one of them is of no pod, or of another one."""
    owners = [tick.owners.by_pid.get(resident.pid) for resident in reading.residents or ()]
    users = {Holder(owner.namespace, owner.pod, owner.container) for owner in owners if owner and owner.pod}
    pods = {(owner.namespace, owner.pod) if owner else None for owner in owners}
    return users if len(pods) == 1 else set()


def one_pod(holders: tuple[Holder, ...]) -> Holder | None:
    """The single pod among holders, with its container if that is a single one too."""
    if len({holder[:2] for holder in holders}) != 1:
        return None
    first = holders[0]
    return first if len(holders) == 1 else first._replace(container="")
