"""A kubelet and a container runtime, as far as their gRPC sockets go: real servers, with grpcio and protobuf.

The messages are declared here with the fields that tests use; the names and numbers are those of the public APIs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from typing_extensions import Self

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": FIELD.TYPE_STRING,
    "int64": FIELD.TYPE_INT64,
    "uint64": FIELD.TYPE_UINT64,
    "uint32": FIELD.TYPE_UINT32,
    "enum": FIELD.TYPE_INT32,  # the same on the wire
}
HANG_S = 60
"""A server that hangs does so until it is stopped; this only bounds a broken test."""


def declare(package: str, text: str) -> SimpleNamespace:
    """Message classes from lines of `Name: field=1 type, other=2 type*`, where the star means repeated."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    names = []
    for line in text.strip().splitlines():
        name, _, fields = line.partition(":")
        names.append(name.strip())
        message = file.message_type.add(name=names[-1])
        for declared in fields.split(","):
            title, _, kind = declared.strip().partition(" ")
            field_name, _, number = title.partition("=")
            label = FIELD.LABEL_REPEATED if kind.endswith("*") else FIELD.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            kind = kind.rstrip("*")
            field.type = SCALARS.get(kind, FIELD.TYPE_MESSAGE)
            if kind not in SCALARS:
                field.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in names}
    return SimpleNamespace(**found)


POD_RESOURCES: Any = declare(
    "podresources",
    """
    ListPodResourcesResponse: pod_resources=1 PodResources*
    AllocatableResourcesResponse: devices=1 ContainerDevices*
    PodResources: name=1 string, namespace=2 string, containers=3 ContainerResources*, cpu_ids=4 int64*
    ContainerResources: name=1 string, devices=2 ContainerDevices*, cpu_ids=3 int64*, memory=4 ContainerMemory*, dynamic_resources=5 DynamicResource*
    ContainerDevices: resource_name=1 string, device_ids=2 string*, topology=3 TopologyInfo
    ContainerMemory: memory_type=1 string, size=2 uint64, topology=3 TopologyInfo
    TopologyInfo: nodes=1 NumaNode*
    NumaNode: ID=1 int64
    DynamicResource: claim_name=2 string, claim_namespace=3 string, claim_resources=4 ClaimResource*
    ClaimResource: cdi_devices=1 CdiDevice*, driver_name=2 string, pool_name=3 string, device_name=4 string, share_id=5 string
    CdiDevice: name=1 string
    """,  # noqa: E501 - a message a line
)
CRI: Any = declare(
    "cri",
    """
    ListContainersRequest: filter=1 ContainerFilter
    ContainerFilter: id=1 string, state=2 StateValue, pod_sandbox_id=3 string
    StateValue: state=1 enum
    ListContainersResponse: containers=1 Container*
    Container: id=1 string, pod_sandbox_id=2 string, metadata=3 ContainerMetadata, image=4 ImageSpec, image_ref=5 string, state=6 enum, created_at=7 int64, labels=8 Pair*, annotations=9 Pair*, image_id=10 string
    ContainerMetadata: name=1 string, attempt=2 uint32
    ImageSpec: image=1 string, user_specified_image=18 string
    Pair: key=1 string, value=2 string
    ListPodSandboxResponse: items=1 PodSandbox*
    PodSandbox: id=1 string, metadata=2 PodSandboxMetadata, state=3 enum, created_at=4 int64, labels=5 Pair*
    PodSandboxMetadata: name=1 string, uid=2 string, namespace=3 string, attempt=4 uint32
    """,  # noqa: E501 - a message a line
)
RUNNING, EXITED = 1, 2


class GrpcServer:
    """Answers the given methods on a Unix socket; can be stopped and started again, and can misbehave."""

    def __init__(self, path: Path, methods: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.path = path
        self.methods = dict(methods)
        self.calls: list[str] = []
        self.raw: bytes | None = None
        """To be sent as the message, whatever the question."""
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.hangs = False
        self._released = threading.Event()
        self._server: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Make the socket and listen."""
        self._released.clear()
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self._server.add_insecure_port(f"unix://{self.path}")
        self._server.start()

    def stop(self) -> None:
        """Close connections and remove the socket, as the kubelet does when it restarts."""
        self._released.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.path.unlink(missing_ok=True)

    def answer(self, method: str, request: bytes, context: Any) -> bytes:
        """Called for each question."""
        self.calls.append(method)
        if self.hangs:
            self._released.wait(HANG_S)
        if self.refusal is not None:
            context.abort(*self.refusal)
        return self.methods[method](request) if self.raw is None else self.raw


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Without generated code: bytes in, bytes out."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        """Other methods are UNIMPLEMENTED."""
        method = handler_call_details.method
        if method not in self._server.methods:
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._server.answer(method, request, context)
        )


class KubeletServer(GrpcServer):
    """The pod-resources socket of a kubelet, with the versions it speaks."""

    def __init__(self, path: Path, versions: tuple[str, ...] = ("v1", "v1alpha1")) -> None:
        super().__init__(path, {f"/{version}.PodResourcesLister/List": self._list for version in versions})
        self.listed = POD_RESOURCES.ListPodResourcesResponse()
        self._allocatable = POD_RESOURCES.AllocatableResourcesResponse()
        method = "/v1.PodResourcesLister/GetAllocatableResources"
        self.methods[method] = lambda _: bytes(self._allocatable.SerializeToString())

    def allocatable(self, resource: str, *device_ids: str) -> None:
        """Devices that the node offers, allocated or not."""
        self._allocatable.devices.add(resource_name=resource, device_ids=device_ids)

    def give(self, namespace: str, pod: str, container: str, resource: str, *device_ids: str) -> None:
        """Devices of a device plugin; the topology is there because kubelets send it."""
        devices = self.container(namespace, pod, container).devices.add(resource_name=resource, device_ids=device_ids)
        devices.topology.nodes.add(ID=0)

    def claim(self, namespace: str, pod: str, container: str, driver: str, device: str, *cdi: str) -> None:
        """A device of a DRA driver, with its CDI names."""
        claims = self.container(namespace, pod, container).dynamic_resources
        claim = claims.add(claim_name=f"{pod}-claim", claim_namespace=namespace)
        given = claim.claim_resources.add(driver_name=driver, pool_name="node1", device_name=device)
        for name in cdi:
            given.cdi_devices.add(name=name)

    def remove(self, namespace: str, pod: str) -> None:
        """The pod has ended."""
        kept = [item for item in self.listed.pod_resources if (item.namespace, item.name) != (namespace, pod)]
        self.listed = POD_RESOURCES.ListPodResourcesResponse(pod_resources=kept)

    def container(self, namespace: str, pod: str, container: str) -> Any:
        """The message of a container, made when it is new."""
        pods = self.listed.pod_resources
        found = next((item for item in pods if (item.namespace, item.name) == (namespace, pod)), None)
        found = found or pods.add(name=pod, namespace=namespace, cpu_ids=[0, 1])
        inside = next((item for item in found.containers if item.name == container), None)
        return inside or found.containers.add(name=container, cpu_ids=[2, 3])

    def _list(self, _: bytes) -> bytes:
        return bytes(self.listed.SerializeToString())


class CriServer(GrpcServer):
    """A container runtime's socket."""

    def __init__(self, path: Path) -> None:
        service = "/runtime.v1.RuntimeService"
        super().__init__(
            path,
            {f"{service}/ListContainers": self._list, f"{service}/ListPodSandbox": lambda _: self._sandboxes()},
        )
        self.containers = CRI.ListContainersResponse()
        self.sandboxes = CRI.ListPodSandboxResponse()

    def add(
        self,
        container_id: str,
        *,
        name: str = "main",
        image: str = "",
        user_image: str = "",
        sandbox_id: str = "",
        state: int = RUNNING,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A container."""
        self.containers.containers.add(
            id=container_id,
            pod_sandbox_id=sandbox_id,
            metadata={"name": name, "attempt": 1},
            image={"image": image, "user_specified_image": user_image},
            image_ref="sha256:" + "0" * 64,
            state=state,
            created_at=1_700_000_000_000_000_000,
            labels=[{"key": key, "value": value} for key, value in (labels or {}).items()],
            annotations=[{"key": "io.kubernetes.container.hash", "value": "beef"}],
        )

    def add_sandbox(self, sandbox_id: str, namespace: str, pod: str, uid: str) -> None:
        """A pod."""
        self.sandboxes.items.add(id=sandbox_id, metadata={"name": pod, "namespace": namespace, "uid": uid}, state=0)

    def _list(self, request: bytes) -> bytes:
        asked = CRI.ListContainersRequest.FromString(request)
        kept = [item for item in self.containers.containers if item.state == asked.filter.state.state]
        return bytes(CRI.ListContainersResponse(containers=kept).SerializeToString())

    def _sandboxes(self) -> bytes:
        return bytes(self.sandboxes.SerializeToString())


def pod_labels(namespace: str, pod: str, uid: str, container: str) -> dict[str, str]:
    """What the kubelet writes on each container."""
    return {
        "io.kubernetes.pod.namespace": namespace,
        "io.kubernetes.pod.name": pod,
        "io.kubernetes.pod.uid": uid,
        "io.kubernetes.container.name": container,
    }
