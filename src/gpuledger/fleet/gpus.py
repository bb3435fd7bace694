"""From the series of several answers to what is known of each GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from gpuledger.fleet.answer import Series
from gpuledger.fleet.in_use import Gpu, Holder, Key
from gpuledger.fleet.queries import ABOUT_HOLDERS

Some = Iterable[Series]


@dataclass(frozen=True, slots=True)
class Answers:
    """Series by what was asked; see Queries."""

    utilization: Some
    memory: Some = ()
    allocated: Some = ()
    resident: Some = ()
    residents: Some = ()
    info: Some = ()


def identity(labels: Mapping[str, str]) -> Key:
    """Which GPU a series speaks of: its UUID, and the instance of it; else all labels, so each series is one."""
    uuid = labels.get("uuid") or labels.get("UUID")
    if uuid:
        return uuid, labels.get("GPU_I_ID", "")
    return tuple([text for item in sorted(labels.items()) if item[0] != "__name__" for text in item])


def join(said: Answers) -> list[Gpu]:
    """Every GPU with a utilization. Of several series of one GPU the highest counts; other answers only add to it."""
    gpus: dict[Key, Gpu] = {}
    for labels, value in said.utilization:
        gpus.setdefault(identity(labels), Gpu(labels, value))
    for gpu, holder, value in _found(gpus, said.utilization):
        gpu.utilization = max(gpu.utilization, value)
        if holder is not None:
            holder.utilization = _larger(holder.utilization, value)
    for gpu, holder, value in _found(gpus, said.memory):
        gpu.memory = _larger(gpu.memory, value)
        if holder is not None:
            holder.memory = _larger(holder.memory, value)
    _hold(gpus, said)
    for labels, _ in said.info:
        if (described := gpus.get(identity(labels))) is not None:
            described.labels = {**labels, **described.labels}
    return list(gpus.values())


def _hold(gpus: Mapping[Key, Gpu], said: Answers) -> None:
    for gpu, holder, value in _found(gpus, said.allocated):
        gpu.allocated = gpu.allocated or value > 0
        if holder is not None:
            holder.allocated = holder.allocated or value > 0
    for gpu, _, value in _found(gpus, said.resident):
        gpu.resident = max(gpu.resident, value)
    for _, holder, value in _found(gpus, chain(said.resident, said.residents)):
        if holder is not None:
            holder.resident = holder.resident or value > 0


def _found(gpus: Mapping[Key, Gpu], series: Some) -> Iterator[tuple[Gpu, Holder | None, float]]:
    """The GPU of each series, and whom the series names on it."""
    for labels, value in series:
        if (gpu := gpus.get(identity(labels))) is not None:
            yield gpu, _holder(gpu, labels), value


def _holder(gpu: Gpu, labels: Mapping[str, str]) -> Holder | None:
    """Whom the labels of a series name; None when nobody."""
    named = {name: value for name, value in labels.items() if value and name in ABOUT_HOLDERS}
    if not named:
        return None
    if gpu.holders is None:
        gpu.holders = {}
    return gpu.holders.setdefault(tuple(sorted([f"{name}={value}" for name, value in named.items()])), Holder(named))


def _larger(before: float | None, now: float) -> float:
    return now if before is None else max(before, now)
