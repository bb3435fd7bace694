"""Which devices the kubelet gave to which container, from its pod-resources socket.

The kubelet knows neither pod uids nor container ids here: allocations join on (namespace, pod, container).
Kubelets before 1.34 also list pods that have ended. One that has just started lists none, until it has found its pods.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator

from gpuledger.owners import devices
from gpuledger.owners.grpcunix import UNIMPLEMENTED, StatusError, UnixServer
from gpuledger.owners.names import Allocation, Names
from gpuledger.owners.protowire import Message
from gpuledger.owners.provider import ProviderError

METHODS = ("/v1.PodResourcesLister/List", "/v1alpha1.PodResourcesLister/List")
"""Newest first. What we read has the same numbers in both."""
VENDOR = "nvidia.com/"
NO_DEVICES = frozenset({"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"})
"""HAMi counts memory and cores as if they were devices."""
DRA_DRIVER = "gpu.nvidia.com"
"""NVIDIA's other driver, compute-domain.nvidia.com, hands out no GPUs."""
SETTLED_S, ALONE_S = 20.0, 300.0
"""So long a kubelet that was started anew may still lack pods; mostly it is 1 s. It has none at all before it reaches
its API server, which may take longer."""


class PodResourcesProvider:
    """Asks the kubelet. Its socket is root's."""

    name = "podresources"
    interval_s = 10.0

    def __init__(
        self,
        socket_path: str,
        timeout_s: float = 2.0,
        extra_resources: Collection[str] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = UnixServer(socket_path, "the kubelet")
        self._timeout_s = timeout_s
        self._extra = frozenset(extra_resources)
        self._monotonic = monotonic
        self._known: set[Allocation] = set()
        self._socket: tuple[int, int] | None = None
        self._restarted_at = -math.inf

    def fetch(self) -> Names:
        """All devices that are given to containers of this node; raises ProviderError."""
        made = self._made()
        answer = self._ask()
        try:
            pods = list(Message(answer).messages(1))
            found = set(self._allocations(pods))
        except ValueError as error:
            raise ProviderError(
                f"cannot read the answer of {self._server.path}: {error}; is it the kubelet's pod-resources socket?"
            ) from None
        self._known = found | self._kept(found, made, settled_s=SETTLED_S if pods else ALONE_S)
        # Sorted, because the kubelet lists in another order each time.
        return Names(allocations=tuple(sorted(self._known, key=_order)))

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """The kubelet sends no news by itself."""
        stop.wait(timeout_s)
        return False

    def close(self) -> None:
        """Nothing stays open between two questions."""

    def _kept(self, found: set[Allocation], made: tuple[int, int] | None, settled_s: float) -> set[Allocation]:
        """What a kubelet that has just started does not list yet: pods and their devices outlive it."""
        now = self._monotonic()
        if made != self._socket and self._socket is not None:
            self._restarted_at = now
        self._socket = made
        if now >= self._restarted_at + settled_s:
            return set()
        given = {allocation.device_id for allocation in found}
        return {allocation for allocation in self._known if allocation.device_id not in given}

    def _made(self) -> tuple[int, int] | None:
        """By what a socket is known: each kubelet makes its own."""
        try:
            found = os.stat(self._server.path)  # noqa: PTH116 - one call, no object
        except OSError:  # the question will say why
            return None
        return found.st_ino, found.st_ctime_ns

    def _ask(self) -> bytes:
        until = time.monotonic() + self._timeout_s
        newest, older = METHODS
        try:
            return self._server.call(newest, b"", until)
        except StatusError as error:
            if error.status != UNIMPLEMENTED:
                raise
        return self._server.call(older, b"", until)

    def _allocations(self, pods: Iterable[Message]) -> Iterator[Allocation]:
        for pod in pods:
            name, namespace = pod.text(1), pod.text(2)
            for container in pod.messages(3):
                for resource, device_id in self._devices(container):
                    yield Allocation(namespace, name, container.text(1), resource, device_id)

    def _devices(self, container: Message) -> Iterator[tuple[str, str]]:
        for given in container.messages(2):
            resource = given.text(1)
            if self._wanted(resource):
                yield from ((resource, device_id) for device_id in given.texts(2))
        for claim in container.messages(5):
            for given in claim.messages(4):
                driver = given.text(2)
                if driver == DRA_DRIVER or driver in self._extra:
                    yield driver, _claimed(given)

    def _wanted(self, resource: str) -> bool:
        return resource in self._extra or (resource.startswith(VENDOR) and resource not in NO_DEVICES)


def _claimed(given: Message) -> str:
    """One device, though it may have several CDI names: the first that says which GPU it is."""
    names = [device.text(1) for device in given.messages(1)]
    names.append(given.text(4))
    return next((name for name in names if devices.parse(name).form != "unknown"), names[0])


def _order(allocation: Allocation) -> tuple[str, ...]:
    return (allocation.namespace, allocation.pod, allocation.container, allocation.resource, allocation.device_id)
