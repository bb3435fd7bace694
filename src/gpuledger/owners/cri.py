"""The names of containers and their pods, from the runtime under Kubernetes: containerd, CRI-O or cri-dockerd.

It knows a pod's uid as the pod's cgroup has it, static pods included, and needs no API server.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from gpuledger.owners.grpcunix import UNIMPLEMENTED, StatusError, UnixServer
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.protowire import Message
from gpuledger.owners.provider import ProviderError

SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",  # RKE2 too
    "/var/run/crio/crio.sock",
    "/var/run/cri-dockerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
)
LIST_CONTAINERS = "/runtime.v1.RuntimeService/ListContainers"
LIST_SANDBOXES = "/runtime.v1.RuntimeService/ListPodSandbox"
ONLY_RUNNING = b"\x0a\x04\x12\x02\x08\x01"
"""`filter { state { state: CONTAINER_RUNNING } }`."""


def default_sockets() -> tuple[str, ...]:
    """Those that are there, of all that are known."""
    return tuple(path for path in SOCKETS if os.path.exists(path))  # noqa: PTH110 - pathlib's raises when not allowed


class CriProvider:
    """Asks a container runtime. Its socket is root's, and whoever may ask may also command."""

    name = "cri"
    interval_s = 15.0

    def __init__(self, socket_path: str, timeout_s: float = 2.0) -> None:
        self._server = UnixServer(socket_path, "the container runtime")
        self._timeout_s = timeout_s

    def fetch(self) -> Names:
        """All running containers and the pods they are in; raises ProviderError."""
        until = time.monotonic() + self._timeout_s
        try:
            running = [
                _Running.read(message) for message in self._ask(LIST_CONTAINERS, ONLY_RUNNING, until).messages(1)
            ]
            if any(not container.pod.uid for container in running):
                sandboxes = self._sandboxes(until)
                running = [container.in_pod(sandboxes.get(container.sandbox_id)) for container in running]
        except ValueError as error:
            raise ProviderError(
                f"cannot read the answer of {self._server.path}: {error}; is it a container runtime's socket?"
            ) from None
        return Names(
            containers={container.id: container.named() for container in running if container.id},
            pods={container.pod.uid: container.pod for container in running if container.pod.uid},
        )

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Not every runtime sends news, so none is asked to."""
        stop.wait(timeout_s)
        return False

    def close(self) -> None:
        """Nothing stays open between two questions."""

    def _sandboxes(self, until: float) -> dict[str, Pod]:
        """The pods by the id of their sandbox: only containers that no kubelet made need this."""
        found = {}
        for sandbox in self._ask(LIST_SANDBOXES, b"", until).messages(1):
            metadata = sandbox.message(2)
            found[sandbox.text(1)] = Pod(uid=metadata.text(2), namespace=metadata.text(3), name=metadata.text(1))
        return found

    def _ask(self, method: str, request: bytes, until: float) -> Message:
        try:
            return Message(self._server.call(method, request, until))
        except StatusError as error:
            if error.status != UNIMPLEMENTED:
                raise
            raise ProviderError(
                f"{self._server.path} does not offer the CRI, version v1; "
                'take "cri" out of disabled_plugins in the config.toml of containerd, or name another socket'
            ) from None


@dataclass(frozen=True, slots=True)
class _Running:
    """A container as the runtime lists it."""

    id: str
    sandbox_id: str
    name: str
    image: str
    pod: Pod

    @classmethod
    def read(cls, message: Message) -> _Running:
        """The kubelet writes the pod into labels; a container without them has an empty pod here."""
        labels = message.text_map(8)
        image = message.message(4)
        return cls(
            id=message.text(1),
            sandbox_id=message.text(2),
            name=labels.get("io.kubernetes.container.name") or message.message(3).text(1),
            image=image.text(18) or image.text(1),  # as the pod says it; the other is mostly an id
            pod=Pod(
                uid=labels.get("io.kubernetes.pod.uid", ""),
                namespace=labels.get("io.kubernetes.pod.namespace", ""),
                name=labels.get("io.kubernetes.pod.name", ""),
            ),
        )

    def in_pod(self, pod: Pod | None) -> _Running:
        """In the pod of its sandbox, unless its labels say so already."""
        if self.pod.uid or pod is None:
            return self
        return _Running(self.id, self.sandbox_id, self.name, self.image, pod)

    def named(self) -> Container:
        """As everybody else knows it."""
        pod = self.pod
        return Container(self.id, self.name, self.image, pod.namespace, pod.name, pod.uid)
