"""What Docker's and Podman's JSON says about a container: its names, and the GPUs it was given.

Pure and total: any JSON in. Of a container's environment only NVIDIA_VISIBLE_DEVICES is ever kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gpuledger.owners.devices import CDI
from gpuledger.owners.names import Container

MOST_DEVICES = 128
LONGEST_TEXT = 512
"""An image's name with its tag and digest can have about that many characters; all others are shorter."""

ID = re.compile(r"[0-9a-f]{64}")
COMPOSE = ("com.docker.compose.project", "com.docker.compose.service")

GPU_NODE = re.compile(r"/dev/(nvidia\d{1,4})", re.ASCII)
CDI_CLASSES = ("gpu", "mig", "claim", "device")
"""Of the vendor NVIDIA; there are others that are not GPUs, such as gds and imex-channel."""
DRIVERS = ("", "nvidia", "nvidia.cdi", "nvidia.runtime-hook")
ANNOTATIONS = ("cdi.k8s.io/", "nvidia.cdi.k8s.io/")
VOLUMES = "/var/run/nvidia-container-devices/"
VISIBLE, CUDA, REQUIRE = "NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA"


def as_dict(value: object) -> dict[str, Any]:
    """An object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """An array, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str:
    """A text fit for a label: not too long, and nothing in it that is not printable (halves of characters too)."""
    text = value[:LONGEST_TEXT] if isinstance(value, str) else ""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def read_list(listed: list[Any]) -> dict[str, dict[str, Any]]:
    """The entries of /containers/json by id. The id becomes part of an address, so it must be one."""
    entries = (as_dict(entry) for entry in listed)
    return {i: entry for entry in entries if isinstance(i := entry.get("Id"), str) and ID.fullmatch(i)}


def read_container(
    i: str, entry: dict[str, Any], created_from: str, device_ids: tuple[str, ...], visible_ids: tuple[str, ...]
) -> Container:
    """One entry of the list. It has an id for the image once the name has moved on; the name it had says more."""
    labels = as_dict(entry.get("Labels"))
    names = [as_text(name).removeprefix("/") for name in as_list(entry.get("Names"))]
    names.sort(key=lambda name: "/" in name or not name)  # --link adds an alias: other/alias
    image = as_text(entry.get("Image"))
    pod = as_text(labels.get("io.kubernetes.pod.name"))
    in_pod = as_text(labels.get("io.kubernetes.container.name")) if pod else ""
    return Container(
        id=i,
        name=in_pod or (names[0] if names else ""),
        image=created_from if created_from and image.startswith("sha256:") else image,
        namespace=as_text(labels.get("io.kubernetes.pod.namespace")),
        pod=pod,
        pod_uid=as_text(labels.get("io.kubernetes.pod.uid")),
        labels=tuple((label, value) for label in COMPOSE if (value := as_text(labels.get(label)))),
        device_ids=device_ids,
        visible_ids=visible_ids,
    )


def read_image(inspected: object) -> str:
    """The image as it was named when the container was created."""
    return as_text(as_dict(as_dict(inspected).get("Config")).get("Image"))


def read_device_ids(inspected: object) -> tuple[str, ...]:
    """The GPUs that /containers/ID/json says it was given, in the words it was asked for."""
    host = as_dict(as_dict(inspected).get("HostConfig"))
    ids = _asked_for(as_dict(inspected), host)
    for device in as_list(host.get("Devices")):
        path = as_text(as_dict(device).get("PathOnHost"))
        node = GPU_NODE.fullmatch(path)
        ids += [node[1]] if node else [path] if _is_cdi_gpu(path) else []
    return tuple(dict.fromkeys(ids))[:MOST_DEVICES]


def read_visible_ids(inspected: object) -> tuple[str, ...]:
    """The GPUs that only its environment names, as NVIDIA's runtime goes by it: a request replaces it."""
    host = as_dict(as_dict(inspected).get("HostConfig"))
    if not _by_runtime(host) or _asked_for(as_dict(inspected), host):
        return ()
    return tuple(dict.fromkeys(_visible(as_dict(inspected))))[:MOST_DEVICES]


def _by_runtime(host: dict[str, Any]) -> bool:
    return "nvidia" in as_text(host.get("Runtime"))


def _asked_for(inspected: dict[str, Any], host: dict[str, Any]) -> list[str]:
    ids = [device for request in as_list(host.get("DeviceRequests")) for device in _requested(as_dict(request))]
    return ids or (_named_to_runtime(inspected, host) if _by_runtime(host) else [])


def _requested(request: dict[str, Any]) -> list[str]:
    """Of `--gpus` or a CDI `--device`."""
    ids = _texts(as_list(request.get("DeviceIDs")))
    driver, count = request.get("Driver"), request.get("Count")
    capabilities = {as_text(one) for all_of in as_list(request.get("Capabilities")) for one in as_list(all_of)}
    if driver == "cdi" or not capabilities & {"gpu", "nvidia"}:
        return [device for device in ids if _is_cdi_gpu(device)]
    if (driver or "") not in DRIVERS:
        return []
    if ids or type(count) is not int:
        return ids
    return ["all"] if count < 0 else [str(index) for index in range(min(count, MOST_DEVICES))]


def _named_to_runtime(inspected: dict[str, Any], host: dict[str, Any]) -> list[str]:
    """What NVIDIA's own runtime goes by before the environment: annotations, then mounts."""
    annotations = as_dict(host.get("Annotations"))
    named = [as_text(value) for key, value in annotations.items() if key.startswith(ANNOTATIONS)]
    if ids := [device for value in named for device in value.split(",") if _is_cdi_gpu(device)]:
        return ids
    mounts = _texts(as_dict(mount).get("Destination") for mount in as_list(inspected.get("Mounts")))
    return _devices(_mounted_name(mount.removeprefix(VOLUMES)) for mount in mounts if mount.startswith(VOLUMES))


def _visible(inspected: dict[str, Any]) -> list[str]:
    kept = {}
    for entry in as_list(as_dict(inspected.get("Config")).get("Env")):
        key, is_set, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if is_set and key in (VISIBLE, CUDA, REQUIRE):
            kept[key] = value
    if VISIBLE in kept:
        return _devices(as_text(kept[VISIBLE]).split(","))
    return ["all"] if CUDA in kept and REQUIRE not in kept else []  # images older than the variable want them all


def _devices(names: Iterable[str]) -> list[str]:
    """`void` and `none` stand for no device, an `all` for every one."""
    ids = [name.strip() for name in names if name.strip() not in ("", "none", "void")]
    return ["all"] if "all" in ids else ids


def _mounted_name(name: str) -> str:
    """`cdi/nvidia.com/gpu/0` is the file name for nvidia.com/gpu=0."""
    vendor, _, rest = name.removeprefix("cdi/").partition("/")
    cls, _, device = rest.partition("/")
    return f"{vendor}/{cls}={device}" if name.startswith("cdi/") else name


def _is_cdi_gpu(device: str) -> bool:
    found = CDI.fullmatch(device)
    return found is not None and found["cls"] in CDI_CLASSES


def _texts(values: Iterable[object]) -> list[str]:
    return [text for text in map(as_text, values) if text]
