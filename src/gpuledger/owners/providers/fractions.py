"""The parts of GPUs that KAI Scheduler, Run:ai, HAMi and Volcano gave to a pod, from its labels and annotations.

The kubelet does not know them. The author of a pod can write the same text: `Fractions` decides whether it counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuledger.owners.kernel import devices
from gpuledger.owners.names import DeviceShare

GROUP = "runai-gpu-group"
"""Label of KAI Scheduler and Run:ai with the group; a pod on several GPUs has a label GROUP/NAME for each."""
FRACTION, MEMORY = "gpu-fraction", "gpu-memory"
COUNT, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
"""Their annotations: part of each GPU, or MiB of it; number of GPUs; and the container, else the first one."""
DEVICES = {"hami": "hami.io/vgpu-devices-allocated", "volcano": "volcano.sh/vgpu-ids-new"}
"""Annotations of HAMi and Volcano: `uuid,type,MiB,percent:` for each GPU, and `;` after each container."""
NUMBER, PART = re.compile("[0-9]{1,9}"), re.compile(r"0?\.[0-9]{1,30}|[01](?:\.0{0,30})?")
INSTANCE = re.compile(r"\[[0-9]{1,9}-[0-9]{1,9}\]")
"""What HAMi appends to the uuid of a GPU with MIG: a profile and its place."""
NO_DEVICE = ("", ",,0,0")
"""What HAMi writes for a container without a GPU."""
MIB = 1 << 20
MOST_SHARES = 64
"""A node has 16 GPUs at most."""


class MalformedError(ValueError):
    """A text that no scheduler writes."""


def device_shares(
    labels: Mapping[str, str], annotations: Mapping[str, str], containers: Sequence[str]
) -> tuple[tuple[DeviceShare, ...], str]:
    """The parts of GPUs that the pod has, and what is wrong with its annotations; empty if nothing is."""
    groups = sorted({value for label, value in labels.items() if label.partition("/")[0] == GROUP and value})
    sources = [source for source, name in DEVICES.items() if annotations.get(name)]
    if len(sources) + bool(groups) > 1:
        return (), f"has annotations of several schedulers: {', '.join((['kai'] if groups else []) + sources)}"
    shares = [DeviceShare(annotations.get(CONTAINER) or next(iter(containers), ""), group=group) for group in groups]
    problem = ""
    try:
        if sources:
            shares = _listed(sources[0], annotations, containers)
        elif groups:
            compute, memory_bytes = _of_kai(annotations, len(groups))
            source = "" if compute is memory_bytes is None else "kai"
            shares = [replace(share, source=source, compute=compute, memory_bytes=memory_bytes) for share in shares]
    except MalformedError as error:
        problem = str(error)
    return tuple(shares[:MOST_SHARES]), problem


def _of_kai(annotations: Mapping[str, str], groups: int) -> tuple[float | None, int | None]:
    """Part of the GPU, or bytes of its memory; both None for a pod that only reserves a GPU."""
    fraction, memory, count = (annotations.get(name) for name in (FRACTION, MEMORY, COUNT))
    if fraction is not None and memory is not None:
        raise MalformedError(f"has both annotations, {FRACTION} and {MEMORY}")
    if count is not None and count != str(groups):
        raise MalformedError(f"has {COUNT} {count[:20]!r}, but {groups} labels {GROUP}")
    if fraction is not None:
        if not PART.fullmatch(fraction) or not 0 < float(fraction) <= 1:
            raise MalformedError(f"has {FRACTION} {fraction[:20]!r}, which is no number above 0 and at most 1")
        return float(fraction), None
    return None, None if memory is None else _number(memory, MEMORY) * MIB


def _listed(source: str, annotations: Mapping[str, str], containers: Sequence[str]) -> list[DeviceShare]:
    """The shares in an annotation of HAMi or Volcano."""
    name = DEVICES[source]
    shares = []
    texts = annotations[name].rstrip(";").split(";")
    if len(texts) > len(containers):
        raise MalformedError(f"has {name} for {len(texts)} containers instead of {len(containers)}")
    for container, text in zip(containers, texts, strict=False):
        for entry in (entry for entry in text.split(":") if entry not in NO_DEVICE):
            fields = entry.split(",")
            ref = devices.parse(INSTANCE.sub("", fields[0]))
            if len(fields) < 4 or ref.kind not in ("gpu-uuid", "mig-uuid") or ref.replica is not None:
                raise MalformedError(f"has {name} with {entry[:60]!r} instead of uuid,type,MiB,percent")
            memory, cores = _number(fields[2], name), _number(fields[3], name)
            if cores > 100:
                raise MalformedError(f"has {name} with {cores} percent")
            shares.append(
                DeviceShare(container, ref.uuid or "", "", source, cores / 100 if cores else None, memory * MIB or None)
            )
    return shares


def _number(text: str, name: str) -> int:
    if not NUMBER.fullmatch(text):
        raise MalformedError(f"has {name} with {text[:20]!r} instead of a number")
    return int(text)
