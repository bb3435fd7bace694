"""The names of containers that nerdctl or `ctr` started, from containerd's own API.

containerd separates its clients by namespaces. Those of Kubernetes and Docker are left to the CRI and to Docker's API,
which report more.
"""

from __future__ import annotations

import os

from gpuledger.net.protobuf import Message
from gpuledger.owners.names import Container, Names
from gpuledger.owners.providers.dockerjson import ID, compose_labels
from gpuledger.owners.providers.grpcprovider import GrpcProvider
from gpuledger.runtime.deadline import Deadline

SOCKET = "/run/containerd/containerd.sock"
LIST_NAMESPACES = "/containerd.services.namespaces.v1.Namespaces/List"
LIST_CONTAINERS = "/containerd.services.containers.v1.Containers/List"
NAMESPACE_HEADER = "containerd-namespace"
OTHER_NAMESPACES = ("k8s.io", "moby")
"""Namespaces of the CRI and of Docker."""
NAME_LABEL = "nerdctl/name"


def is_usable(path: str) -> bool:
    """Whether this user may open the socket."""
    return os.access(path, os.W_OK)


class ContainerdProvider(GrpcProvider):
    """The containers of one containerd, running or not."""

    name = "containerd"
    server = "containerd"
    start = "`sudo systemctl start containerd`"

    def read(self, deadline: Deadline) -> Names:
        """The containers of all namespaces."""
        containers: dict[str, Container] = {}
        namespaces = Message(self._server.call(LIST_NAMESPACES, b"", deadline)).messages(1)
        for namespace in (message.text(1) for message in namespaces):
            if namespace not in OTHER_NAMESPACES:
                header = (NAMESPACE_HEADER, namespace)
                answer = Message(self._server.call(LIST_CONTAINERS, b"", deadline, header))
                found = (_container(namespace, message) for message in answer.messages(1))
                containers |= {container.id: container for container in found}
        return Names(containers)


def _container(namespace: str, message: Message) -> Container:
    """A container. An id that `ctr` let the user choose is unique only with its namespace."""
    container_id, labels = message.text(1), message.text_map(2)
    return Container(
        id=container_id if ID.fullmatch(container_id) else f"{namespace}/{container_id}",
        name=labels.get(NAME_LABEL) or container_id,
        image=message.text(3),
        labels=compose_labels(labels),
    )
