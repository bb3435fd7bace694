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

from gpuledger.integrations.exposition import Family, pairs
from gpuledger.model import Device
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
    """With braces. Several if the series of a shared device is copied for each of its pods."""
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


def enrich(families: Sequence[Family], held: DevicePods, *, copied: bool = False) -> Enriched:
    """The families with pod labels; `copied` writes the series of a shared device once for each of its pods."""
    labeller = Labeller(held, copied=copied)
    written = [(family.name, _lines(family, labeller)) for family in families]
    return Enriched(
        families=tuple((name, text) for name, (text, _, _, _) in written),
        series=sum(count for _, (_, count, _, _) in written),
        with_pod=sum(count for _, (_, _, count, _) in written),
        duplicates=sum(count for _, (_, _, _, count) in written),
    )


def _lines(family: Family, labeller: Labeller) -> tuple[bytes, int, int, int]:
    written = _written(family, labeller, {})
    is_lossy = written[-1] > 0
    return _written(family, labeller, split) if is_lossy and (split := _split(family)) else written


def _split(family: Family) -> dict[tuple[bytes, bytes | None], Block]:
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


def _written(
    family: Family, labeller: Labeller, split: dict[tuple[bytes, bytes | None], Block]
) -> tuple[bytes, int, int, int]:
    blocks = labeller.old if family.name.startswith(OLD_PREFIX) else labeller.new
    exposed: set[tuple[bytes, int]] = set()
    lines = [family.head]
    with_pod = duplicates = 0
    for name, text, value in family.series:
        block = (split and split.get((name, text))) or blocks.get(text) or labeller.add(text, blocks)
        for labels, key in zip(block.texts, block.keys, strict=True):
            if (name, key) in exposed:
                duplicates += 1
                continue
            exposed.add((name, key))
            lines.append(b"%b%b %b\n" % (name, labels, value))
            with_pod += block.has_pod
    return b"".join(lines), len(lines) - 1, with_pod, duplicates


class Labeller:
    """Computes the new labels of each distinct block once."""

    def __init__(self, held: DevicePods, *, copied: bool = False) -> None:
        self._devices = Devices(held.devices)
        self._holders = dict(held.holders)
        self._copied = copied
        self.new: dict[bytes | None, Block] = {None: Block((b"",), (_key([]),), has_pod=False)}
        self.old: dict[bytes | None, Block] = dict(self.new)

    def add(self, text: bytes | None, blocks: dict[bytes | None, Block]) -> Block:
        """The new labels of a block that is not in `blocks` yet."""
        assert text is not None  # noqa: S101 - series without labels are in `blocks` from the start
        block = blocks[text] = self._block(text, is_old=blocks is self.old)
        return block

    def _block(self, text: bytes, *, is_old: bool) -> Block:
        labels = pairs(text)
        values = dict(labels)
        is_old = is_old or b"uuid" in values or OLD_NAMES[1] in values
        names = OLD_NAMES if is_old else NEW_NAMES
        has_pod = values.get(names[1], b"") != b""
        holders = self._holders_of(values)
        pod = single_pod(holders)
        if pod is not None:
            return _block_of([_with(labels, names, pod)], has_pod=True)
        if not holders or (b"vgpu" in values and has_pod):
            return _unchanged(text, labels)
        if self._copied:
            return _block_of([_with(labels, names, holder) for holder in holders], has_pod=True)
        return _block_of([_without_pod(labels)], has_pod=False)

    def _holders_of(self, values: dict[bytes, bytes]) -> tuple[HolderLabels, ...]:
        holders = {holder for uuid in self._devices.find(values) for holder in self._holders.get(uuid, ())}
        return tuple(sorted(holders))


class Devices:
    """The devices of this host, found by labels."""

    def __init__(self, devices: Sequence[Device]) -> None:
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

    def find(self, labels: dict[bytes, bytes]) -> list[str]:
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
