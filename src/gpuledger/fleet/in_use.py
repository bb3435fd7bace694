"""How busy the GPUs in use are, and how many there are: over the whole cluster, and by any labels. Pure.

A mean over all GPUs says 30 % when two of four work at 80 % and 40 %, and an autoscaler takes from those who need more.
Here it is the sum of utilization over the GPUs in use, divided by their number: 60 %.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from operator import attrgetter
from typing import NamedTuple

RULES = ("busy", "allocated", "resident")
"""When a GPU is in use: its utilization is not 0; somebody was given it; some process is on it."""
CLUSTER = "cluster"
SOURCES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "modelName", "name"),
    "node": ("node", "Hostname", "hostname", "instance"),
}
"""What exporters call a label that users know under one name."""
Key = tuple[str, ...]
Who = tuple[str | None, ...]
"""Values of the labels that say who: a mapping for each of 80,000 pods would be 20 MB."""
KEY = attrgetter("key")
Sources = tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Holder:
    """Somebody who is on a GPU or was given it."""

    who: Who
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
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Of the GPUs of one group, or of all."""

    by: str
    labels: Key
    """Values of the grouping's labels."""
    gpus: int
    in_use: int
    allocated: int | None
    """None where nobody says what was given to whom."""
    utilization: float
    """Mean over those in use; 0 when none is."""
    memory: float | None
    """None when of no GPU in use it is known; 0 when none is in use."""

    @property
    def idle(self) -> int:
        """Those not in use."""
        return self.gpus - self.in_use


class Row(NamedTuple):
    """A GPU as one of its groups sees it."""

    key: Key
    utilization: float
    memory: float | None
    weight: float
    """How much of it is in use."""
    allocated: bool


def summarize(gpus: Collection[Gpu], rule: str, groupings: Sequence[Key], held: Key) -> Iterator[Usage]:
    """The whole cluster first, then each grouping by the values of its labels.

    `held` are the labels that say who holds a GPU: grouped by one of them, a GPU counts once with each holder, and is
    in use there when it is by that holder. A GPU without a value for one of the labels is in no group.
    """
    yield _usage(CLUSTER, (), [_row((), gpu, rule) for gpu in gpus])
    for grouping in groupings:
        sources = sources_of(grouping)
        if set(held).isdisjoint(grouping):
            rows = [_row(key, gpu, rule) for gpu in gpus if all(key := _key(sources, gpu.labels))]
        else:
            rows = [row for gpu in gpus if gpu.holders for row in _held(gpu, rule, sources, held)]
        rows.sort(key=KEY)
        for key, some in groupby(rows, KEY):
            yield _usage("+".join(grouping), key, list(some))


def _usage(by: str, key: Key, rows: list[Row]) -> Usage:
    """Sums are exact, so that the order of GPUs does not matter."""
    used = [row for row in rows if row.weight > 0]
    utilization, memory = 0.0, None if used else 0.0
    if used:
        utilization = fsum([row.utilization for row in used]) / fsum([row.weight for row in used])
        if known := [(row.memory, row.weight) for row in used if row.memory is not None]:
            memory = fsum([value for value, _ in known]) / fsum([weight for _, weight in known])
    return Usage(by, key, len(rows), len(used), sum([row.allocated for row in rows]), utilization, memory)


def _row(key: Key, gpu: Gpu, rule: str) -> Row:
    weight = _weight(rule, gpu.utilization, gpu.resident, allocated=gpu.allocated)
    return Row(key, gpu.utilization, gpu.memory, weight, gpu.allocated)


def sources_of(grouping: Key) -> Sources:
    """The labels that each label of a grouping may be found under, the best first."""
    return tuple([SOURCES.get(name, (name,)) for name in grouping])


def _weight(rule: str, utilization: float, resident: float, *, allocated: bool) -> float:
    if rule == "busy":
        return float(utilization > 0)
    return float(allocated) if rule == "allocated" else resident


def _held(gpu: Gpu, rule: str, sources: Sources, held: Key) -> Iterator[Row]:
    """The GPU as each group of its holders sees it."""
    seen: dict[Key, list[Holder]] = {}
    for holder in gpu.holders:
        if all(key := _key(sources, {**gpu.labels, **dict(zip(held, holder.who, strict=True))})):
            seen.setdefault(key, []).append(holder)
    for key, holders in seen.items():
        own = [h.utilization for h in holders if h.utilization is not None]
        memories = [h.memory for h in holders if h.memory is not None]
        utilization = max(own) if own else gpu.utilization
        memory = max(memories) if memories else gpu.memory
        allocated = True in [h.allocated for h in holders]
        resident = gpu.resident if True in [h.resident for h in holders] else 0.0
        weight = _weight(rule, utilization, resident, allocated=allocated)
        yield Row(key, utilization, memory, weight, allocated)


def _key(sources: Sources, labels: Mapping[str, str | None]) -> Key:
    """For each label of a grouping, the first value there is."""
    return tuple([next(filter(None, map(labels.get, names)), "") for names in sources])
