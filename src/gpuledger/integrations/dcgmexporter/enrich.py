"""Adds pod labels to the series of a dcgm-exporter. Pure: families and holders of devices in, lines out.

- One pod holds the device: its labels replace those of the series, because dcgm-exporter queried the same kubelet
  earlier, and parses fewer forms of device ids. If the pod differs, the label `pod_uid` is removed.
- Several pods hold it: the value belongs to the device, so the series is exposed once, without a pod. Series that
  dcgm-exporter wrote for each of several pods, with `vgpu` or without, are not changed.
- No pod holds it: the series is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.integrations.exposition import ScrapedFamily, pairs
from gpuledger.model.holders import DevicePods, HolderLabels, single_pod
from gpuledger.web.text import escape

NEW_NAMES = (b"namespace", b"pod", b"container")
OLD_NAMES = (b"pod_namespace", b"pod_name", b"container_name")
"""The label names of dcgm 1.x, or of `--use-old-namespace`."""
POD_LABELS = {*NEW_NAMES, *OLD_NAMES}
OLD_PREFIX = b"dcgm_"
POD_UID = b"pod_uid"
UUIDS = (b"UUID", b"uuid", b"gpu_uuid")
"""The label for the uuid of a GPU, of a GPU with old label names, and of an NVLink."""
BUS_ID = re.compile(rb"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")

Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Block:
    """The new labels of a label block."""

    texts: tuple[bytes, ...]
    """The labels with braces; several if the series of a shared device is copied for each of its pods."""
    keys: tuple[int, ...]
    """Hashes of the labels in any order."""
    has_pod: bool


@dataclass(frozen=True, slots=True)
class Enriched:
    """The metrics with pod labels."""

    families: tuple[tuple[bytes, bytes], ...] = ()
    """Name and lines of each family."""
    series: int = 0
    with_pod: int = 0
    duplicates: int = 0
    """Series dropped because an earlier series has the same labels."""


def enrich(families: Sequence[ScrapedFamily], held: DevicePods, *, copied: bool = False) -> Enriched:
    """The families with pod labels; `copied` writes the series of a shared device once for each of its pods."""
    devices = Devices(held)
    new, old = (NewLabels(devices, is_old=is_old, copied=copied) for is_old in (False, True))
    parts = [_enriched(family, old if family.name.startswith(OLD_PREFIX) else new) for family in families]
    return Enriched(
        families=tuple(pair for part in parts for pair in part.families),
        series=sum(part.series for part in parts),
        with_pod=sum(part.with_pod for part in parts),
        duplicates=sum(part.duplicates for part in parts),
    )


def _enriched(family: ScrapedFamily, labels: NewLabels) -> Enriched:
    """One family. If new labels would drop a series, those that differ only in the pod are not changed."""
    written = _written(family, labels, {})
    return _written(family, labels, split) if written.duplicates and (split := _split(family)) else written


def _split(family: ScrapedFamily) -> dict[tuple[bytes, bytes | None], Block]:
    """The unchanged label blocks of series that differ from another series only in the pod."""
    by_device: dict[tuple[bytes, int], dict[int, None]] = {}
    series = []
    for name, text in dict.fromkeys((name, text) for name, text, _ in family.series):
        labels = pairs(text or b"")
        block = _unchanged(text, labels)
        device_key = name, _key(_without_pod(labels))
        by_device.setdefault(device_key, {})[block.keys[0]] = None
        series.append(((name, text), device_key, block))
    return {key: block for key, device_key, block in series if len(by_device[device_key]) > 1}


def _written(family: ScrapedFamily, new: NewLabels, split: dict[tuple[bytes, bytes | None], Block]) -> Enriched:
    exposed: set[tuple[bytes, int]] = set()
    lines = [family.head]
    with_pod = duplicates = 0
    for name, text, value in family.series:
        block = (split and split.get((name, text))) or new[text]
        for labels, key in zip(block.texts, block.keys, strict=True):
            if (name, key) in exposed:
                duplicates += 1
                continue
            exposed.add((name, key))
            lines.append(b"%b%b %b\n" % (name, labels, value))
            with_pod += block.has_pod
    return Enriched(((family.name, b"".join(lines)),), len(lines) - 1, with_pod, duplicates)


class NewLabels(dict[bytes | None, Block]):
    """The new labels of each distinct label block, computed once."""

    def __init__(self, devices: Devices, *, is_old: bool, copied: bool) -> None:
        super().__init__({None: Block((b"",), (_key([]),), has_pod=False)})
        self._devices, self._is_old, self._copied = devices, is_old, copied

    def __missing__(self, text: bytes) -> Block:
        block = self[text] = self._block(text)
        return block

    def _block(self, text: bytes) -> Block:
        labels = pairs(text)
        values = dict(labels)
        names = OLD_NAMES if self._is_old or b"uuid" in values or OLD_NAMES[1] in values else NEW_NAMES
        has_pod = values.get(names[1], b"") != b""
        holders = self._devices.holders(values)
        pod = single_pod(holders)
        if pod is not None:
            return _block_of([_with(labels, names, pod)], has_pod=True)
        if not holders or (b"vgpu" in values and has_pod):
            return _unchanged(text, labels)
        if self._copied:
            return _block_of([_with(labels, names, holder) for holder in holders], has_pod=True)
        return _block_of([_without_pod(labels)], has_pod=False)


class Devices:
    """The devices of this host and their holders, found by labels."""

    def __init__(self, held: DevicePods) -> None:
        self._holders, devices = dict(held.holders), held.devices
        gpus = [device for device in devices if not device.parent_uuid]
        self._uuids = {device.uuid.encode() for device in devices}
        self._by_bus = {_bus(device.pci_bus_id.encode()): device.uuid.encode() for device in gpus if device.pci_bus_id}
        # dcgm-exporter writes the index, other exporters the minor number: use it only if both are equal.
        self._by_number = {b"nvidia%d" % gpu.index: gpu.uuid.encode() for gpu in gpus if gpu.minor == gpu.index}
        self._instances: dict[tuple[bytes, bytes], list[str]] = {}
        for device in devices:
            if device.parent_uuid and device.gpu_instance_id is not None:
                key = (device.parent_uuid.encode(), b"%d" % device.gpu_instance_id)
                self._instances.setdefault(key, []).append(device.uuid)

    def holders(self, labels: dict[bytes, bytes]) -> list[HolderLabels]:
        """The containers that hold the device with these labels."""
        return sorted({holder for uuid in self._find(labels) for holder in self._holders.get(uuid, ())})

    def _find(self, labels: dict[bytes, bytes]) -> list[str]:
        """The UUID of a GPU, or those of the compute instances of a GPU instance; empty if it is not on this host."""
        uuid = next((labels[name] for name in UUIDS if labels.get(name)), b"")
        if not uuid:
            uuid = self._by_bus.get(_bus(labels.get(b"pci_bus_id", b"")), b"")
            uuid = uuid or self._by_number.get(labels.get(b"device", b""), b"")
        if instance := labels.get(b"GPU_I_ID"):
            return self._instances.get((uuid, instance), [])
        return [uuid.decode()] if uuid in self._uuids else []


def _bus(text: bytes) -> bytes:
    """A PCI bus id without the zeros of the domain, which has four or eight digits."""
    match = BUS_ID.fullmatch(text)
    return b"%b:%b" % (match[1].lstrip(b"0"), match[2].lower()) if match else b"-"


def _with(labels: Pairs, names: tuple[bytes, ...], holder: HolderLabels) -> Pairs:
    """The labels, with the pod labels of this holder."""
    ours = [(name, escape(value).encode()) for name, value in zip(names, holder, strict=False)]
    values = dict(labels)
    is_other = any(values.get(name, value) not in (b"", value) for name, value in ours[:2])
    dropped = POD_LABELS | {POD_UID} if is_other else POD_LABELS
    return [pair for pair in labels if pair[0] not in dropped] + [pair for pair in ours if pair[1]]


def _without_pod(labels: Pairs) -> Pairs:
    return [pair for pair in labels if pair[0] not in POD_LABELS and pair[0] != POD_UID]


def _unchanged(text: bytes | None, labels: Pairs) -> Block:
    has_pod = any(name in (NEW_NAMES[1], OLD_NAMES[1]) and value for name, value in labels)
    return Block((b"" if text is None else b"{%b}" % text,), (_key(labels),), has_pod)


def _block_of(copies: list[Pairs], *, has_pod: bool) -> Block:
    texts = tuple(b"{%b}" % b",".join([b'%b="%b"' % pair for pair in labels]) for labels in copies)
    return Block(texts, tuple(_key(labels) for labels in copies), has_pod)


def _key(labels: Pairs) -> int:
    """A hash of the labels in any order. Prometheus treats an empty label as missing."""
    return hash(frozenset(pair for pair in labels if pair[1]))
