"""Names of pods from the kubelet alone, which reports names and devices of pods, but not their uids.

The cgroup of a process has the uid of its pod. The pod is the only one that holds every device on which the uid has
processes. If two pods remain, or two uids fit one pod, there is no match: a name is never a guess. A match assumes that
a pod uses only devices that the kubelet allocated to it; `Owner.pod_match` marks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuledger.model import Allocation, Owner, Tick

BY_DEVICE = "device"
START_SLACK_NS = 2_000_000_000
"""The start of a process is known to the second."""
PodName = tuple[str, str]
"""Namespace and name."""
Allocated = dict[str, dict[PodName, set[str]]]
"""The containers with an allocation, by uuid of the device and by pod."""


class PodMatches:
    """Pods by uid. A match is kept while processes of the pod are on a GPU."""

    def __init__(self) -> None:
        self._pods: dict[str, PodName] = {}

    def name(
        self, tick: Tick, by_pid: Mapping[int, Owner], allocations: Iterable[Allocation], listed_ns: int
    ) -> dict[int, Owner]:
        """The owners of processes whose pod had no name, with the name of the pod.

        `listed_ns` is the time of the kubelet's answer. A list from before the start of a process may lack its pod.
        """
        unnamed = {pid: owner for pid, owner in by_pid.items() if owner.pod_uid and not owner.pod}
        if not unnamed:
            self._pods.clear()
            return {}
        allocated = _containers(allocations)
        devices = _devices(tick, unnamed)
        reported = {owner.pod_uid: (owner.namespace, owner.pod) for owner in by_pid.values() if owner.pod}
        kept = {uid: pod for uid, pod in self._pods.items() if uid in devices and pod not in reported.values()}
        started_ns = {pid: facts.start_time_ms * 1_000_000 for pid, facts in tick.facts.items()}
        late = {o.pod_uid for pid, o in unnamed.items() if started_ns.get(pid, 0) + START_SLACK_NS > listed_ns}
        found = {uid: _only_pod(held, allocated) for uid, held in devices.items() if uid not in late | kept.keys()}
        pods = [*kept.values(), *reported.values(), *found.values()]
        self._pods = kept | {uid: pod for uid, pod in found.items() if pod is not None and pods.count(pod) == 1}
        matched = {}
        for pid, owner in unnamed.items():
            uid = owner.pod_uid
            if uid in reported:
                matched[pid] = replace(owner, namespace=reported[uid][0], pod=reported[uid][1])
            elif uid in self._pods:
                matched[pid] = _in_pod(owner, self._pods[uid], devices[uid], allocated)
        return matched


def certainty(tick: Tick, owner: Owner) -> str:
    """How certain the name of the owner's pod is, or why it has none; empty if the owner is in no pod."""
    if not owner.pod_uid:
        return ""
    if owner.pod and owner.pod_match != BY_DEVICE:
        return "reported for its container or pod uid: certain"
    allocated = _containers(tick.owners.allocations)
    members = {pid: other for pid, other in tick.owners.by_pid.items() if other.pod_uid == owner.pod_uid}
    held = sorted(_devices(tick, members).get(owner.pod_uid, ()))
    if not owner.pod:
        return f"unknown: {_why_unnamed(held, allocated)}"
    is_alone = all(len(allocated.get(uuid, ())) == 1 for uuid in held)
    gpus = " and ".join(held)
    found = f"the kubelet allocated {gpus} to this pod alone" if is_alone else f"only this pod holds {gpus}"
    return f"by device: {found}; certain unless a process uses a GPU that was not allocated to its pod"


def _why_unnamed(held: Sequence[str], allocated: Allocated) -> str:
    """Why the holders of these devices do not name the pod."""
    if not allocated:
        return "no provider reports its name or the devices of pods"
    if not held:
        return "it is on no GPU, so that allocations do not identify its pod"
    gpus, pods = " and ".join(held), sorted("/".join(pod) for pod in _common_pods(held, allocated))
    if not pods:
        return f"no pod holds {gpus} according to the kubelet"
    if len(pods) > 1:
        return f"{len(pods)} pods hold {gpus} ({', '.join(pods)}); no name is guessed"
    doubt = "processes of another pod are there too, or the kubelet's list is older than the process"
    return f"{pods[0]} holds {gpus}, but {doubt}; no name is guessed"


def _containers(allocations: Iterable[Allocation]) -> Allocated:
    """The containers with an allocation, by device and pod."""
    containers: Allocated = {}
    for allocation in allocations:
        owner = allocation.owner
        if owner.pod:
            pods = containers.setdefault(allocation.device.uuid, {})
            pods.setdefault((owner.namespace, owner.pod), set()).add(owner.container)
    return containers


def _devices(tick: Tick, unnamed: Mapping[int, Owner]) -> dict[str, set[str]]:
    """The devices on which each pod uid has processes."""
    devices: dict[str, set[str]] = {}
    for reading in tick.readings:
        for resident in reading.residents or ():
            if resident.pid in unnamed:
                devices.setdefault(unnamed[resident.pid].pod_uid, set()).add(reading.device.uuid)
    return devices


def _only_pod(held: Iterable[str], allocated: Allocated) -> PodName | None:
    pods = _common_pods(held, allocated)
    return pods.pop() if len(pods) == 1 else None


def _common_pods(held: Iterable[str], allocated: Allocated) -> set[PodName]:
    """The pods that hold all these devices."""
    holders = [set(allocated.get(uuid, {})) for uuid in held]
    return set.intersection(*holders) if holders else set()


def _in_pod(owner: Owner, pod: PodName, held: Iterable[str], allocated: Allocated) -> Owner:
    """The owner in this pod, with the name of the container if the devices are allocated to only one of the pod."""
    containers = set().union(*(allocated.get(uuid, {}).get(pod, set()) for uuid in held))
    container = owner.container or (containers.pop() if len(containers) == 1 else "")
    return replace(owner, namespace=pod[0], pod=pod[1], container=container, pod_match=BY_DEVICE)
