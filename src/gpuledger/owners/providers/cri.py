"""The names of containers and pods from the runtime under Kubernetes: containerd, CRI-O or cri-dockerd.

The runtime reports the same pod uid as the cgroup, also for static pods. No API server is needed.
"""

from __future__ import annotations

import os
from dataclasses import replace

from gpuledger.errors import ProviderError
from gpuledger.net.grpc import UNIMPLEMENTED
from gpuledger.net.protobuf import Message
from gpuledger.owners.names import Container, Names, Pod
from gpuledger.owners.providers.grpcprovider import GrpcProvider
from gpuledger.runtime.deadline import Deadline

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
    """The usual sockets that exist."""
    return tuple(path for path in SOCKETS if os.path.exists(path))  # noqa: PTH110 - pathlib raises without permission


class CriProvider(GrpcProvider):
    """The containers of one runtime. Polled, because not every runtime sends events."""

    name = "cri"
    server = "the container runtime"
    start = "`sudo systemctl start containerd` (or crio)"

    def read(self, deadline: Deadline) -> Names:
        """All running containers and their pods."""
        messages = self._call(LIST_CONTAINERS, ONLY_RUNNING, deadline).messages(1)
        containers = [_container(message) for message in messages]
        if any(not container.pod_uid for container in containers):
            sandboxes = self._sandboxes(deadline)
            for index, message in enumerate(messages):
                pod = sandboxes.get(message.text(2))
                if pod is not None and not containers[index].pod_uid:
                    containers[index] = replace(
                        containers[index], namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid
                    )
        return Names(
            containers={c.id: c for c in containers if c.id},
            pods={c.pod_uid: Pod(uid=c.pod_uid, namespace=c.namespace, name=c.pod) for c in containers if c.pod_uid},
        )

    def _sandboxes(self, deadline: Deadline) -> dict[str, Pod]:
        """Pods by the id of their sandbox, for containers that the kubelet did not create."""
        pods = {}
        for sandbox in self._call(LIST_SANDBOXES, b"", deadline).messages(1):
            metadata = sandbox.message(2)
            pods[sandbox.text(1)] = Pod(uid=metadata.text(2), namespace=metadata.text(3), name=metadata.text(1))
        return pods

    def _call(self, method: str, request: bytes, deadline: Deadline) -> Message:
        try:
            return Message(self._server.call(method, request, deadline))
        except ProviderError as error:
            if error.kind != UNIMPLEMENTED:
                raise
            fix = 'remove "cri" from disabled_plugins in the config.toml of containerd, or name another socket'
            raise ProviderError(f"{self._server.path} does not implement CRI v1", fix, "missing") from None


def _container(message: Message) -> Container:
    """A container with the pod from its labels, which the kubelet sets."""
    labels = message.text_map(8)
    image = message.message(4)
    return Container(
        id=message.text(1),
        name=labels.get("io.kubernetes.container.name") or message.message(3).text(1),
        image=image.text(18) or image.text(1),  # the image of the pod's spec; the other is mostly an id
        namespace=labels.get("io.kubernetes.pod.namespace", ""),
        pod=labels.get("io.kubernetes.pod.name", ""),
        pod_uid=labels.get("io.kubernetes.pod.uid", ""),
    )
