"""The capacity that pods consume of shared devices, from their ResourceClaims (Dynamic Resource Allocation).

A claim names its devices once, when it is allocated. So each claim of a pod is read once, and again only until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpuledger.errors import AnswerError, ProviderError
from gpuledger.net.address import quoted
from gpuledger.net.jsonvalues import as_dict, as_dicts, as_text
from gpuledger.owners.names import DeviceShare
from gpuledger.owners.providers.kubepods import read_json

MOST_CLAIMS = 64
"""On one node, as many as GPUs and MIG instances."""
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
         "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}  # fmt: skip
QUANTITY = re.compile("([0-9]{1,15})(|[kMGT]|[KMGT]i)")
MEMORY, CORES = "memory", "cores"
"""Capacities of drivers that share GPUs; cores are percent."""

Capacities = Mapping[tuple[str, str, str], DeviceShare]
"""By namespace and name of the claim, and device."""


class Claims:
    """The claims of the pods of one node. `read` requests a path of the API server."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._known: dict[tuple[str, str], Capacities | None] = {}
        """By namespace and name; None if the claim is not allocated yet or cannot be read."""

    def of(self, claims: Iterable[tuple[str, str]]) -> dict[tuple[str, str, str], DeviceShare]:
        """The capacities of these claims. One that cannot be read has none: allocations are known without it."""
        self._known = {claim: self._known.get(claim) for claim in sorted(claims)[:MOST_CLAIMS]}
        for (namespace, name), known in self._known.items():
            if known is None:
                path = f"/apis/resource.k8s.io/v1/namespaces/{quoted(namespace)}/resourceclaims/{quoted(name)}"
                try:
                    self._known[namespace, name] = capacities(namespace, name, read_json(self._read(path)))
                except (ProviderError, AnswerError):
                    break  # the others would fail as well
        return {key: share for known in self._known.values() for key, share in (known or {}).items()}


def capacities(namespace: str, name: str, claim: Mapping[str, object]) -> Capacities | None:
    """The consumed capacity of each device; None if the claim is not allocated."""
    devices = as_dict(as_dict(as_dict(claim.get("status")).get("allocation")).get("devices"))
    results = list(as_dicts(devices.get("results")))
    return dict(_shares(namespace, name, results)) if results else None


def _shares(
    namespace: str, name: str, results: Iterable[Mapping[str, object]]
) -> Iterator[tuple[tuple[str, str, str], DeviceShare]]:
    for result in results:
        consumed = as_dict(result.get("consumedCapacity"))
        memory_bytes, cores = quantity(as_text(consumed.get(MEMORY))), quantity(as_text(consumed.get(CORES)))
        compute = cores / 100 if cores and cores <= 100 else None
        if memory_bytes or compute:
            share = DeviceShare("", source="dra", compute=compute, memory_bytes=memory_bytes)
            yield (namespace, name, as_text(result.get("device"))), share


def quantity(text: str) -> int | None:
    """A Kubernetes quantity of whole units; None for another text."""
    match = QUANTITY.fullmatch(text)
    return int(match[1]) * UNITS[match[2]] if match else None
