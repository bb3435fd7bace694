"""What the owner of an allocation asked for of the device, and the pods behind GPUs that are only reserved. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpuledger.model import Device, Entitlement
from gpuledger.model.problem import WARNING, Problem
from gpuledger.owners.kernel.devices import DeviceRef
from gpuledger.owners.names import DeviceShare, KubeletAllocation, Names, Pod

PLACEHOLDERS = ("kai-resource-reservation", "runai-reservation")
"""Namespaces whose pods hold GPUs for the fractional pods of KAI Scheduler and Run:ai. They use none themselves."""
MALFORMED, NO_RESERVATION = "annotation", "reservation"
ANNOTATION_FIX = "correct the pod's annotations; until then its entitlement is unknown"
GROUP_FIX = "see `kubectl get pods -A -l runai-gpu-group={group}`; until then the pod's GPU is unknown"
MOST_PROBLEMS = 20


class Fractions:
    """The allocations of the kubelet, with those of fractional pods as their schedulers know them."""

    def __init__(self, names: Sequence[Names]) -> None:
        self._capacities = {claim: share for known in names for claim, share in known.capacities.items()}
        self._listed = [allocation for known in names for allocation in known.allocations]
        self._pods = {pod.uid: pod for known in names for pod in known.pods.values()}.values()
        shares = [(pod, share) for pod in self._pods for share in pod.shares]
        self._users = [(pod, share) for pod, share in shares if pod.namespace not in PLACEHOLDERS]
        self._groups: dict[tuple[str, str], set[str]] = {}
        """The groups of each pod that reserves a GPU."""
        for pod, share in shares:
            if pod.namespace in PLACEHOLDERS and share.group:
                self._groups.setdefault(_place(pod), set()).add(share.group)

    def allocations(self) -> Iterator[tuple[KubeletAllocation, DeviceShare | None]]:
        """Every allocation, and the part of the device, if it is one.

        The kubelet's list decides whether a pod has a GPU, so that an annotation alone takes no part of one.
        """
        places = {(listed.namespace, listed.pod) for listed in self._listed}
        placed = [(pod, share) for pod, share in self._users if share.device_id]
        placed = [(pod, share) for pod, share in placed if _place(pod) in places or not places]
        for pod, share in placed:
            yield KubeletAllocation(pod.namespace, pod.name, share.container, "", share.device_id), share
        of_scheduler = {_place(pod) for pod, _ in placed}
        for listed in self._listed:
            place = listed.namespace, listed.pod
            if listed.namespace in PLACEHOLDERS:
                for pod, share in self._users:
                    if share.group in self._groups.get(place, ()):
                        yield replace(listed, namespace=pod.namespace, pod=pod.name, container=share.container), share
            elif place not in of_scheduler:
                yield listed, self._capacities.get(listed.claim)

    def problems(self) -> list[Problem]:
        """Pods whose annotations are malformed, or whose group has no GPU."""
        held = {group for listed in self._listed for group in self._groups.get((listed.namespace, listed.pod), ())}
        found = [
            Problem(pod.shares_problem, ANNOTATION_FIX, MALFORMED, WARNING, f"pod {pod.namespace}/{pod.name}")
            for pod in self._pods
            if pod.shares_problem
        ]
        for pod, share in self._users if self._listed else ():
            if share.group and share.group not in held:
                what = f"is in GPU group {share.group}, for which no pod reserves a GPU of this node"
                fix = GROUP_FIX.format(group=share.group)
                found.append(Problem(what, fix, NO_RESERVATION, WARNING, f"pod {pod.namespace}/{pod.name}"))
        return sorted(found, key=lambda problem: problem.about)[:MOST_PROBLEMS]


def _place(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.name


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
