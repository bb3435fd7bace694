"""The view of one tenant: own workloads, on the devices that they use, and the sum of all others.

Before the snapshot is built, the tick is reduced to what the tenant may see: what is not named here is left out. Two
ticks that differ only in the workloads of others, and not in their sum, give the same view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpuledger.model import (
    Account,
    AllocationUse,
    ContainerUse,
    Facts,
    Health,
    MemoryAccount,
    Owner,
    Owners,
    ProcessUse,
    Tick,
)
from gpuledger.model.owners import Allocation
from gpuledger.web.snapshot.build import snapshot
from gpuledger.web.snapshot.colours import first_choice
from gpuledger.web.snapshot.history import Past
from gpuledger.web.snapshot.schema import Gpu, Others, Snapshot, sum_known

Use = ProcessUse | ContainerUse
BEFORE = "before"
"""The reason of energy from before the exporter started."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose workloads are shown: those of the pods of some namespaces, or those of a user of this host."""

    viewer: str
    namespaces: frozenset[str] | None = None
    """None for a user of this host."""
    uid: int | None = None
    """None for a user of Kubernetes, and for a user without an account on this host."""

    def owns(self, owner: Owner, facts: Facts | None = None, job_uid: str = "") -> bool:
        """Whether a workload is the tenant's.

        Of a container inside a container, the outer one counts: inner names can be chosen. A container of root's daemon
        belongs to no user, whatever the uids of its processes are; that of a user's own daemon begins with the uid.
        """
        owner = owner.outer or owner
        is_in_pod = bool(owner.pod or owner.pod_uid)
        if self.namespaces is not None:
            return is_in_pod and owner.namespace in self.namespaces
        if is_in_pod or self.uid is None:
            return False
        if owner.container or owner.container_id:
            return owner.container.startswith(f"{self.uid}/")
        return str(self.uid) in (job_uid, str(facts.uid) if facts is not None else "")


def namespaces_of(tick: Tick) -> frozenset[str]:
    """The namespaces of all pods of a tick."""
    uses: Iterable[Use | AllocationUse] = (*tick.processes, *tick.containers, *tick.allocations)
    owners = (use.owner.outer or use.owner for use in uses)
    return frozenset(owner.namespace for owner in owners if owner.namespace)


def own_snapshot(tick: Tick, before: Tick | None, scope: Scope, *, node: str = "") -> Snapshot:
    """The snapshot of the tenant's workloads. Without the problems of the host, which name others."""
    own = own_tick(tick, scope)
    view = snapshot(own, own_tick(before, scope) if before is not None else None, node=node)
    allocations = tuple(replace(row, shared_by=None) for row in view.allocations)
    gpus = tuple(replace(gpu, others=_others(gpu, own)) for gpu in view.gpus)
    return replace(view, viewer=scope.viewer, gpus=gpus, allocations=allocations, problems=(), process_count=None)


def own_past(past: Past, tick: Tick, scope: Scope) -> Past:
    """The history of the tenant's pods and jobs: no other tenant can have their names.

    That of GPUs would show when others used them.
    """
    own = own_tick(tick, scope)
    uses: tuple[Use, ...] = (*own.processes, *own.containers)
    owners = [use.owner for use in uses if use.owner.outer is None]
    names = {o.display_name for o in owners if o.job or (o.namespace and o.pod and o.container)}
    rows = tuple(replace(row, colour=first_choice(row.owner)) for row in past.owners.rows if row.owner in names)
    unknown = (None,) * len(past.owners.times)
    owners_only = replace(past.owners, rows=rows, unowned_watts=unknown)
    return replace(past, gpus=replace(past.gpus, rows=()), owners=owners_only)


def own_tick(tick: Tick, scope: Scope) -> Tick:
    """The tick with the tenant's workloads, and with the values of the devices that they use."""

    def is_own(use: Allocation | AllocationUse) -> bool:
        return scope.owns(use.owner, job_uid=tick.owners.job_uids.get(use.owner.job, ""))

    processes = tuple(use for use in tick.processes if scope.owns(use.owner, use.facts))
    containers = tuple(use for use in tick.containers if scope.owns(use.owner))
    allocations = tuple(use for use in tick.allocations if is_own(use))
    uses: list[Use | AllocationUse] = [use for use in processes if use.active is not False]
    uses += [use for use in containers if use.processes or use.inferred_bytes]
    uses += [use for use in allocations if use.state]
    # Not those of exited processes and ended allocations: others use these devices now.
    uuids = {uuid for use in uses for uuid in (use.device.uuid, use.device.gpu_uuid)}
    own = Tick(
        tick.time_ns,
        tick.driver,
        # Without the processes of the device, and the faults that they caused.
        tuple(replace(r, residents=None, samples=None, xids=()) for r in tick.readings if r.device.uuid in uuids),
        source=tick.source,
        owners=Owners(allocations=tuple(use for use in tick.owners.allocations if is_own(use))),
        memory={uuid: _memory(tick.memory[uuid], containers, uuid) for uuid in uuids & tick.memory.keys()},
        processes=processes,
        containers=containers,
        allocations=allocations,
        servers=tuple(server for server in tick.servers or () if server.owner is not None and scope.owns(server.owner)),
        health=Health(interval_ns=tick.health.interval_ns),
    )
    return replace(
        own, accounts={uuid: _account(tick.accounts[uuid], own, uuid) for uuid in uuids & tick.accounts.keys()}
    )


def _is_on(use: Use, uuid: str) -> bool:
    return uuid in (use.device.uuid, use.device.gpu_uuid)


def _memory(account: MemoryAccount, own: Iterable[ContainerUse], uuid: str) -> MemoryAccount:
    """What no own container is inferred to hold counts as known: contexts of others would show how many there are."""
    if account.unknown_bytes is None:
        return account
    inferred = sum(use.inferred_bytes or 0 for use in own if _is_on(use, uuid))
    total = account.known_bytes + account.unknown_bytes + (account.overhead_bytes or 0)
    return MemoryAccount(max(0, total - inferred), inferred, 0, inferred)


def _account(account: Account, own: Tick, uuid: str) -> Account:
    """The account of a GPU: energy without an owner and that of exited processes of others count as that of others."""
    retired_mj = _used_mj(own, uuid) - _mj(own.processes, uuid)
    before = tuple((reason, mj) for reason, mj in account.unattributed_mj if reason == BEFORE)
    return replace(account, retired_mj=max(0, retired_mj), unattributed_mj=before)


def _used_mj(own: Tick, uuid: str) -> int:
    """Energy of the tenant on a GPU. That of a container includes its exited processes."""
    return _mj((*own.containers, *(use for use in own.processes if not use.owner.container_id)), uuid)


def _mj(uses: Iterable[Use], uuid: str) -> int:
    return sum(mj for use in uses if _is_on(use, uuid) for _, mj in use.energy_mj)


def _others(gpu: Gpu, own: Tick) -> Others:
    """What is left of the device's totals: total = own + others, and for energy also idle and before."""
    held = [use.resident.memory_bytes for use in own.processes if use.active is not False and _is_on(use, gpu.uuid)]
    held += [use.inferred_bytes for use in own.containers if _is_on(use, gpu.uuid)]
    used, energy = gpu.memory.used_bytes, gpu.energy
    memory = None if used is None else max(0, used - int(sum_known(held) or 0))
    if energy is None or energy.joules is None:
        return Others(memory_bytes=memory)
    left = energy.joules - energy.idle_joules - sum(energy.unattributed_joules.values())
    return Others(memory_bytes=memory, joules=max(0.0, round(left - _used_mj(own, gpu.uuid) / 1000, 3)))
