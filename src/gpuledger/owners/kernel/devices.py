"""Device ids of device plugins, the kubelet, CDI, DRA and NVIDIA_VISIBLE_DEVICES, and the GPUs they identify.

Two pure steps: `parse` reads the parts of an id, `DeviceIndex.resolve` finds the devices of this node. Minor and index
differ: `nvidia0` and DRA's `gpu-0` are /dev/nvidia0, a plain `0` is the first GPU in the driver's order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from gpuledger.model import Device

LONGEST = 512
"""Characters; no known form is nearly as long. Bounds the work of the regular expressions."""

UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
N = r"\d{1,9}"
REPLICA = rf"(?:::(?P<replica>{N})?)?"

FORMS = {
    "gpu-uuid": rf"(?i:GPU-)(?P<gpu>{UUID}){REPLICA}",
    "mig-uuid": rf"(?i:MIG-)(?P<mig>{UUID}){REPLICA}",
    "mig-legacy": rf"(?i:MIG-GPU-)(?P<gpu>{UUID})/(?P<gi>{N})/(?P<ci>{N}){REPLICA}",
    # HAMi appends a slot; the pod may in fact use another GPU.
    "hami-slot": rf"(?i:GPU-)(?P<gpu>{UUID})-(?P<replica>{N})",
    "gke": rf"nvidia(?P<minor>{N})(?:/gi(?P<gi>{N}))?(?:/vgpu(?P<replica>{N}))?",
    "index": rf"(?P<index>{N})",
    "mig-index": rf"(?P<index>{N}):(?P<mig_index>{N})",
    "all": r"all",
}
"""Ids of device plugins and environment variables."""
BARE_FORMS = {"gpu-uuid": rf"(?P<gpu>{UUID})::(?P<replica>{N})?"}
"""A uuid without a prefix is accepted only with the replica mark of a device plugin."""
CDI_FORMS = {"index": rf"gpu(?P<index>{N})", "mig-index": rf"mig(?P<index>{N}):(?P<mig_index>{N})"}
"""The type-index names of nvidia-ctk, in addition to FORMS."""
DRA_FORMS = {
    "dra-gpu": rf"gpu-(?P<minor>{N})",
    "dra-mig": rf"gpu-(?P<minor>{N})-mig-(?P<profile>[a-z0-9-]+)-(?P<gi_profile>{N})-(?P<placement>{N})",
    "dra-vfio": rf"gpu-vfio-(?P<index>{N})",
}
CDI = re.compile(r"(?P<vendor>(?:[a-z0-9-]+\.)*nvidia\.com)/(?P<cls>[a-zA-Z0-9_.-]+)=(?P<name>.+)", re.ASCII)
CLAIM = re.compile(rf"(?P<claim>{UUID})(?:-(?P<name>.+))?", re.ASCII)
DRA_VENDOR = "k8s.gpu.nvidia.com"
TEXTS = ("replica", "profile")
"""Parts of an id that are not numbers."""

_Table = tuple[tuple[str, re.Pattern[str]], ...]


def _table(*forms: dict[str, str]) -> _Table:
    return tuple((kind, re.compile(form, re.ASCII)) for table in forms for kind, form in table.items())


PLAIN = _table(FORMS, BARE_FORMS, DRA_FORMS)
CDI_NAMES = _table(FORMS, CDI_FORMS)
DRA_NAMES = _table(DRA_FORMS)


@dataclass(frozen=True, slots=True)
class DeviceRef:
    """The parts of an id; None if the id lacks a part."""

    raw: str
    kind: str = "unknown"
    """The form, with the prefix `cdi:` or `cdi-claim:` for a CDI name."""
    uuid: str | None = None
    """The uuid of the GPU or MIG instance, or of the parent GPU for `mig-legacy`."""
    minor: int | None = None
    index: int | None = None
    mig_index: int | None = None
    gi: int | None = None
    ci: int | None = None
    replica: str | None = None
    """The share of a shared device."""
    claim: str | None = None
    profile: str | None = None
    """The profile of a DRA MIG device, without dots: 1g12gb."""
    gi_profile: int | None = None
    placement: int | None = None

    @property
    def form(self) -> str:
        """The kind without its prefix."""
        return self.kind.rpartition(":")[2]

    def to_dict(self) -> dict[str, object]:
        """As JSON. `extra` is the compute instance of a legacy MIG name."""
        return asdict(self) | {"extra": self.ci}


def parse(device_id: str) -> DeviceRef:
    """Parse an id. An id of another form has the kind `unknown`."""
    if len(device_id) > LONGEST:
        return DeviceRef(device_id)
    cdi = CDI.fullmatch(device_id)
    if cdi is None:
        return _match(device_id, device_id, PLAIN)
    vendor, cls, name = cdi.groups()
    if vendor == DRA_VENDOR and cls == "device":
        return _match(device_id, name, DRA_NAMES, "cdi:")
    if vendor == DRA_VENDOR and cls == "claim" and (claimed := CLAIM.fullmatch(name)):
        return _match(device_id, claimed["name"] or "", DRA_NAMES, "cdi-claim:", claimed["claim"])
    if cls in ("gpu", "mig"):  # others are not GPUs: nvidia.com/gds=all, nvidia.com/imex-channel=0
        return _match(device_id, name, CDI_NAMES, "cdi:")
    return DeviceRef(device_id)


def _match(raw: str, name: str, table: _Table, prefix: str = "", claim: str | None = None) -> DeviceRef:
    for kind, form in table:
        if match := form.fullmatch(name):
            parts = {name: text for name, text in match.groupdict().items() if text is not None}
            gpu, mig = parts.pop("gpu", ""), parts.pop("mig", "")
            uuid = f"GPU-{gpu.lower()}" if gpu else f"MIG-{mig.lower()}" if mig else None
            values: dict[str, Any] = {name: text if name in TEXTS else int(text) for name, text in parts.items()}
            return DeviceRef(raw, prefix + kind, uuid, claim=claim, **values)
    return DeviceRef(raw, claim=claim)


class DeviceIndex:
    """The devices of this node, found by parsed ids."""

    def __init__(self, devices: Iterable[Device]) -> None:
        known = tuple(devices)
        self._uuids = {device.uuid.lower(): device.uuid for device in known}
        self._gpus = tuple(device for device in known if not device.parent_uuid)
        self._migs: dict[str, list[Device]] = {}
        for device in known:
            if device.parent_uuid:
                self._migs.setdefault(device.parent_uuid.lower(), []).append(device)

    def resolve(self, ref: DeviceRef) -> tuple[str, ...]:
        """The uuids of the devices; empty if this node has no such device, or the id does not identify one."""
        if ref.form == "all":
            return tuple(gpu.uuid for gpu in self._gpus)
        if ref.form in ("gpu-uuid", "mig-uuid", "hami-slot"):
            uuid = self._uuids.get((ref.uuid or "").lower())
            return () if uuid is None else (uuid,)
        if ref.form in ("unknown", "dra-vfio"):  # the driver has no GPU that was passed through to a VM
            return ()
        return tuple(uuid for gpu in self._gpus if self._is_gpu_of(gpu, ref) for uuid in self._parts(gpu, ref))

    @staticmethod
    def _is_gpu_of(gpu: Device, ref: DeviceRef) -> bool:
        if ref.uuid is not None:
            return gpu.uuid.lower() == ref.uuid.lower()
        if ref.minor is not None:
            return gpu.minor == ref.minor
        return ref.index is not None and gpu.index == ref.index

    def _parts(self, gpu: Device, ref: DeviceRef) -> list[str]:
        migs = self._migs.get(gpu.uuid.lower(), [])
        if ref.gi is not None:
            return [m.uuid for m in migs if m.gpu_instance_id == ref.gi and ref.ci in (None, m.compute_instance_id)]
        if ref.mig_index is not None:  # instances are in the order of the driver
            return [m.uuid for m in migs[ref.mig_index : ref.mig_index + 1]]
        if ref.profile is not None:
            same = [m.uuid for m in migs if _dra_profile(m.mig_profile) == ref.profile]
            return same if len(same) == 1 else []  # the placement would distinguish them, but the inventory lacks it
        return [gpu.uuid]


def _dra_profile(profile: str) -> str:
    """`1g.12gb+me` as in the name of a DRA device: 1g12gb-me."""
    return re.sub(r"[^a-z0-9-]", "-", profile.lower().replace(".", "")).strip("-")
