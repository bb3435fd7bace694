"""From the series of several answers to what is known of each GPU. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import ClassVar

from gpuledger.fleet.in_use import Gpu, Holder, Who
from gpuledger.fleet.queries import ABOUT_HOLDERS
from gpuledger.fleet.stream import Found, Which


class Join:
    """Every GPU with a utilization. Of several series of one GPU the highest counts; other answers only add to it.

    `wanted` are the labels to keep. Answers are added by the names in Queries, part by part, utilization first.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        names = set(wanted)
        self.held = tuple(sorted(names & ABOUT_HOLDERS))
        """The labels that say who, in the order of Holder.who."""
        self._about = tuple(sorted(names - ABOUT_HOLDERS))
        self._by_uuid = "uuid" in names
        self._gpus: dict[Which, Gpu] = {}
        self._labels: dict[Who, Mapping[str, str]] = {}
        self._who: dict[Who, Who] = {(None,) * len(self.held): ()}

    @property
    def gpus(self) -> Collection[Gpu]:
        """All of them."""
        return self._gpus.values()

    def add(self, name: str, series: Iterable[Found]) -> None:
        """A part of an answer."""
        self._ADD[name](self, series)

    def _utilization(self, series: Iterable[Found]) -> None:
        for which, labels, value in series:
            if (gpu := self._gpus.get(which)) is None:
                known = {"uuid": which, **labels} if self._by_uuid and isinstance(which, str) else labels
                gpu = self._gpus[which] = Gpu(self._shared(known), value)
            elif value > gpu.utilization:
                gpu.utilization = value
            if (holder := self._holder(gpu, labels)) is not None:
                holder.utilization = _larger(holder.utilization, value)

    def _memory(self, series: Iterable[Found]) -> None:
        for gpu, holder, value in self._found(series):
            gpu.memory = _larger(gpu.memory, value)
            if holder is not None:
                holder.memory = _larger(holder.memory, value)

    def _allocated(self, series: Iterable[Found]) -> None:
        for gpu, holder, value in self._found(series):
            if value > 0:
                gpu.allocated = True
                if holder is not None:
                    holder.allocated = True

    def _resident(self, series: Iterable[Found]) -> None:
        for gpu, holder, value in self._found(series):
            if value > 0:
                gpu.resident = max(gpu.resident, value)
                if holder is not None:
                    holder.resident = True

    def _residents(self, series: Iterable[Found]) -> None:
        for _, holder, value in self._found(series):
            if value > 0 and holder is not None:
                holder.resident = True

    def _info(self, series: Iterable[Found]) -> None:
        for which, labels, _ in series:
            if (gpu := self._gpus.get(which)) is not None:
                gpu.labels = self._shared({**labels, **gpu.labels} if gpu.labels else labels)

    _ADD: ClassVar[Mapping[str, Callable[[Join, Iterable[Found]], None]]] = {
        "utilization": _utilization,
        "memory": _memory,
        "allocated": _allocated,
        "resident": _resident,
        "residents": _residents,
        "info": _info,
    }  # of the class, so that a Join does not hold itself and is gone with its last use

    def _found(self, series: Iterable[Found]) -> Iterator[tuple[Gpu, Holder | None, float]]:
        """The GPU of each series, and whom the series names on it."""
        gpus = self._gpus
        for which, labels, value in series:
            if (gpu := gpus.get(which)) is not None:
                yield gpu, self._holder(gpu, labels), value

    def _holder(self, gpu: Gpu, labels: Mapping[str, str]) -> Holder | None:
        """Whom the labels of a series name; None when nobody."""
        if not labels or not self.held:
            return None
        who = tuple(map(labels.get, self.held))
        if not (who := self._who.setdefault(who, who)):
            return None
        for holder in gpu.holders:
            if holder.who is who:
                return holder
        holder = Holder(who)
        gpu.holders = (*gpu.holders, holder)
        return holder

    def _shared(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Those that say what the GPU is; one mapping for all that are the same."""
        values = tuple(map(labels.get, self._about))
        if (found := self._labels.get(values)) is None:
            found = self._labels[values] = {name: v for name, v in zip(self._about, values, strict=True) if v}
        return found


def _larger(before: float | None, now: float) -> float:
    return now if before is None else max(before, now)
