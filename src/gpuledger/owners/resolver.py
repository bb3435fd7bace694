"""The owner of each process: its cgroup identifies the container, and providers name it.

Names join by container id first, then by pod uid. An incomplete owner has a reason. The resolver also lists allocated
devices, and processes that may hold memory which the driver attributes to no process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.model import OUTSIDE, Allocation, Device, Facts, Holder, Owner, Owners, ProviderHealth, Tick
from gpuledger.model.plaintext import plain
from gpuledger.owners.allocations import (
    NONE_IGNORED,
    Allocations,
    Ignored,
    find_allocations,
    holders_by_allocation,
    holders_by_clues,
)
from gpuledger.owners.kernel import cgroup
from gpuledger.owners.kernel.access import Access
from gpuledger.owners.kernel.cgroup import CgroupRef
from gpuledger.owners.kernel.search import Clue, RunningContainers, Search
from gpuledger.owners.kernel.slurm import SlurmNumbers
from gpuledger.owners.names import Names, NamesIndex
from gpuledger.owners.podmatch import PodMatches
from gpuledger.runtime.poller import Backoff

GONE = "process is gone"
NO_NAME = "container has no name yet"
NO_POD = "pod has no name yet"
UNCONFIRMED = "container is not listed by a daemon of its user"
WAITING = (NO_NAME, NO_POD, UNCONFIRMED)
"""Reasons that the next answer of a provider may remove."""
MOST_OWNERS = 10_000
FIRST_DELAY_S, LONGEST_DELAY_S = 2.0, 60.0
SETTLED_NS = 30_000_000_000
"""A process on a device of another pod counts as a conflict after this time: the kubelet is polled every 10 s, and may
still report the previous pod."""
COUNTED = -1


class NameSource(Protocol):
    """A polled provider."""

    @property
    def names(self) -> Names:
        """Its last names."""

    @property
    def health(self) -> ProviderHealth:
        """Its health."""

    def nudge(self) -> None:
        """Poll soon."""

    def stop(self) -> None:
        """Stop polling."""


class Resolver:
    """Resolves all processes of a tick. Costs almost nothing while neither processes nor names change."""

    def __init__(
        self,
        sources: Sequence[NameSource] = (),
        *,
        parse_cgroup: Callable[[str], CgroupRef] = cgroup.parse,
        slurm: SlurmNumbers | None = None,
        access: Access | None = None,
        search: Search | None = None,
        running: RunningContainers | None = None,
        ignored: Ignored = NONE_IGNORED,
    ) -> None:
        self._sources = tuple(sources)
        self._parse_cgroup = parse_cgroup
        self._slurm = slurm
        self._access = access
        self._search = search
        self._running = running
        self._ignored = ignored
        """Containers that are no holders and have no allocations, the exporter's own included."""
        self._names = NamesIndex()
        self._owners: dict[tuple[object, ...], Owner] = {}
        """Owners by cgroup and user."""
        self._pods = PodMatches()
        self._unnamed = _UnnamedIds()
        self._conflicts = _Conflicts()
        self._inventory: tuple[Device, ...] = ()
        self._memory_bytes: dict[str, int | None] = {}
        self._allocations: Allocations | None = None
        self._holders: tuple[Holder, ...] = ()
        """Containers that may hold memory because a device was allocated to them."""
        self._clues: tuple[Clue, ...] = ()
        self._suspected: tuple[Holder, ...] = ()
        """Processes and containers that may hold memory according to the search."""

    def resolve(self, tick: Tick, previous: Tick | None = None) -> Tick:
        """The tick with the owner of every process and the allocation of every device.

        If memory of the previous tick belongs to no listed process, the search for its holders starts. Containers of
        the previous tick that have left their GPUs are checked for processes.
        """
        memory = previous.memory.values() if previous is not None else ()
        is_unknown = any(account.unknown_bytes for account in memory)
        if self._search is not None and is_unknown:
            self._search.start()
        self._refresh()
        # A recording contains its owners, allocations and holders.
        by_pid = {pid: self._owner(facts) for pid, facts in tick.facts.items()} | dict(tick.owners.by_pid)
        allocations = self._allocated(tick)
        matched = self._pods.name(tick, by_pid, allocations.to_pods, self._listed_ns())
        by_pid |= {pid: replace(owner, reason=_name_reason(owner)) for pid, owner in matched.items()}
        self._nudge(by_pid.values(), tick.time_ns)
        reasons = Counter(owner.reason for owner in by_pid.values() if owner.reason and owner.reason != OUTSIDE)
        reasons[GONE] += len(tick.resident_pids() - by_pid.keys())
        owners = Owners(
            by_pid=by_pid,
            running=tick.owners.running | self._still_running(previous),
            allocations=(*tick.owners.allocations, *allocations.all()),
            job_uids={**tick.owners.job_uids, **self._names.job_uids()},
            holders=(*tick.owners.holders, *self._holders, *(self._suspects() if is_unknown or not memory else ())),
            providers=tuple(source.health for source in self._sources),
            unresolved=tuple((reason, count) for reason, count in sorted(reasons.items()) if count),
            conflicts=self._conflicts.count(tick, by_pid, allocations.to_pods),
            unknown_device_ids=allocations.unknown_ids,
            malformed=allocations.malformed,
            host_pid_namespace=self._access.host_pid_namespace if self._access is not None else None,
            readable=self._access.readable if self._access is not None else (),
        )
        return replace(tick, owners=owners)

    def _still_running(self, previous: Tick | None) -> frozenset[str]:
        if self._running is None or previous is None:
            return frozenset()
        gone = frozenset(use.owner.container_id for use in previous.containers if not use.processes)
        return self._running.among(gone)

    def has_names(self) -> bool:
        """Whether each provider has answered, or failed, at least once."""
        return all(source.health.fetches for source in self._sources)

    def close(self) -> None:
        """Stop all providers."""
        for source in self._sources:
            source.stop()

    def explain(self, tick: Tick, pid: int) -> tuple[CgroupRef, Tick]:
        """The parsed cgroup of one process of the tick, and the tick with all owners."""
        return self._parse_cgroup(tick.facts[pid].cgroup), self.resolve(tick)

    def _refresh(self) -> None:
        names = tuple(source.names for source in self._sources)
        if not self._names.is_of(names):
            self._names, self._allocations = NamesIndex(names), None
            self._owners.clear()

    def _nudge(self, owners: Collection[Owner], time_ns: int) -> None:
        unnamed = {owner.container_id or owner.pod_uid or owner.unit for owner in owners if owner.reason in WAITING}
        if self._unnamed.is_due(unnamed, time_ns):
            for source in self._sources:
                source.nudge()

    def _owner(self, facts: Facts) -> Owner:
        """The owner of a process. Processes of one cgroup and user share it."""
        key = (facts.cgroup, facts.user)
        owner = self._owners.get(key)
        if owner is None:
            ref = self._parse_cgroup(facts.cgroup)
            owner = self._innermost_owner(facts, ref)
            if len(self._owners) >= MOST_OWNERS:
                self._owners.clear()
            self._owners[key] = owner
        return owner

    def _innermost_owner(self, facts: Facts, ref: CgroupRef) -> Owner:
        """The owner of the innermost level that is known, with that of the outermost one.

        A level is not known if no daemon of its user lists it, or if its container is in another pod.
        """
        owner = self._resolve_owner(facts, ref)
        if ref.outer is None:
            return owner
        outer = self._innermost_owner(facts, ref.outer)
        listed = replace(owner, pod_uid=ref.pod_uid or "")
        if owner.reason == UNCONFIRMED or not self._names.is_in_pod(listed):
            return outer
        return replace(owner, outer=outer.outer or outer)

    def _resolve_owner(self, facts: Facts, ref: CgroupRef) -> Owner:
        if ref.candidate and self._names.container(ref.candidate) is not None:
            ref = replace(ref, container_id=ref.candidate, runtime="containerd")
        kind, job_id = self._job(facts, ref)
        owner = Owner(
            container_id=ref.container_id or "",
            pod_uid=ref.pod_uid or "",
            runtime=ref.runtime or "",
            unit=ref.unit or "",
            job=plain(f"{kind}/{job_id}") if kind else "",
            step=ref.step or "",
            task=ref.task or "",
            user=facts.user,
            account=self._names.account(job_id) if kind == "slurm" else "",
        )
        if ref.claimed_by is not None and self._names.container(owner.container_id, ref.claimed_by) is None:
            # Without the word of its user's daemon, the id may be that of another container, or invented.
            return replace(owner, container_id="", runtime="", reason=UNCONFIRMED)
        if not ref.container_id and not ref.pod_uid:
            return replace(owner, reason="" if owner.job else OUTSIDE)
        owner = self._names.named(owner, ref.claimed_by)
        if ref.claimed_by is not None and owner.container:
            owner = replace(owner, container=f"{ref.claimed_by}/{owner.container}")
        return replace(owner, container_id=ref.container_key or "", reason=_name_reason(owner))

    def _listed_ns(self) -> int:
        """When the kubelet was last read; 0 if no allocation is known."""
        sources = [source for source in self._sources if source.names.allocations]
        return min((source.health.last_success_ns for source in sources), default=0)

    def _job(self, facts: Facts, ref: CgroupRef) -> tuple[str, str]:
        """Scheduler and id of the process's job; both empty if there is none."""
        if ref.job is not None and ref.job[0] == "slurm-sluid" and self._slurm is not None:
            number = self._slurm.number(facts.cgroup, ref.job[1])
            return ("slurm", number) if number else ref.job
        return ref.job or ("", "")

    def _allocated(self, tick: Tick) -> Allocations:
        """The allocations, computed only when names or devices change: a kubelet may list hundreds."""
        inventory = tuple(reading.device for reading in tick.readings)
        memory_bytes = {reading.device.uuid: reading.memory_total_bytes for reading in tick.readings}
        if inventory != self._inventory or memory_bytes != self._memory_bytes or self._allocations is None:
            self._inventory, self._memory_bytes = inventory, memory_bytes
            self._allocations = find_allocations(self._names.names, inventory, self._ignored, memory_bytes)
            self._holders = holders_by_allocation(self._allocations, self._names.names, self._names.named)
            self._clues, self._suspected = (), ()
        return self._allocations

    def _suspects(self) -> tuple[Holder, ...]:
        """The holders according to the clues, computed after each search and when names change."""
        clues = self._search.clues if self._search is not None else ()
        if clues is not self._clues:
            self._clues = clues
            self._suspected = holders_by_clues(clues, self._inventory, self._owner, self._ignored)
        return self._suspected


def _name_reason(owner: Owner) -> str:
    """Which name of a container is missing; empty if none is."""
    if owner.pod_uid and not owner.pod:
        return NO_POD
    return "" if owner.container else NO_NAME


class _UnnamedIds:
    """Backoff of nudges for ids without a name; some never get one."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._backoffs: dict[str, Backoff] = {}

    def is_due(self, ids: set[str], now_ns: int) -> bool:
        """Whether to nudge for any of these ids now."""
        self._now_s = now_ns / 1e9
        self._backoffs = {i: self._backoffs.get(i) or self._new_backoff() for i in ids}
        due = [backoff for backoff in self._backoffs.values() if backoff.due()]
        for backoff in due:
            backoff.failed()
        return bool(due)

    def _new_backoff(self) -> Backoff:
        return Backoff(lambda: self._now_s, first_s=FIRST_DELAY_S, longest_s=LONGEST_DELAY_S)


class _Conflicts:
    """Counts processes of one pod on a device that was allocated only to other pods."""

    def __init__(self) -> None:
        self._total = 0
        self._since_ns: dict[tuple[int, int, str], int] = {}
        """By process and device: when the conflict began, or COUNTED."""

    def count(self, tick: Tick, by_pid: Mapping[int, Owner], allocations: Sequence[Allocation]) -> int:
        """Conflicts since start. Each process and device counts once."""
        pods: dict[str, set[tuple[str, str]]] = {}
        for allocation in allocations:
            pods.setdefault(allocation.device.uuid, set()).add((allocation.owner.namespace, allocation.owner.pod))
        conflicts = {}
        for reading in tick.readings:
            allocated = pods.get(reading.device.uuid)
            for resident in (reading.residents or ()) if allocated else ():
                owner = by_pid.get(resident.pid)
                if owner and owner.pod and allocated and (owner.namespace, owner.pod) not in allocated:
                    key = (resident.pid, tick.facts[resident.pid].start_ticks, reading.device.uuid)
                    since_ns = self._since_ns.get(key, tick.time_ns)
                    if since_ns >= 0 and tick.time_ns - since_ns >= SETTLED_NS:
                        self._total += 1
                        since_ns = COUNTED
                    conflicts[key] = since_ns
        self._since_ns = conflicts
        return self._total
