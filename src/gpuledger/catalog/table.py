"""All metrics in the order they are written, and the things of a tick they speak of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuledger.catalog import container, dcgmstats, exporter, gpu, process
from gpuledger.catalog.family import Family, Kind, Moment, Of, Thing
from gpuledger.model import EVIDENCE, Device, Granted, Owner, ProcessUse, Tick

CATALOG: tuple[Family, ...] = (
    *exporter.FAMILIES,
    *dcgmstats.EXPORTER,
    *gpu.GPUS,
    *gpu.MIG_INSTANCES,
    *process.PROCESSES,
    *dcgmstats.PROCESSES,
    *container.CONTAINERS,
)


def things(tick: Moment, of: Of | Kind) -> Iterable[Thing]:
    """Everything of a kind in this tick, each with the values of the kind's labels."""
    return of.things(tick) if isinstance(of, Kind) else THINGS[of](tick)


def _device(device: Device) -> tuple[str, str]:
    return str(device.index), device.uuid


def _owner(owner: Owner) -> tuple[str, str, str, str, str]:
    return owner.container, owner.container_id, owner.namespace, owner.pod, owner.pod_uid


def _process(use: ProcessUse) -> tuple[str, ...]:
    owner = use.owner
    name = use.facts.name if use.facts is not None else ""
    known = (owner.namespace, owner.pod, owner.container, owner.pod_uid, owner.container_id)
    return (str(use.resident.pid), *_device(use.device), name, *known)


def _grant(grant: Granted) -> tuple[str, ...]:
    return (*_device(grant.device), grant.namespace, grant.pod, grant.container, grant.resource, grant.replica)


def _access(tick: Tick) -> list[Thing]:
    """Every container that is or may be on a device, once, with the best evidence."""
    best: dict[tuple[str, ...], str] = {}
    for use in tick.containers:
        if use.processes:
            best.setdefault((*_owner(use.owner), *_device(use.device)), "process")
    for evidence in EVIDENCE:
        for holder in tick.owners.holders:
            if holder.evidence == evidence and (holder.owner.container_id or holder.owner.container):
                best.setdefault((*_owner(holder.owner), *_device(holder.device)), evidence)
    return [((*labels, evidence), None) for labels, evidence in best.items()]


THINGS: dict[Of, Callable[[Tick], list[Thing]]] = {
    Of.EXPORTER: lambda tick: [((), tick)],
    Of.GPU: lambda tick: [(_device(r.device), r) for r in tick.readings if not r.device.parent_uuid],
    Of.MIG: lambda tick: [
        ((*_device(r.device), r.device.parent_uuid), r) for r in tick.readings if r.device.parent_uuid
    ],
    Of.PROCESS: lambda tick: [(_process(use), use) for use in tick.processes],
    Of.CONTAINER: lambda tick: [((*_owner(use.owner), *_device(use.device)), use) for use in tick.containers],
    Of.ACCESS: _access,
    Of.OWNER: lambda tick: [(_owner(use.owner), use.owner) for use in tick.containers],
    Of.GIVEN: lambda tick: [((*_device(device), *whom), whom) for device, *whom in tick.owners.given],
    Of.JOB: lambda tick: [((*_device(device), job), job) for device, job in tick.owners.granted_jobs],
    Of.GRANT: lambda tick: [(_grant(grant), grant) for grant in tick.owners.granted],
}
