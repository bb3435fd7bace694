"""The kinds of things that metrics describe: which labels they have, and where they are in a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpuledger.catalog.family import Kind, Thing, at
from gpuledger.model import (
    EVIDENCE,
    NO_INDEX,
    TO_CONTAINER,
    TO_JOB,
    TO_POD,
    Allocation,
    AllocationUse,
    Device,
    Owner,
    ProcessUse,
    Reading,
    Tick,
)

DEVICE = ("gpu", "uuid")
MIG_DEVICE = (*DEVICE, "parent_uuid")
OWNER_LABELS = ("container", "container_id", "namespace", "pod", "pod_uid")


def _device(device: Device) -> tuple[str, str]:
    return str(device.index) if device.index != NO_INDEX else "", device.uuid


def _mig_device(device: Device) -> tuple[str, str, str]:
    return (*_device(device), device.parent_uuid)


def _owner(owner: Owner) -> tuple[str, str, str, str, str]:
    return owner.container, owner.container_id, owner.namespace, owner.pod, owner.pod_uid


def _process(use: ProcessUse) -> tuple[str, ...]:
    owner = use.owner
    name = use.facts.name if use.facts is not None else ""
    names = (owner.namespace, owner.pod, owner.container, owner.pod_uid, owner.container_id)
    return (str(use.resident.pid), *_device(use.device), name, *names)


def _allocated(kind: str, labels: Callable[[Allocation], Iterable[str]]) -> Callable[[Tick], Iterable[Thing]]:
    """The allocations to owners of a kind, with the labels of their owner."""
    return lambda tick: [((*_device(a.device), *labels(a)), a) for a in tick.owners.allocations if a.kind == kind]


def _gpus(tick: Tick) -> Iterable[Reading]:
    return (reading for reading in tick.readings if not reading.device.parent_uuid)


def _instances(tick: Tick) -> Iterable[Reading]:
    return (reading for reading in tick.readings if reading.device.parent_uuid)


def _booked(
    readings: Iterable[Reading], records: Mapping[str, object], labels: Callable[[Device], tuple[str, ...]]
) -> list[Thing]:
    """The records of the books that describe a device, by uuid."""
    return [(labels(r.device), records[r.device.uuid]) for r in readings if r.device.uuid in records]


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


def _servers(tick: Tick) -> list[Thing]:
    """Servers of language models whose owner is on a GPU."""
    return [((server.name, *_owner(server.owner)), server) for server in tick.servers or () if server.owner is not None]


EXPORTER = Kind((), lambda tick: [((), tick)], created=at("health.start_time_ms", 1000))
GPU = Kind(DEVICE, lambda tick: [(_device(r.device), r) for r in _gpus(tick)])
GPU_ACCOUNT = Kind(DEVICE, lambda tick: _booked(_gpus(tick), tick.accounts, _device))
"""The ledger of each GPU."""
GPU_MEMORY = Kind(DEVICE, lambda tick: _booked(_gpus(tick), tick.memory, _device))
"""The memory account of each GPU."""
GPU_USERS = Kind(DEVICE, lambda tick: _booked(_gpus(tick), tick.users, _device))
"""The users of each GPU."""
GPU_UNATTRIBUTED = Kind(DEVICE, lambda tick: _booked(_gpus(tick), tick.unattributed_activity, _device))
"""The activity of each GPU that belongs to no process."""
MIG = Kind(MIG_DEVICE, lambda tick: [(_mig_device(r.device), r) for r in _instances(tick)])
MIG_MEMORY = Kind(MIG_DEVICE, lambda tick: _booked(_instances(tick), tick.memory, _mig_device))
MIG_UNATTRIBUTED = Kind(MIG_DEVICE, lambda tick: _booked(_instances(tick), tick.unattributed_activity, _mig_device))
PROCESS = Kind(
    ("pid", "gpu", "uuid", "process_name", "namespace", "pod", "container", "pod_uid", "container_id"),
    lambda tick: [(_process(use), use) for use in tick.processes],
    created=at("created_ns", 1e9),
)
CONTAINER = Kind(
    (*OWNER_LABELS, *DEVICE),
    lambda tick: [((*_owner(use.owner), *_device(use.device)), use) for use in tick.containers],
)
ACCESS = Kind((*OWNER_LABELS, *DEVICE, "evidence"), _access)
OWNER = Kind(OWNER_LABELS, lambda tick: [(_owner(use.owner), use.owner) for use in tick.containers])
CONTAINER_ALLOCATION = Kind(
    (*DEVICE, "container", "container_id"),
    _allocated(TO_CONTAINER, lambda a: (a.owner.container, a.owner.container_id)),
)
ALLOCATION_LABELS = ("namespace", "pod", "container", "container_id", "batch_job")


def _allocation(use: AllocationUse) -> tuple[str, ...]:
    owner = use.owner
    return (*_device(use.device), owner.namespace, owner.pod, owner.container, owner.container_id, owner.job)


ALLOCATION = Kind((*DEVICE, *ALLOCATION_LABELS), lambda tick: [(_allocation(use), use) for use in tick.allocations])
"""Allocations that are in force, or ended less than --metric-retention ago."""
CURRENT_ALLOCATION = Kind(
    (*DEVICE, *ALLOCATION_LABELS), lambda tick: [(_allocation(use), use) for use in tick.allocations if use.state]
)
JOB_ALLOCATION = Kind(
    (*DEVICE, "batch_job", "batch_account"),
    _allocated(TO_JOB, lambda a: (a.owner.job, a.owner.account)),
)
SERVER = Kind(("server", *OWNER_LABELS), _servers)
"""The servers of language models of one owner."""
POD_ALLOCATION = Kind(
    (*DEVICE, "namespace", "pod", "container", "resource", "replica"),
    _allocated(TO_POD, lambda a: (a.owner.namespace, a.owner.pod, a.owner.container, a.resource, a.replica)),
)
