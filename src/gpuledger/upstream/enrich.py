"""Pod labels for the series of a dcgm-exporter. Pure: an answer and who holds what in, lines out.

What stands on a series already is kept where we know no better. One pod holds the device: its labels replace what
is there, since dcgm-exporter asks the same kubelet, but earlier, and knows fewer forms of device ids. Several pods
hold it: the value is the device's and stays once, without a pod. Where the dcgm-exporter itself wrote a series for each
of several pods, with `vgpu` or without, these stay. A pod that was replaced takes its `pod_uid` with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.export.text import escape
from gpuledger.holders import DevicePods, HolderLabels, single_pod
from gpuledger.model import Device
from gpuledger.upstream.exposition import Family, pairs

NEW_NAMES = (b"namespace", b"pod", b"container")
OLD_NAMES = (b"pod_namespace", b"pod_name", b"container_name")
"""With the names of dcgm 1.x, or `--use-old-namespace`."""
MINE = {*NEW_NAMES, *OLD_NAMES}
OLD_PREFIX = b"dcgm_"
OF_POD = b"pod_uid"
UUIDS = (b"UUID", b"uuid", b"gpu_uuid")
"""Of GPUs, of GPUs under the old names, and of NVLinks."""
BUS_ID = re.compile(rb"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])")

Pairs = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Block:
    """What one label block becomes."""

    texts: tuple[bytes, ...]
    """With braces. Several when a shared device is copied for each of its pods."""
    keys: tuple[int, ...]
    """Equal for equal sets of labels, in whatever order."""
    has_pod: bool


@dataclass(frozen=True, slots=True)
class Enriched:
    """An answer as it is served."""

    families: tuple[tuple[bytes, bytes], ...] = ()
    """Name and lines of each."""
    series: int = 0
    with_pod: int = 0
    duplicates: int = 0
    """Series left out because one with the same labels came before."""


def enrich(families: Sequence[Family], held: DevicePods, *, copied: bool = False) -> Enriched:
    """The answer with pods on it; `copied` gives each pod on a shared device a copy of the device's series."""
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
    """Those of its series that differ from another one in nothing but the pod, each as it is."""
    alike: dict[tuple[bytes, int], dict[int, None]] = {}
    found = []
    for name, text in dict.fromkeys((name, text) for name, text, _ in family.series):
        labels = pairs(text or b"")
        block = _as_it_is(text, labels)
        same = name, _key(_without_pod(labels))
        alike.setdefault(same, {})[block.keys[0]] = None
        found.append(((name, text), same, block))
    return {series: block for series, same, block in found if len(alike[same]) > 1}


def _written(
    family: Family, labeller: Labeller, split: dict[tuple[bytes, bytes | None], Block]
) -> tuple[bytes, int, int, int]:
    blocks = labeller.old if family.name.startswith(OLD_PREFIX) else labeller.new
    seen: set[tuple[bytes, int]] = set()
    lines = [family.head]
    with_pod = duplicates = 0
    for name, text, value in family.series:
        block = (split and split.get((name, text))) or blocks.get(text) or labeller.add(text, blocks)
        for labels, key in zip(block.texts, block.keys, strict=True):
            if (name, key) in seen:
                duplicates += 1
                continue
            seen.add((name, key))
            lines.append(b"%b%b %b\n" % (name, labels, value))
            with_pod += block.has_pod
    return b"".join(lines), len(lines) - 1, with_pod, duplicates


class Labeller:
    """Finds the labels of each block once."""

    def __init__(self, held: DevicePods, *, copied: bool = False) -> None:
        self._devices = Devices(held.devices)
        self._holders = dict(held.holders)
        self._copied = copied
        self.new: dict[bytes | None, Block] = {None: Block((b"",), (_key([]),), has_pod=False)}
        self.old: dict[bytes | None, Block] = dict(self.new)

    def add(self, text: bytes | None, blocks: dict[bytes | None, Block]) -> Block:
        """What becomes of a block that was not met before."""
        assert text is not None  # noqa: S101 - known from the beginning
        block = blocks[text] = self._block(text, is_old=blocks is self.old)
        return block

    def _block(self, text: bytes, *, is_old: bool) -> Block:
        labels = pairs(text)
        said = dict(labels)
        is_old = is_old or b"uuid" in said or OLD_NAMES[1] in said
        names = OLD_NAMES if is_old else NEW_NAMES
        there = said.get(names[1], b"") != b""
        holders = self._holders_of(said)
        pod = single_pod(holders)
        if pod is not None:
            return _made([_with(labels, names, pod)], has_pod=True)
        if not holders or (b"vgpu" in said and there):
            return _as_it_is(text, labels)
        if self._copied:
            return _made([_with(labels, names, holder) for holder in holders], has_pod=True)
        return _made([_without_pod(labels)], has_pod=False)

    def _holders_of(self, said: dict[bytes, bytes]) -> tuple[HolderLabels, ...]:
        found = {holder for uuid in self._devices.find(said) for holder in self._holders.get(uuid, ())}
        return tuple(sorted(found))


class Devices:
    """Which device of this host a label block names."""

    def __init__(self, devices: Sequence[Device]) -> None:
        gpus = [device for device in devices if not device.parent_uuid]
        self._uuids = {device.uuid.encode() for device in devices}
        self._by_bus = {_bus(device.pci_bus_id.encode()): device.uuid.encode() for device in gpus if device.pci_bus_id}
        # dcgm-exporter writes its own number of the GPU here, others the one of /dev/nvidiaN: only where they agree.
        self._by_number = {b"nvidia%d" % gpu.index: gpu.uuid.encode() for gpu in gpus if gpu.minor == gpu.index}
        self._instances: dict[tuple[bytes, bytes], list[str]] = {}
        for device in devices:
            if device.parent_uuid and device.gpu_instance_id is not None:
                key = (device.parent_uuid.encode(), b"%d" % device.gpu_instance_id)
                self._instances.setdefault(key, []).append(device.uuid)

    def find(self, said: dict[bytes, bytes]) -> list[str]:
        """The uuids of a GPU, or of the compute instances of a GPU instance; none when it is not of this host."""
        uuid = next((said[label] for label in UUIDS if said.get(label)), b"")
        if not uuid:
            uuid = self._by_bus.get(_bus(said.get(b"pci_bus_id", b"")), b"")
            uuid = uuid or self._by_number.get(said.get(b"device", b""), b"")
        if instance := said.get(b"GPU_I_ID"):
            return self._instances.get((uuid, instance), [])
        return [uuid.decode()] if uuid in self._uuids else []


def _bus(text: bytes) -> bytes:
    """Without the zeros of the domain, of which some write four and some eight."""
    found = BUS_ID.fullmatch(text)
    return b"%b:%b" % (found[1].lstrip(b"0"), found[2].lower()) if found else b"-"


def _with(labels: Pairs, names: tuple[bytes, ...], holder: HolderLabels) -> Pairs:
    """The labels with this holder instead of whoever is there."""
    ours = [(name, escape(value).encode()) for name, value in zip(names, holder, strict=False)]
    said = dict(labels)
    is_other = any(said.get(name, value) not in (b"", value) for name, value in ours[:2])
    dropped = MINE | {OF_POD} if is_other else MINE
    return [pair for pair in labels if pair[0] not in dropped] + [pair for pair in ours if pair[1]]


def _without_pod(labels: Pairs) -> Pairs:
    return [pair for pair in labels if pair[0] not in MINE and pair[0] != OF_POD]


def _as_it_is(text: bytes | None, labels: Pairs) -> Block:
    has_pod = any(name in (NEW_NAMES[1], OLD_NAMES[1]) and value for name, value in labels)
    return Block((b"" if text is None else b"{%b}" % text,), (_key(labels),), has_pod)


def _made(copies: list[Pairs], *, has_pod: bool) -> Block:
    texts = tuple(b"{%b}" % b",".join([b'%b="%b"' % pair for pair in labels]) for labels in copies)
    return Block(texts, tuple(_key(labels) for labels in copies), has_pod)


def _key(labels: Pairs) -> int:
    """An empty label is none to Prometheus. Text alone would not do: the order of labels may differ."""
    return hash(frozenset(pair for pair in labels if pair[1]))
