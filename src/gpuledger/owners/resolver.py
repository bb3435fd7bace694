"""From a process to its owner: the cgroup says which container, providers say what it is called.

What a process uses comes before what a pod was given. Names are joined by container id first, then by pod uid. What
stays unknown says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.model import OUTSIDE, Device, Facts, Granted, Holder, Owner, Owners, ProviderHealth, Tick
from gpuledger.owners import cgroup, grants, holders
from gpuledger.owners.access import Access
from gpuledger.owners.cgroup import CgroupRef
from gpuledger.owners.grants import Grants
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.search import Clue, Search

GONE = "process is gone"
NO_NAME = "container has no name yet"
NO_POD = "pod has no name yet"
HOST = OUTSIDE
MOST_FOUND = 10_000
SETTLED_NS = 30_000_000_000
COUNTED = -1
FIRST_WAIT_NS, LONGEST_WAIT_NS = 2_000_000_000, 60_000_000_000


class NameSource(Protocol):
    """A provider in the background, as the resolver sees it."""

    @property
    def names(self) -> Names:
        """What it knows."""

    @property
    def health(self) -> ProviderHealth:
        """How it is."""

    def nudge(self) -> None:
        """Ask again soon."""

    def stop(self) -> None:
        """Ask no more."""


class Jobs(Protocol):
    """Who knows batch jobs."""

    def describe(self, facts: Facts, ref: CgroupRef, owner: Owner) -> Owner:
        """The owner with what is known of the job."""


class Unknown:
    """Ids nobody has a name for. Each is asked for when it is new, then ever more rarely: some never get one."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[int, int]] = {}
        """When to ask again, and how long to wait after that."""

    def is_due(self, ids: set[str], now_ns: int) -> bool:
        """Whether it is time to ask for any of these."""
        waiting = {i: self._next.get(i, (now_ns, FIRST_WAIT_NS)) for i in ids}
        due = {i: wait_ns for i, (at_ns, wait_ns) in waiting.items() if at_ns <= now_ns}
        waiting |= {i: (now_ns + wait_ns, min(2 * wait_ns, LONGEST_WAIT_NS)) for i, wait_ns in due.items()}
        self._next = waiting
        return bool(due)


class Resolver:
    """Resolves all processes of a tick. Costs almost nothing while neither processes nor names change."""

    def __init__(
        self,
        sources: Sequence[NameSource] = (),
        *,
        jobs: Jobs | None = None,
        access: Access | None = None,
        search: Search | None = None,
    ) -> None:
        self._sources = tuple(sources)
        self._jobs = jobs
        self._access = access
        self._search = search
        self._names: tuple[Names, ...] = ()
        self._found: dict[tuple[object, ...], Owner] = {}
        self._unknown = Unknown()
        self._inventory: tuple[Device, ...] = ()
        self._granted: Grants | None = None
        self._entitled: tuple[Holder, ...] = ()
        self._clues: tuple[Clue, ...] = ()
        self._suspected: tuple[Holder, ...] = ()
        self._conflicts = 0
        self._conflicting: dict[tuple[int, int, str], int] = {}
        """Since when each has lasted."""

    def resolve(self, tick: Tick) -> Tick:
        """The tick with the owner of every process, and who was given which device."""
        self._refresh()
        # A recording brings its owners along.
        by_pid = {pid: self._owner(facts) for pid, facts in tick.facts.items()} | dict(tick.owners.by_pid)
        given = self._grants(tick)
        self._count_conflicts(tick, by_pid, given.to_pods)
        reasons = Counter(owner.reason for owner in by_pid.values() if owner.reason and owner.reason != HOST)
        reasons[GONE] += len(tick.resident_pids() - by_pid.keys())
        unnamed = {o.container_id or o.pod_uid for o in by_pid.values() if o.reason in (NO_NAME, NO_POD)}
        if self._unknown.is_due(unnamed, tick.time_ns):
            for source in self._sources:
                source.nudge()
        owners = Owners(
            by_pid=by_pid,
            granted=given.to_pods,
            granted_jobs=given.to_jobs,
            given=(*given.to_containers, *given.by_environment),
            holders=(*self._entitled, *self._suspects()),
            providers=tuple(source.health for source in self._sources),
            unresolved=tuple((reason, n) for reason, n in sorted(reasons.items()) if n),
            conflicts=self._conflicts,
            unknown_device_ids=given.unknown_ids,
            host_pid_namespace=self._access.host_pid_namespace if self._access is not None else None,
            readable=self._access.readable if self._access is not None else (),
        )
        return replace(tick, owners=owners)

    def look_for_holders(self) -> None:
        """Somebody holds memory whom the driver does not list: have a look who may, until the next ticks."""
        if self._search is not None:
            self._search.look()

    def has_names(self) -> bool:
        """Whether everybody who is asked for names has answered, or failed to, at least once."""
        return all(source.health.fetches for source in self._sources)

    def close(self) -> None:
        """Ask nobody any more."""
        for source in self._sources:
            source.stop()

    def explain(self, facts: Facts) -> tuple[CgroupRef, Owner]:
        """One process: what its cgroup says, and what is known of it."""
        self._refresh()
        return cgroup.parse(facts.cgroup), self._owner(facts)

    def _refresh(self) -> None:
        names = tuple(source.names for source in self._sources)
        if len(names) != len(self._names) or any(a is not b for a, b in zip(names, self._names, strict=True)):
            self._names, self._granted = names, None
            self._found.clear()

    def _owner(self, facts: Facts) -> Owner:
        """Processes of a container and user share one owner; those of a batch job may differ in what they tell."""
        key: tuple[object, ...] = (facts.cgroup, facts.user)
        owner = self._found.get(key) or self._found.get((*key, facts.pid, facts.start_ticks))
        if owner is None:
            ref = cgroup.parse(facts.cgroup)
            owner = self._find(facts, ref)
            if len(self._found) >= MOST_FOUND:
                self._found.clear()
            self._found[(*key, facts.pid, facts.start_ticks) if ref.job else key] = owner
        return owner

    def _find(self, facts: Facts, ref: CgroupRef) -> Owner:
        owner = Owner(
            container_id=ref.container_id or "",
            pod_uid=ref.pod_uid or "",
            runtime=ref.runtime or "",
            unit=ref.unit or "",
            job="/".join(ref.job) if ref.job else "",
            step=ref.step or "",
            task=ref.task or "",
            user=facts.user,
        )
        if self._jobs is not None and ref.job:
            owner = self._jobs.describe(facts, ref, owner)
        if not ref.container_id and not ref.pod_uid:
            return replace(owner, reason="" if owner.job else HOST)
        owner = self._with_names(owner)
        if owner.pod_uid and not owner.pod:
            return replace(owner, reason=NO_POD)
        return replace(owner, reason="" if owner.container else NO_NAME)

    def _with_names(self, owner: Owner) -> Owner:
        """What is known of the container and the pod it is in."""
        container = self._container(owner.container_id)
        if container is not None:
            owner = replace(
                owner,
                container=container.name,
                image=container.image,
                namespace=container.namespace,
                pod=container.pod,
                pod_uid=container.pod_uid or owner.pod_uid,
                labels=container.labels,
            )
        pod = self._pod(owner.pod_uid)
        if pod is not None:
            owner = replace(
                owner,
                namespace=pod.namespace,
                pod=pod.name,
                workload_kind=pod.workload_kind or owner.workload_kind,
                workload_name=pod.workload_name or owner.workload_name,
                labels=tuple(dict((*owner.labels, *pod.labels)).items()),
            )
        return owner

    def _container(self, container_id: str) -> Container | None:
        """Of all who know the container, the one that says most wins; the others fill what it leaves empty."""
        found = [names.containers[container_id] for names in self._names if container_id in names.containers]
        if not found:
            return None
        best = max(found, key=lambda c: (bool(c.pod), bool(c.name), bool(c.image)))
        for other in found:
            best = replace(
                best,
                name=best.name or other.name,
                image=best.image or other.image,
                namespace=best.namespace or other.namespace,
                pod=best.pod or other.pod,
                pod_uid=best.pod_uid or other.pod_uid,
                labels=best.labels or other.labels,
            )
        return best

    def _pod(self, uid: str) -> Pod | None:
        if not uid:
            return None
        found = [names.pods[uid] for names in self._names if uid in names.pods]
        return max(found, key=lambda pod: bool(pod.workload_kind), default=None)

    def _grants(self, tick: Tick) -> Grants:
        """Found anew only when names or devices change: a kubelet may list hundreds, and this is asked every tick."""
        inventory = tuple(reading.device for reading in tick.readings)
        if inventory != self._inventory or self._granted is None:
            self._inventory, self._granted = inventory, grants.find(self._names, inventory)
            self._entitled = holders.by_grants(self._granted, self._names, self._with_names)
            self._clues, self._suspected = (), ()
        return self._granted

    def _suspects(self) -> tuple[Holder, ...]:
        """Found anew only when there was another search, or names changed."""
        clues = self._search.found if self._search is not None else ()
        if clues is not self._clues:
            self._clues, self._suspected = clues, holders.by_clues(clues, self._inventory, self._owner)
        return self._suspected

    def _count_conflicts(self, tick: Tick, by_pid: Mapping[int, Owner], granted: Sequence[Granted]) -> None:
        """A process of one pod on a device that only other pods were given: counted once a process and device.

        Not at once: a kubelet is asked every 10 s, and may still tell of the pod before.
        """
        pods: dict[str, set[tuple[str, str]]] = {}
        for grant in granted:
            pods.setdefault(grant.device.uuid, set()).add((grant.namespace, grant.pod))
        conflicting = {}
        for reading in tick.readings:
            entitled = pods.get(reading.device.uuid)
            for resident in (reading.residents or ()) if entitled else ():
                owner = by_pid.get(resident.pid)
                if owner and owner.pod and entitled and (owner.namespace, owner.pod) not in entitled:
                    start = tick.facts[resident.pid].start_ticks
                    key = (resident.pid, start, reading.device.uuid)
                    since_ns = self._conflicting.get(key, tick.time_ns)
                    if since_ns >= 0 and tick.time_ns - since_ns >= SETTLED_NS:
                        self._conflicts += 1
                        since_ns = COUNTED
                    conflicting[key] = since_ns
        self._conflicting = conflicting
