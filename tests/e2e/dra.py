"""A DRA driver that prepares devices of claims for the kubelet, like NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.owners.providers.kubelet_server import GrpcServer, declare

NAME = "gpu.nvidia.com"
API: Any = declare(
    "dra",
    """
    PluginInfo: type=1 string, name=2 string, endpoint=3 string, supported_versions=4 string*
    Claims: claims=1 Claim*
    Claim: namespace=1 string, uid=2 string, name=3 string
    NodePrepareResourcesResponse: claims=1 PreparedEntry*
    PreparedEntry: key=1 string, value=2 NodePrepareResourceResponse
    NodePrepareResourceResponse: devices=1 Device*
    Device: request_names=1 string*, pool_name=2 string, device_name=3 string, cdi_device_ids=4 string*
    """,
)


class DraDriver(GrpcServer):
    """Driver with one device for every claim. The kubelet discovers its socket."""

    def __init__(self, folder: Path, pool: str, device: str, request: str) -> None:
        service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
        super().__init__(
            folder / f"{NAME}.sock",
            {
                "/pluginregistration.Registration/GetInfo": self._info,
                "/pluginregistration.Registration/NotifyRegistrationStatus": lambda _: b"",
                f"{service}/NodePrepareResources": self._prepare,
                f"{service}/NodeUnprepareResources": self._unprepare,
            },
        )
        self._pool, self._device, self._request = pool, device, request

    def _info(self, _: bytes) -> bytes:
        versions = ["v1.DRAPlugin"]
        info = API.PluginInfo(type="DRAPlugin", name=NAME, endpoint=str(self.path), supported_versions=versions)
        return bytes(info.SerializeToString())

    def _prepare(self, request: bytes) -> bytes:
        """Prepare claims; the CDI name contains the claim, as with NVIDIA's driver."""
        answer = API.NodePrepareResourcesResponse()
        for claim in API.Claims.FromString(request).claims:
            device = API.Device(
                request_names=[self._request],
                pool_name=self._pool,
                device_name=self._device,
                cdi_device_ids=[f"k8s.{NAME}/claim={claim.uid}-{self._device}"],
            )
            answer.claims.add(key=claim.uid, value=API.NodePrepareResourceResponse(devices=[device]))
        return bytes(answer.SerializeToString())

    def _unprepare(self, request: bytes) -> bytes:
        answer = API.NodePrepareResourcesResponse()  # without devices this message has the same form
        for claim in API.Claims.FromString(request).claims:
            answer.claims.add(key=claim.uid)
        return bytes(answer.SerializeToString())
