"""What the owner of an allocation asked for of the device, and the pods behind GPUs that are only reserved. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpuledger.model import Device, Entitlement
from gpuledger.model.problem import WARNING, Problem
from gpuledger.owners.kernel.devices import DeviceRef, parse
from gpuledger.owners.names import DeviceShare, KubeletAllocation, Names, Pod

PLACEHOLDERS = ("kai-resource-reservation", "runai-reservation")
"""Namespaces whose pods hold GPUs for the fractional pods of KAI Scheduler and Run:ai. They use none themselves."""
MALFORMED, RESERVED = "annotation", "reservation"
ANNOTATION_FIX = "correct the pod's annotations; until then its entitlement is unknown"
GROUP_FIX = "see `kubectl get pods -A -l runai-gpu-group={group}`; until then the pod's GPU is unknown"
SHARED_FIX = "see `kubectl get pods -A -l runai-gpu-group={group}`, and delete the pods that no scheduler placed"
RESERVED_FIX = "set --kubernetes.api; if it is set, see `kubectl get pods -A -l runai-gpu-group`"
MOST_PROBLEMS = 20
SLACK = 0.001
"""Fractions such as 0.33334 are rounded."""

Place = tuple[str, str]
"""Namespace and name of a pod."""


class Fractions:
    """The allocations of the kubelet, with those of fractional pods as their schedulers know them.

    The author of a pod can write what schedulers write. A group counts only if a placeholder pod has it. The annotation
    of HAMi or Volcano replaces slots that the kubelet allocated to the containers of the pod, one GPU for each: the
    device plugins of Volcano and of older HAMi ignore of which GPU a slot is. GPUs without slots are out of reach.
    """

    def __init__(self, names: Sequence[Names], resolve: Callable[[str], Sequence[str]]) -> None:
        self._capacities = {claim: share for known in names for claim, share in known.capacities.items()}
        self._listed = [allocation for known in names for allocation in known.allocations]
        self._pods = {pod.uid: pod for known in names for pod in known.pods.values()}.values()
        shares = [(pod, share) for pod in self._pods for share in pod.shares]
        running = {(c.namespace, c.pod) for known in names for c in known.containers.values() if c.pod}
        self._users: dict[str, list[tuple[Pod, DeviceShare]]] = {}
        """The pods of each group that have a part of its GPU."""
        for pod, share in shares:
            is_running = not running or _place(pod) in running
            if share.group and share.source and is_running and pod.namespace not in PLACEHOLDERS:
                self._users.setdefault(share.group, []).append((pod, share))
        self._groups: dict[Place, set[str]] = {}
        """The groups of each pod that reserves a GPU."""
        for pod, share in shares:
            if pod.namespace in PLACEHOLDERS and share.group:
                self._groups.setdefault(_place(pod), set()).add(share.group)
        slots: dict[Place, Counter[str]] = {(listed.namespace, listed.pod): Counter() for listed in self._listed}
        whole: set[str] = set()
        for listed in self._listed:
            if _is_slot(listed):
                slots[listed.namespace, listed.pod][listed.container] += 1
            else:
                whole.update(resolve(listed.device_id))
        self._placed: dict[Place, Pod] = {}
        self._unplaced: list[Pod] = []
        for pod in self._pods:
            uuids = [resolve(share.device_id) for share in pod.shares if share.device_id]
            if uuids and _place(pod) in slots:
                is_placed = all(uuids) and whole.isdisjoint(uuid for found in uuids for uuid in found)
                if is_placed and Counter(share.container for share in pod.shares) == slots[_place(pod)]:
                    self._placed[_place(pod)] = pod
                else:
                    self._unplaced.append(pod)

    def allocations(self) -> Iterator[tuple[KubeletAllocation, DeviceShare | None]]:
        """Every allocation, and the part of the device, if it is one."""
        for listed in self._listed:
            place = listed.namespace, listed.pod
            if listed.namespace in PLACEHOLDERS:
                for pod, share in self._of(place):
                    yield replace(listed, namespace=pod.namespace, pod=pod.name, container=share.container), share
            elif place in self._placed and _is_slot(listed):
                for share in self._placed[place].shares:
                    if share.container == listed.container:
                        yield replace(listed, device_id=share.device_id), share
            else:
                yield listed, self._capacities.get(listed.claim)

    def _of(self, place: Place) -> list[tuple[Pod, DeviceShare]]:
        """The pods behind a pod that reserves a GPU."""
        return [user for group in sorted(self._groups.get(place, ())) for user in self._users.get(group, ())]

    def problems(self) -> list[Problem]:
        """Pods whose annotations do not count, and groups that do not add up."""
        whats = [(pod, pod.shares_problem) for pod in self._pods if pod.shares_problem]
        text = "has an annotation of {} that does not match the slots of GPUs that the kubelet allocated to it"
        whats += [(pod, text.format(pod.shares[0].source)) for pod in self._unplaced]
        for pod in self._pods:
            is_unknown = any(share.group and not share.source for share in pod.shares)
            if is_unknown and not pod.shares_problem and pod.namespace not in PLACEHOLDERS:
                whats.append((pod, "is in a GPU group, but has neither gpu-fraction nor gpu-memory"))
        found = [Problem(what, ANNOTATION_FIX, MALFORMED, WARNING, _about(_place(pod))) for pod, what in whats]
        found += self._problems_of_groups() if self._listed else ()
        return sorted(found, key=lambda problem: problem.about)[:MOST_PROBLEMS]

    def _problems_of_groups(self) -> Iterator[Problem]:
        places = dict.fromkeys((listed.namespace, listed.pod) for listed in self._listed)
        held = {group for place in places for group in self._groups.get(place, ())}
        for group, users in self._users.items():
            what, fix = "", GROUP_FIX
            if group not in held:
                what = f"is in GPU group {group}, for which no pod reserves a GPU of this node"
            elif sum(share.compute or 0 for _, share in users) > 1 + SLACK:
                what, fix = f"is in GPU group {group}, whose fractions add up to more than 1", SHARED_FIX
            for pod, _ in users if what else ():
                yield Problem(what, fix.format(group=group), RESERVED, WARNING, _about(_place(pod)))
        for place in places:
            if place[0] in PLACEHOLDERS and not self._of(place):
                what = "reserves a GPU, but no pod with a part of it is known: the idle ledger lacks the GPU"
                yield Problem(what, RESERVED_FIX, RESERVED, WARNING, _about(place))


def _place(pod: Pod) -> Place:
    return pod.namespace, pod.name


def _about(place: Place) -> str:
    return f"pod {'/'.join(place)}"


def _is_slot(listed: KubeletAllocation) -> bool:
    """Whether it is one of the slots that HAMi or Volcano offers on each GPU."""
    return parse(listed.device_id).form == "hami-slot"


class Asked:
    """What allocations ask for, by the size of the devices and the number of their replicas."""

    def __init__(
        self, by_uuid: Mapping[str, Device], memory_bytes: Mapping[str, int | None], replicas: Mapping[str, int]
    ) -> None:
        self._by_uuid, self._memory_bytes, self._replicas = by_uuid, memory_bytes, replicas

    def of_device(self, uuid: str, ref: DeviceRef | None = None) -> Entitlement | None:
        """Of an allocated device or replica: the whole device, or one of n parts. None for a slot of HAMi."""
        memory_bytes, ratio = self._memory_bytes.get(uuid), self._device_ratio(uuid)
        if ref is None or ref.replica is None:
            source = "mig" if self._by_uuid[uuid].parent_uuid else "device"
            return Entitlement(source, ratio, memory_bytes, ratio or 1.0)
        parts = self._replicas[uuid]
        if ref.form == "hami-slot" or not parts:
            return None
        return Entitlement(
            "replica",
            None if ratio is None else ratio / parts,
            None if memory_bytes is None else memory_bytes // parts,
            ratio or 1.0,
        )

    def of_share(self, uuid: str, share: DeviceShare) -> Entitlement | None:
        """Of a part that a scheduler gave. KAI Scheduler counts memory as the same part of the compute."""
        if not share.source:
            return None
        compute, memory_bytes, total = share.compute, share.memory_bytes, self._memory_bytes.get(uuid)
        if share.group and total:
            if compute is not None:
                memory_bytes = int(total * compute)
            elif memory_bytes is not None:
                compute = memory_bytes / total
        ratio = self._device_ratio(uuid)
        if compute is not None:
            compute = None if ratio is None else compute * ratio
        if compute is None and memory_bytes is None:
            return None
        return Entitlement(share.source, compute, memory_bytes, ratio or 1.0)

    def _device_ratio(self, uuid: str) -> float | None:
        """Part of the GPU's multiprocessors that the device has; None if the driver does not report them."""
        device = self._by_uuid[uuid]
        gpu = self._by_uuid.get(device.gpu_uuid)
        if not device.parent_uuid:
            return 1.0
        if gpu is None or not gpu.multiprocessors or device.multiprocessors is None:
            return None
        return min(1.0, device.multiprocessors / gpu.multiprocessors)
