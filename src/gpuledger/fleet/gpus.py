"""From the series of several answers to what is known of each GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuledger.fleet.answer import Series
from gpuledger.fleet.in_use import Gpu, Holder, Key
from gpuledger.fleet.queries import ABOUT_HOLDERS

NO_LABELS: Mapping[str, str] = {}


def identity(labels: Mapping[str, str]) -> str:
    """Which GPU a series speaks of: its UUID, and the instance of it; else all labels, so each series is one."""
    uuid = labels.get("uuid") or labels.get("UUID")
    if uuid:
        instance = labels.get("GPU_I_ID")
        return f"{uuid}/{instance}" if instance else uuid
    return repr(sorted([item for item in labels.items() if item[0] != "__name__"]))


class Join:
    """Every GPU with a utilization. Of several series of one GPU the highest counts; other answers only add to it.

    `wanted` are the labels to keep. Answers are added one at a time, by the names in Queries and utilization first, so
    that only one of them is held: each is 30 MB in a cluster of 80,000 GPUs.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self._wanted = tuple(sorted(set(wanted)))
        self._held = tuple(sorted(ABOUT_HOLDERS & set(self._wanted)))
        self._gpus: dict[str, Gpu] = {}
        self._known: dict[Key, Mapping[str, str]] = {}
        self._add = {
            "utilization": self._utilization,
            "memory": self._memory,
            "allocated": self._allocated,
            "resident": self._resident,
            "residents": self._residents,
            "info": self._info,
        }

    @property
    def gpus(self) -> Iterable[Gpu]:
        """All of them."""
        return self._gpus.values()

    def add(self, name: str, series: Iterable[Series]) -> None:
        """One answer."""
        self._add[name](series)

    def _utilization(self, series: Iterable[Series]) -> None:
        for labels, value in series:
            which = identity(labels)
            if (gpu := self._gpus.get(which)) is None:
                gpu = self._gpus[which] = Gpu(self._shared(labels, self._wanted), value)
            gpu.utilization = max(gpu.utilization, value)
            if (holder := self._holder(gpu, labels)) is not None:
                holder.utilization = _larger(holder.utilization, value)

    def _memory(self, series: Iterable[Series]) -> None:
        for gpu, holder, value in self._found(series):
            gpu.memory = _larger(gpu.memory, value)
            if holder is not None:
                holder.memory = _larger(holder.memory, value)

    def _allocated(self, series: Iterable[Series]) -> None:
        for gpu, holder, value in self._found(series):
            gpu.allocated = gpu.allocated or value > 0
            if holder is not None:
                holder.allocated = holder.allocated or value > 0

    def _resident(self, series: Iterable[Series]) -> None:
        for gpu, holder, value in self._found(series):
            gpu.resident = max(gpu.resident, value)
            if holder is not None:
                holder.resident = holder.resident or value > 0

    def _residents(self, series: Iterable[Series]) -> None:
        for _, holder, value in self._found(series):
            if holder is not None:
                holder.resident = holder.resident or value > 0

    def _info(self, series: Iterable[Series]) -> None:
        for labels, _ in series:
            if (gpu := self._gpus.get(identity(labels))) is not None:
                gpu.labels = self._shared({**labels, **gpu.labels}, self._wanted)

    def _found(self, series: Iterable[Series]) -> Iterator[tuple[Gpu, Holder | None, float]]:
        """The GPU of each series, and whom the series names on it."""
        for labels, value in series:
            if (gpu := self._gpus.get(identity(labels))) is not None:
                yield gpu, self._holder(gpu, labels), value

    def _holder(self, gpu: Gpu, labels: Mapping[str, str]) -> Holder | None:
        """Whom the labels of a series name; None when nobody."""
        who = self._shared(labels, self._held)
        if not who:
            return None
        if gpu.holders is None:
            gpu.holders = []
        for holder in gpu.holders:
            if holder.labels is who:
                return holder
        gpu.holders.append(Holder(who))
        return gpu.holders[-1]

    def _shared(self, labels: Mapping[str, str], names: Key) -> Mapping[str, str]:
        """Those of these labels that have a value; one mapping for all who have the same."""
        key = tuple([text for name in names if (value := labels.get(name)) for text in (name, value)])
        if not key:
            return NO_LABELS
        if (known := self._known.get(key)) is None:
            known = self._known[key] = dict(zip(key[::2], key[1::2], strict=True))
        return known


def _larger(before: float | None, now: float) -> float:
    return now if before is None else max(before, now)
