"""How busy the GPUs in use are, and how many there are: over the whole cluster, and by any labels. Pure.

A mean over all GPUs says 30 % when two of four work at 80 % and 40 %, and an autoscaler takes from those who need more.
Here it is the sum of utilization over the GPUs in use, divided by their number: 60 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

RULES = ("busy", "allocated", "resident")
"""When a GPU is in use: its utilization is not 0; somebody was given it; some process is on it."""
CLUSTER = "cluster"
SOURCES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "modelName", "name"),
    "node": ("node", "Hostname", "hostname", "instance"),
}
"""What exporters call a label that users know under one name."""
Key = tuple[str, ...]
Sources = tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Holder:
    """Somebody who is on a GPU or was given it, by the labels that say who."""

    labels: Mapping[str, str]
    utilization: float | None = None
    """Of the GPU in this holder's series, where the query has one a holder."""
    memory: float | None = None
    allocated: bool = False
    resident: bool = False


@dataclass(slots=True)
class Gpu:
    """What is known of one GPU. Utilizations are in the unit of the query."""

    labels: Mapping[str, str]
    utilization: float
    memory: float | None = None
    allocated: bool = False
    resident: float = 0.0
    """1 with a process on it, else 0; or over a time, the part of it with a process."""
    holders: list[Holder] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the GPUs of one group, or of all."""

    by: str
    labels: Key
    """Values of the grouping's labels."""
    gpus: int
    in_use: int
    allocated: int
    utilization: float
    """Mean over those in use; 0 when none is."""
    memory: float | None
    """None when of no GPU in use it is known; 0 when none is in use."""

    @property
    def idle(self) -> int:
        """Those not in use."""
        return self.gpus - self.in_use


@dataclass(slots=True)
class _Tally:
    gpus: int = 0
    allocated: int = 0
    utilizations: list[float] = field(default_factory=list)
    memories: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    memory_weights: list[float] = field(default_factory=list)

    def add(self, utilization: float, memory: float | None, weight: float, *, allocated: bool) -> None:
        self.gpus += 1
        self.allocated += allocated
        if weight > 0:
            self.utilizations.append(utilization)
            self.weights.append(weight)
            if memory is not None:
                self.memories.append(memory)
                self.memory_weights.append(weight)

    def usage(self, by: str, labels: Key) -> Usage:
        in_use = len(self.weights)
        memory = fsum(self.memories) / fsum(self.memory_weights) if self.memories else None if in_use else 0.0
        mean = fsum(self.utilizations) / fsum(self.weights) if in_use else 0.0
        return Usage(by, labels, self.gpus, in_use, self.allocated, mean, memory)


def summarize(gpus: Iterable[Gpu], rule: str, groupings: Sequence[Key], about_holders: frozenset[str]) -> list[Usage]:
    """The whole cluster first, then each grouping by the values of its labels.

    `about_holders` are the labels that say who holds a GPU: grouped by one of them, a GPU counts once with each holder,
    and is in use there when it is by that holder. A GPU without a value for one of the labels is in no group.
    """
    whole = _Tally()
    groups: list[tuple[Sources, bool, dict[Key, _Tally]]] = [
        (sources_of(grouping), not about_holders.isdisjoint(grouping), {}) for grouping in groupings
    ]
    for gpu in gpus:
        weight = _weight(rule, gpu.utilization, gpu.resident, allocated=gpu.allocated)
        whole.add(gpu.utilization, gpu.memory, weight, allocated=gpu.allocated)
        for sources, held, tallies in groups:
            if held:
                _add_holders(gpu, rule, sources, tallies)
            elif all(key := _key(sources, gpu.labels, gpu.labels)):
                tallies.setdefault(key, _Tally()).add(gpu.utilization, gpu.memory, weight, allocated=gpu.allocated)
    found = [whole.usage(CLUSTER, ())]
    for grouping, (_, _, tallies) in zip(groupings, groups, strict=True):
        found += [tallies[key].usage("+".join(grouping), key) for key in sorted(tallies)]
    return found


def sources_of(grouping: Key) -> Sources:
    """The labels that each label of a grouping may be found under, the best first."""
    return tuple([SOURCES.get(name, (name,)) for name in grouping])


def _weight(rule: str, utilization: float, resident: float, *, allocated: bool) -> float:
    if rule == "busy":
        return float(utilization > 0)
    return float(allocated) if rule == "allocated" else resident


def _add_holders(gpu: Gpu, rule: str, sources: Sources, tallies: dict[Key, _Tally]) -> None:
    """The GPU as each group of its holders sees it."""
    seen: dict[Key, list[Holder]] = {}
    for holder in gpu.holders or ():
        key = _key(sources, holder.labels, gpu.labels)
        if all(key):
            seen.setdefault(key, []).append(holder)
    for key, holders in seen.items():
        own = [h.utilization for h in holders if h.utilization is not None]
        memories = [h.memory for h in holders if h.memory is not None]
        utilization = max(own) if own else gpu.utilization
        memory = max(memories) if memories else gpu.memory
        allocated = any(h.allocated for h in holders)
        resident = gpu.resident if any(h.resident for h in holders) else 0.0
        weight = _weight(rule, utilization, resident, allocated=allocated)
        tallies.setdefault(key, _Tally()).add(utilization, memory, weight, allocated=allocated)


def _key(sources: Sources, labels: Mapping[str, str], others: Mapping[str, str]) -> Key:
    """Values of the first mapping that has them."""
    return tuple([_value(names, labels) or _value(names, others) for names in sources])


def _value(names: tuple[str, ...], labels: Mapping[str, str]) -> str:
    for name in names:
        if found := labels.get(name):
            return found
    return ""
