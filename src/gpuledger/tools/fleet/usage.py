"""Utilization and number of the GPUs in use, for the whole cluster and by label. Pure.

If two of four GPUs work at 80 % and 40 %, the mean over all GPUs is 30 %, and an autoscaler would remove GPUs that are
needed. Here the sum of utilization is divided by the number of GPUs in use: 60 %.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from operator import attrgetter
from typing import NamedTuple

from gpuledger.model.in_use import in_use
from gpuledger.tools.prometheus.stream import GpuId, GpuSample

CLUSTER = "cluster"
SOURCES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "modelName", "name"),
    "node": ("node", "Hostname", "hostname", "instance"),
}
"""The labels of different exporters for one name."""
Key = tuple[str, ...]
LabelValues = tuple[str | None, ...]
"""Values of the holder labels; a mapping per holder would take 20 MB for 80,000 pods."""
KEY = attrgetter("key")
Sources = tuple[tuple[str, ...], ...]
HOLDER_LABELS = frozenset((
    "namespace", "pod", "container", "pod_uid", "container_id", "batch_job",
    "exported_namespace", "exported_pod", "exported_container",
))  # fmt: skip
"""Labels of a GPU's holder. On series without a holder, these are labels of the exporter's own pod."""


@dataclass(slots=True)
class GpuHolder:
    """An owner with a process on a GPU, or with an allocation of it."""

    label_values: LabelValues
    utilization: float | None = None
    """Utilization in this holder's series, if the query returns one series per holder."""
    memory: float | None = None
    allocated: bool = False
    resident: float = 0.0


@dataclass(slots=True)
class Gpu:
    """One GPU. Utilizations are in the unit of the query."""

    labels: Mapping[str, str]
    utilization: float
    memory: float | None = None
    allocated: bool = False
    resident: float = 0.0
    """1 if a process is on it; over a window, the share of time with a process."""
    holders: tuple[GpuHolder, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of the GPUs of one group, or of all GPUs."""

    by: str
    labels: Key
    """Values of the grouping's labels."""
    gpus: int
    in_use: int
    allocated: int | None
    """None if no exporter reports allocations."""
    utilization: float
    """Mean over the GPUs in use; 0 if there are none."""
    memory: float | None
    """Mean over the GPUs in use; None if unknown for all of them; 0 if there are none."""

    @property
    def idle(self) -> int:
        """GPUs that are not in use."""
        return self.gpus - self.in_use


class Member(NamedTuple):
    """A GPU as a member of one group."""

    key: Key
    utilization: float
    memory: float | None
    weight: float
    """The share of the GPU that is in use."""
    allocated: bool


def summarize(gpus: Collection[Gpu], rule: str, groupings: Sequence[Key], held: Key) -> Iterator[Usage]:
    """The usage of the whole cluster, then of each group of each grouping.

    `held` are the holder labels: grouped by one of them, a GPU counts once for each holder, and is in use there if that
    holder uses it. A GPU without a value for one of the labels is in no group.
    """
    yield _usage(CLUSTER, (), [_member((), gpu, rule) for gpu in gpus])
    for grouping in groupings:
        sources = sources_of(grouping)
        if set(held).isdisjoint(grouping):
            rows = [_member(key, gpu, rule) for gpu in gpus if all(key := _key(sources, gpu.labels))]
        else:
            rows = [row for gpu in gpus if gpu.holders for row in _held(gpu, rule, sources, held)]
        rows.sort(key=KEY)
        for key, members in groupby(rows, KEY):
            yield _usage("+".join(grouping), key, list(members))


def _usage(by: str, key: Key, rows: list[Member]) -> Usage:
    """Uses exact sums, so that the result does not depend on the order of GPUs."""
    used = [row for row in rows if row.weight > 0]
    utilization, memory = 0.0, None if used else 0.0
    if used:
        utilization = fsum([row.utilization for row in used]) / fsum([row.weight for row in used])
        if known := [(row.memory, row.weight) for row in used if row.memory is not None]:
            memory = fsum([value for value, _ in known]) / fsum([weight for _, weight in known])
    return Usage(
        by=by,
        labels=key,
        gpus=len(rows),
        in_use=len(used),
        allocated=sum([row.allocated for row in rows]),
        utilization=utilization,
        memory=memory,
    )


def _member(key: Key, gpu: Gpu, rule: str) -> Member:
    weight = in_use(rule, gpu.utilization, gpu.resident, allocated=gpu.allocated)
    return Member(key, gpu.utilization, gpu.memory, weight, gpu.allocated)


def sources_of(grouping: Key) -> Sources:
    """The possible source labels of each label of a grouping, in order of preference."""
    return tuple([SOURCES.get(name, (name,)) for name in grouping])


def _held(gpu: Gpu, rule: str, sources: Sources, held: Key) -> Iterator[Member]:
    """The GPU as a member of each group of its holders."""
    groups: dict[Key, list[GpuHolder]] = {}
    for holder in gpu.holders:
        if all(key := _key(sources, {**gpu.labels, **dict(zip(held, holder.label_values, strict=True))})):
            groups.setdefault(key, []).append(holder)
    for key, holders in groups.items():
        own = [h.utilization for h in holders if h.utilization is not None]
        memories = [h.memory for h in holders if h.memory is not None]
        utilization = max(own) if own else gpu.utilization
        memory = max(memories) if memories else gpu.memory
        allocated = True in [h.allocated for h in holders]
        resident = gpu.resident if any(h.resident > 0 for h in holders) else 0.0
        weight = in_use(rule, utilization, resident, allocated=allocated)
        yield Member(key, utilization, memory, weight, allocated)


def _key(sources: Sources, labels: Mapping[str, str | None]) -> Key:
    """For each label of a grouping, the first source label that has a value."""
    return tuple([next(filter(None, map(labels.get, names)), "") for names in sources])


class GpuJoin:
    """Joins the results of several queries by GPU. Only GPUs with a utilization count; of several series, the highest.

    `wanted` are the labels to keep. Results are added in parts, by the names in FleetQueries, utilization first.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        names = set(wanted)
        self.held = tuple(sorted(names & HOLDER_LABELS))
        """The holder labels, in the order of GpuHolder.label_values."""
        self._about = tuple(sorted(names - HOLDER_LABELS))
        self._by_uuid = "uuid" in names
        self._gpus: dict[GpuId, Gpu] = {}
        self._labels: dict[LabelValues, Mapping[str, str]] = {}
        self._label_values: dict[LabelValues, LabelValues] = {(None,) * len(self.held): ()}

    @property
    def gpus(self) -> Collection[Gpu]:
        """All GPUs."""
        return self._gpus.values()

    def add(self, name: str, samples: Iterable[GpuSample]) -> None:
        """Add samples of the query `name`."""
        for gpu_id, labels, value in samples:
            gpu = self._gpus.get(gpu_id)
            if gpu is None and name == "utilization":
                known = {"uuid": gpu_id, **labels} if self._by_uuid and isinstance(gpu_id, str) else labels
                gpu = self._gpus[gpu_id] = Gpu(self._shared(known), value)
            if gpu is None:
                continue
            if name == "info":
                gpu.labels = self._shared({**labels, **gpu.labels} if gpu.labels else labels)
                continue
            _update(gpu, name, value)
            if (holder := self._holder(gpu, labels)) is not None:
                _update(holder, "resident" if name == "residents" else name, value)

    def _holder(self, gpu: Gpu, labels: Mapping[str, str]) -> GpuHolder | None:
        """The holder in the labels of a series; None if there is none."""
        if not labels or not self.held:
            return None
        label_values = tuple(map(labels.get, self.held))
        if not (label_values := self._label_values.setdefault(label_values, label_values)):
            return None
        for holder in gpu.holders:
            if holder.label_values is label_values:
                return holder
        holder = GpuHolder(label_values)
        gpu.holders = (*gpu.holders, holder)
        return holder

    def _shared(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """The labels of the GPU itself, as one mapping shared by all GPUs with equal labels."""
        values = tuple(map(labels.get, self._about))
        if (shared := self._labels.get(values)) is None:
            shared = self._labels[values] = {name: v for name, v in zip(self._about, values, strict=True) if v}
        return shared


def _update(use: Gpu | GpuHolder, name: str, value: float) -> None:
    if name == "utilization":
        use.utilization = _larger(use.utilization, value)
    elif name == "memory":
        use.memory = _larger(use.memory, value)
    elif name == "allocated":
        use.allocated = use.allocated or value > 0
    elif name == "resident":
        use.resident = max(use.resident, value)


def _larger(before: float | None, now: float) -> float:
    return now if before is None else max(before, now)
