"""The JSON of Docker and Podman: names of a container, and the GPUs passed to it.

Pure; accepts any JSON. Of a container's environment only NVIDIA_VISIBLE_DEVICES is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger.net.jsonvalues import as_dict, as_list, as_text, as_texts
from gpuledger.owners.kernel.devices import CDI
from gpuledger.owners.names import Container, PodLabels

MOST_DEVICES = 128
ID = re.compile(r"[0-9a-f]{64}")
COMPOSE_LABELS = ("com.docker.compose.project", "com.docker.compose.service")

GPU_NODE = re.compile(r"/dev/(nvidia\d{1,4})", re.ASCII)
CDI_CLASSES = ("gpu", "mig", "claim", "device")
"""CDI classes of GPUs; NVIDIA has others, such as gds and imex-channel."""
DRIVERS = ("", "nvidia", "nvidia.cdi", "nvidia.runtime-hook")
ANNOTATIONS = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
VOLUMES = "/var/run/nvidia-container-devices/"
VISIBLE, CUDA, REQUIRE = "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"


@dataclass(frozen=True, slots=True)
class Inspected:
    """The part of /containers/ID/json that cannot change."""

    image: str = ""
    """The image name with which the container was created."""
    device_ids: tuple[str, ...] = ()
    visible_ids: tuple[str, ...] = ()


def read_list(listed: list[Any]) -> dict[str, dict[str, Any]]:
    """The entries of /containers/json by id. An id becomes part of a URL, so only well-formed ones are kept."""
    entries = (as_dict(entry) for entry in listed)
    return {i: entry for entry in entries if isinstance(i := entry.get("Id"), str) and ID.fullmatch(i)}


def read_container(i: str, entry: dict[str, Any], inspected: Inspected) -> Container:
    """One entry of the list. If the tag has moved to another image, the list has only the image's id."""
    labels = as_dict(entry.get("Labels"))
    names = [as_text(name).removeprefix("/") for name in as_list(entry.get("Names"))]
    names.sort(key=lambda name: "/" in name or not name)  # --link adds an alias: other/alias
    image = as_text(entry.get("Image"))
    return Container(
        id=i,
        name=names[0] if names else "",
        image=inspected.image if inspected.image and image.startswith("sha256:") else image,
        pod_labels=_pod_labels(labels),
        labels=compose_labels(labels),
        device_ids=inspected.device_ids,
        visible_ids=inspected.visible_ids,
    )


def compose_labels(labels: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The project and the service of Compose, which nerdctl labels in the same way."""
    return tuple((label, value) for label in COMPOSE_LABELS if (value := as_text(labels.get(label))))


def _pod_labels(labels: dict[str, Any]) -> PodLabels | None:
    """The labels that cri-dockerd sets."""
    uid, namespace, pod, container = (
        as_text(labels.get(f"io.kubernetes.{part}"))
        for part in ("pod.uid", "pod.namespace", "pod.name", "container.name")
    )
    return PodLabels(uid, namespace, pod, container) if uid and pod else None


def read_inspected(answer: object) -> Inspected:
    """An answer of /containers/ID/json."""
    container = as_dict(answer)
    host = as_dict(container.get("HostConfig"))
    requested = _requested_ids(container, host)
    # As in NVIDIA's runtime, a request overrides the environment.
    visible = _visible_ids(container) if _has_nvidia_runtime(host) and not requested else []
    return Inspected(
        image=as_text(as_dict(container.get("Config")).get("Image")),
        device_ids=_distinct([*requested, *_device_nodes(host)]),
        visible_ids=_distinct(visible),
    )


def _distinct(ids: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))[:MOST_DEVICES]


def _has_nvidia_runtime(host: dict[str, Any]) -> bool:
    return "nvidia" in as_text(host.get("Runtime"))


def _requested_ids(container: dict[str, Any], host: dict[str, Any]) -> list[str]:
    requests = as_list(host.get("DeviceRequests"))
    ids = [device for request in requests for device in _ids_of_request(as_dict(request))]
    return ids or (_ids_of_runtime(container, host) if _has_nvidia_runtime(host) else [])


def _ids_of_request(request: dict[str, Any]) -> list[str]:
    """The devices of `--gpus` or of a CDI `--device`."""
    ids = as_texts(as_list(request.get("DeviceIDs")))
    driver, count = request.get("Driver"), request.get("Count")
    capabilities = {as_text(name) for group in as_list(request.get("Capabilities")) for name in as_list(group)}
    if driver == "cdi" or not capabilities & {"gpu", "nvidia"}:
        return [device for device in ids if _is_cdi_gpu(device)]
    if (driver or "") not in DRIVERS:
        return []
    if ids or type(count) is not int:
        return ids
    return ["all"] if count < 0 else [str(index) for index in range(min(count, MOST_DEVICES))]


def _ids_of_runtime(container: dict[str, Any], host: dict[str, Any]) -> list[str]:
    """The devices that NVIDIA's runtime takes from annotations, or else from mounts."""
    annotations = as_dict(host.get("Annotations"))
    values = [as_text(value) for key, value in annotations.items() if key.startswith(ANNOTATIONS)]
    if ids := [device for value in values for device in value.split(",") if _is_cdi_gpu(device)]:
        return ids
    mounts = as_texts(as_dict(mount).get("Destination") for mount in as_list(container.get("Mounts")))
    return _without_none(_mounted_name(mount.removeprefix(VOLUMES)) for mount in mounts if mount.startswith(VOLUMES))


def _visible_ids(container: dict[str, Any]) -> list[str]:
    variables = {}
    for entry in as_list(as_dict(container.get("Config")).get("Env")):
        key, is_set, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if is_set and key in (VISIBLE, CUDA, REQUIRE):
            variables[key] = value
    if VISIBLE in variables:
        return _without_none(as_text(variables[VISIBLE]).split(","))
    return ["all"] if CUDA in variables and REQUIRE not in variables else []  # images older than VISIBLE get all GPUs


def _device_nodes(host: dict[str, Any]) -> list[str]:
    paths = [as_text(as_dict(device).get("PathOnHost")) for device in as_list(host.get("Devices"))]
    return [node[1] if (node := GPU_NODE.fullmatch(path)) else path
            for path in paths if GPU_NODE.fullmatch(path) or _is_cdi_gpu(path)]  # fmt: skip


def _without_none(names: Iterable[str]) -> list[str]:
    """The names without `void` and `none`, which mean no device; only `all` if it is among them."""
    ids = [name.strip() for name in names if name.strip() not in ("", "none", "void")]
    return ["all"] if "all" in ids else ids


def _mounted_name(name: str) -> str:
    """`cdi/nvidia.com/gpu/0` is the file name for nvidia.com/gpu=0."""
    vendor, _, class_and_device = name.removeprefix("cdi/").partition("/")
    cls, _, device = class_and_device.partition("/")
    return f"{vendor}/{cls}={device}" if name.startswith("cdi/") else name


def _is_cdi_gpu(device: str) -> bool:
    match = CDI.fullmatch(device)
    return match is not None and match["cls"] in CDI_CLASSES
