"""The devices that the kubelet allocated to containers, from its pod-resources socket.

This API has neither pod uids nor container ids: allocations join on (namespace, pod, container). Kubelets before 1.34
also list pods that have ended. A kubelet that has just started lists no pods until it has found them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from gpuledger.errors import ProviderError
from gpuledger.net.grpc import UNIMPLEMENTED
from gpuledger.net.protobuf import Message
from gpuledger.owners.kernel import devices
from gpuledger.owners.names import KubeletAllocation, Names
from gpuledger.owners.providers.grpcprovider import GrpcProvider
from gpuledger.runtime.deadline import Deadline

METHODS = ("/v1.PodResourcesLister/List", "/v1alpha1.PodResourcesLister/List")
"""Newest first. The fields read here have the same numbers in both."""
ALLOCATABLE = "/v1.PodResourcesLister/GetAllocatableResources"
VENDOR = "nvidia.com/"
NO_DEVICES = frozenset({"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"})
"""HAMi counts memory and cores as if they were devices."""
VOLCANO = "volcano.sh/vgpu-number"
"""Volcano counts the slots of its vGPUs."""
DRA_DRIVER = "gpu.nvidia.com"
"""NVIDIA's other driver, compute-domain.nvidia.com, allocates no GPUs."""
SETTLED_S, ALONE_S = 20.0, 300.0
"""How long a restarted kubelet may list only some pods (mostly 1 s), or none before it reaches its API server."""


class PodResourcesProvider(GrpcProvider):
    """The allocations of one kubelet."""

    name = "podresources"
    interval_s = 10.0
    server = "the kubelet"
    start = "`sudo systemctl start kubelet`"

    def __init__(
        self,
        socket_path: str,
        timeout_s: float = 2.0,
        extra_resources: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(socket_path, timeout_s)
        self._extra = frozenset(extra_resources)
        self._monotonic = monotonic
        self._allocations: set[KubeletAllocation] = set()
        self._socket: tuple[int, int] | None = None
        self._restarted_at = -math.inf

    def read(self, deadline: Deadline) -> Names:
        """All devices allocated to containers of this node."""
        socket = self._socket_identity()
        pods = Message(self._list(deadline)).messages(1)
        listed = set(self._listed(pods))
        self._allocations = listed | self._missing(listed, socket, settled_s=SETTLED_S if pods else ALONE_S)
        # Sorted, because the kubelet lists in another order each time.
        return Names(allocations=tuple(sorted(self._allocations)), replicas=self._replicas(deadline))

    def _replicas(self, deadline: Deadline) -> tuple[str, ...]:
        """The ids of all replicas of shared devices, if any is allocated."""
        if not any(_is_replica(allocation.device_id) for allocation in self._allocations):
            return ()
        try:
            answer = Message(self._server.call(ALLOCATABLE, b"", deadline))
        except ProviderError:  # since Kubernetes 1.23; allocations are known without it
            return ()
        return tuple(sorted(i for listed in answer.messages(1) for i in listed.texts(2) if _is_replica(i)))

    def _missing(
        self, listed: set[KubeletAllocation], socket: tuple[int, int] | None, settled_s: float
    ) -> set[KubeletAllocation]:
        """Allocations that a restarted kubelet does not list yet: pods and their devices outlive a kubelet."""
        now = self._monotonic()
        if socket != self._socket and self._socket is not None:
            self._restarted_at = now
        self._socket = socket
        if now >= self._restarted_at + settled_s:
            return set()
        device_ids = {allocation.device_id for allocation in listed}
        return {allocation for allocation in self._allocations if allocation.device_id not in device_ids}

    def _socket_identity(self) -> tuple[int, int] | None:
        """Differs for each start of a kubelet, which creates its own socket."""
        try:
            info = os.stat(self._server.path)  # noqa: PTH116 - one call, no object
        except OSError:  # the call that follows reports why
            return None
        return info.st_ino, info.st_ctime_ns

    def _list(self, deadline: Deadline) -> bytes:
        newest, older = METHODS
        try:
            return self._server.call(newest, b"", deadline)
        except ProviderError as error:
            if error.kind != UNIMPLEMENTED:
                raise
        return self._server.call(older, b"", deadline)

    def _listed(self, pods: Iterable[Message]) -> Iterator[KubeletAllocation]:
        for pod in pods:
            name, namespace = pod.text(1), pod.text(2)
            for container in pod.messages(3):
                for resource, device_id, claim in self._devices(container):
                    yield KubeletAllocation(namespace, name, container.text(1), resource, device_id, claim)

    def _devices(self, container: Message) -> Iterator[tuple[str, str, tuple[str, str, str]]]:
        for allocated in container.messages(2):
            resource = allocated.text(1)
            if resource in (VOLCANO, *self._extra) or (resource.startswith(VENDOR) and resource not in NO_DEVICES):
                yield from ((resource, device_id, ("", "", "")) for device_id in allocated.texts(2))
        for claim in container.messages(5):
            for claimed in claim.messages(4):
                driver = claimed.text(2)
                if driver == DRA_DRIVER or driver in self._extra:
                    yield driver, _claimed_device(claimed), (claim.text(3), claim.text(2), claimed.text(4))


def _is_replica(device_id: str) -> bool:
    ref = devices.parse(device_id)
    return ref.replica is not None and ref.form != "hami-slot"


def _claimed_device(claimed: Message) -> str:
    """The id of one device, which may have several CDI names: the first that identifies a GPU."""
    names = [device.text(1) for device in claimed.messages(1)]
    names.append(claimed.text(4))
    return next((name for name in names if devices.parse(name).form != "unknown"), names[0])
