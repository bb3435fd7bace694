"""A device plugin that offers devices to the kubelet, like NVIDIA's plugin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tests.owners.providers.kubelet_server import declare

API: Any = declare(
    "deviceplugin",
    """
    RegisterRequest: version=1 string, endpoint=2 string, resource_name=3 string
    ListAndWatchResponse: devices=1 Device*
    Device: ID=1 string, health=2 string
    AllocateRequest: container_requests=1 ContainerAllocateRequest*
    ContainerAllocateRequest: devices_ids=1 string*
    AllocateResponse: container_responses=1 ContainerAllocateResponse*
    ContainerAllocateResponse: envs=1 Pair*
    Pair: key=1 string, value=2 string
    """,
)
SERVICE = "/v1beta1.DevicePlugin"
GIVEN = "GIVEN_DEVICES"
"""Environment variable with the allocated devices of a container, for tests that must not rely on the kubelet."""


class DevicePlugin:
    """gRPC server next to the kubelet's socket. Registers at the kubelet at every start."""

    def __init__(self, folder: Path, resource: str, *device_ids: str) -> None:
        self.resource = resource
        self._folder = folder
        self._endpoint = resource.rpartition("/")[2] + ".sock"
        self.device_ids = device_ids
        self._stopped = threading.Event()
        self._server: Any = None

    def start(self) -> None:
        """Start and register. Needed after every start of the kubelet, which removes all sockets in this directory."""
        self.stop()
        self._stopped.clear()
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((_Methods(self),))
        self._server.add_insecure_port(f"unix://{self._folder / self._endpoint}")
        self._server.start()
        register = API.RegisterRequest(version="v1beta1", endpoint=self._endpoint, resource_name=self.resource)
        kubelet = f"unix://{self._folder / 'kubelet.sock'}"
        with grpc.insecure_channel(kubelet, [("grpc.default_authority", "localhost")]) as channel:
            call: Any = channel.unary_unary("/v1beta1.Registration/Register")
            call(register.SerializeToString(), timeout=20)

    def stop(self) -> None:
        """Stop like a plugin whose pod is deleted: the stream ends and the socket is removed."""
        self._stopped.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        (self._folder / self._endpoint).unlink(missing_ok=True)

    def devices(self, _: bytes, __: Any) -> Iterator[bytes]:
        """Send all devices once and keep the stream open."""
        offered = [API.Device(ID=device_id, health="Healthy") for device_id in self.device_ids]
        yield API.ListAndWatchResponse(devices=offered).SerializeToString()
        self._stopped.wait()

    def allocate(self, request: bytes, _: Any) -> bytes:
        """Put the devices that the kubelet chose into the environment of each container."""
        answer = API.AllocateResponse()
        for container in API.AllocateRequest.FromString(request).container_requests:
            answer.container_responses.add(envs=[{"key": GIVEN, "value": ",".join(container.devices_ids)}])
        return bytes(answer.SerializeToString())


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """gRPC handlers without generated code: bytes in, bytes out."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._handlers: dict[str, Any] = {
            f"{SERVICE}/GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _, __: b""),
            f"{SERVICE}/ListAndWatch": grpc.unary_stream_rpc_method_handler(plugin.devices),
            f"{SERVICE}/Allocate": grpc.unary_unary_rpc_method_handler(plugin.allocate),
        }

    def service(self, handler_call_details: Any) -> Any:
        """Handler of a method; unknown methods are UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)
