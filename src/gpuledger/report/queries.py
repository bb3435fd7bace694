"""All PromQL queries of a report for cells of one length, and the groupings of `--by`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from gpuledger.model import Owner
from gpuledger.report import promql
from gpuledger.report.promql import Counter

PROCESS = ("uuid", "pid", "process_name")
"""Labels that identify a process; without `instance`, which changes when the exporter's pod is replaced."""
CONTAINER = ("uuid", "container_id")
NAMED_CONTAINER = (*CONTAINER, "namespace", "pod", "container")
"""For gauges: a container that only the kubelet knows has no id."""
OUTSIDE = '{container_id=""}'
ALLOCATION = ("uuid", "namespace", "pod", "container", "container_id", "batch_job", "resource", "replica")


class Column(Enum):
    """A quantity of the report, in the unit of the query."""

    ENERGY = "joules"
    BUSY = "busy seconds"
    RESIDENT = "resident seconds"
    ALLOCATED = "allocated seconds"
    MEMORY = "byte-seconds"
    OBSERVED = "observed seconds"


class Part(Enum):
    """The part of the total that a query returns."""

    GROUP = "groups"
    ALL_GROUPS = "all groups together"
    """Queried if a series may be in no group because a join finds no labels for it."""
    OUTSIDE = "processes outside of containers"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    WHOLE = "all GPUs"


@dataclass(frozen=True, slots=True)
class Join:
    """Labels that are not on the series themselves but on another series of value 1."""

    info: str
    on: tuple[str, ...]
    labels: tuple[str, ...]

    def apply(self, vector: str, window: str) -> str:
        """The vector with the labels. If several series have labels for it, the first one counts."""
        on = ", ".join(self.on)
        info = f"max by ({on}, {', '.join(self.labels)}) (max_over_time({self.info}[{window}]))"
        return f"({vector}) * on ({on}) group_left ({', '.join(self.labels)}) topk by ({on}) (1, {info})"


@dataclass(frozen=True, slots=True)
class Grouping:
    """How series are grouped into rows."""

    name: str
    of: str
    """The series to group: containers, processes or gpus."""
    labels: tuple[str, ...]
    """Labels of the series themselves."""
    join: Join | None = None
    allocation_join: Join | None = None
    """The same join for allocations."""
    has_allocations: bool = True
    """Whether allocations have the labels of this grouping."""
    heads: tuple[str, ...] = ()
    """The names of the parts of a key."""

    @property
    def by(self) -> tuple[str, ...]:
        """All labels to group by."""
        return (*self.labels, *(self.join.labels if self.join else ()))

    def key(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The key of the row that a series belongs to."""
        values = [labels.get(name, "") for name in self.by]
        if self.name == "node":
            return (next(filter(None, values), ""),)
        if self.name == "user":
            return (values[0] or (f"uid {values[1]}" if values[1] else ""),)
        if self.name in ("pod", "container"):
            owner = Owner(
                namespace=labels.get("namespace", ""),
                pod=labels.get("pod", ""),
                container=labels.get("container", ""),
                pod_uid=labels.get("pod_uid", ""),
                container_id=labels.get("container_id", ""),
            )
            return owner.display_parts[: len(self.heads)]
        return tuple(values)


def _process_info(*labels: str) -> Join:
    return Join("gpu_process_info", PROCESS, labels)


def _workload(*on: str) -> Join:
    return Join("gpu_owner_info", on, ("workload_kind", "workload_name"))


_MODEL = Join('{__name__=~"gpu_info|gpu_mig_info"}', ("uuid",), ("name",))
GROUPINGS: Mapping[str, Grouping] = {
    grouping.name: grouping
    for grouping in (
        Grouping("namespace", "containers", ("namespace",), heads=("namespace",)),
        Grouping("pod", "containers", ("namespace", "pod", "pod_uid"), heads=("namespace", "pod")),
        Grouping("container", "containers", ("namespace", "pod", "container", "pod_uid", "container_id"),
                 heads=("namespace", "pod", "container")),
        Grouping("workload", "containers", ("namespace",), _workload("container_id"), _workload("namespace", "pod"),
                 heads=("namespace", "kind", "workload")),
        Grouping("user", "processes", (), _process_info("user", "uid"), has_allocations=False, heads=("user",)),
        Grouping("job", "processes", (), _process_info("batch_job"), heads=("job",)),
        Grouping("account", "processes", (), _process_info("batch_account"), has_allocations=False,
                 heads=("account",)),
        Grouping("node", "gpus", ("node", "hostname", "instance"), heads=("node",)),
        Grouping("model", "gpus", (), _MODEL, _MODEL, heads=("model",)),
    )
}  # fmt: skip
WHOLE = Grouping("whole", "gpus", ())
REASONS = Grouping("reason", "gpus", ("reason",))


@dataclass(frozen=True, slots=True)
class Query:
    """One query, whose series are parts of one column."""

    column: Column
    part: Part
    grouping: Grouping
    promql: str
    for_new_devices: bool = False
    """Whether the query is needed only if GPUs appeared in the cells."""


@dataclass(frozen=True, slots=True)
class Step:
    """The length of a cell, and the longest gap to bridge."""

    milliseconds: int
    gap_ms: int

    @property
    def text(self) -> str:
        """The step as a PromQL duration."""
        return f"{self.milliseconds}ms"

    @property
    def gap(self) -> str:
        """The gap as a PromQL duration."""
        return f"{self.gap_ms}ms"


def queries(grouping: Grouping, step: Step) -> Iterator[Query]:
    """All queries of a report."""
    yield from _energy(grouping, step)
    yield from _busy_and_resident(grouping, step)
    yield from _allocated_and_memory(grouping, step)


def _energy(grouping: Grouping, step: Step) -> Iterator[Query]:
    processes = Counter("gpu_process_energy_joules_total", (*PROCESS, "method"), may_hide=True)
    outside = Counter(f"gpu_process_energy_joules_total{OUTSIDE}", (*PROCESS, "method"), may_hide=True)
    containers = Counter("container_gpu_energy_joules_total", (*CONTAINER, "method"))
    counters = {"containers": [containers], "processes": [processes], "gpus": [containers, outside]}[grouping.of]
    for counter in counters:
        yield from _increases(Column.ENERGY, Part.GROUP, grouping, counter, step)
        if grouping.join:
            yield from _increases(Column.ENERGY, Part.ALL_GROUPS, WHOLE, counter, step)
    if grouping.of == "containers":
        yield from _increases(Column.ENERGY, Part.OUTSIDE, WHOLE, outside, step)
    idle = Counter("gpu_idle_energy_joules_total", ("uuid",))
    unattributed = Counter('gpu_unattributed_energy_joules_total{reason!="before"}', ("uuid", "reason"))
    yield from _increases(Column.ENERGY, Part.IDLE, WHOLE, idle, step)
    yield from _increases(Column.ENERGY, Part.UNATTRIBUTED, REASONS, unattributed, step)
    device = Counter("gpu_energy_joules_total", ("uuid",), of_hardware=True)
    yield from _increases(Column.ENERGY, Part.WHOLE, WHOLE, device, step)


def _busy_and_resident(grouping: Grouping, step: Step) -> Iterator[Query]:
    busy, in_use = Counter("gpu_busy_seconds_total", ("uuid",)), Counter("gpu_in_use_seconds_total", ("uuid",))
    yield from _increases(Column.BUSY, Part.WHOLE, WHOLE, busy, step)
    yield from _increases(Column.RESIDENT, Part.WHOLE, WHOLE, in_use, step)
    if grouping.of == "gpus":
        yield from _increases(Column.BUSY, Part.GROUP, grouping, busy, step)
        yield from _increases(Column.RESIDENT, Part.GROUP, grouping, in_use, step)
        return
    resident = promql.presence("gpu_process_active", step.milliseconds, PROCESS)
    if grouping.of == "processes":
        busy = Counter("gpu_process_busy_seconds_total", PROCESS, may_hide=True)
        yield from _increases(Column.BUSY, Part.GROUP, grouping, busy, step)
        yield _gpu_seconds(Column.RESIDENT, Part.GROUP, grouping, resident, step, join=grouping.join)
        return
    busy = Counter("container_gpu_busy_seconds_total", CONTAINER)
    yield from _increases(Column.BUSY, Part.GROUP, grouping, busy, step)
    outside = Counter(f"gpu_process_busy_seconds_total{OUTSIDE}", PROCESS, may_hide=True)
    yield from _increases(Column.BUSY, Part.OUTSIDE, WHOLE, outside, step)
    resident = promql.presence('container_gpu_detected{evidence="process"}', step.milliseconds, NAMED_CONTAINER)
    yield _gpu_seconds(Column.RESIDENT, Part.GROUP, grouping, resident, step, join=grouping.join)
    resident = promql.presence(f"gpu_process_active{OUTSIDE}", step.milliseconds, PROCESS)
    yield _gpu_seconds(Column.RESIDENT, Part.OUTSIDE, WHOLE, resident, step)


def _allocated_and_memory(grouping: Grouping, step: Step) -> Iterator[Query]:
    names = "gpu_pod_allocation_info|gpu_container_allocation_info|gpu_job_allocation_info"
    allocated = promql.presence(f'{{__name__=~"{names}"}}', step.milliseconds, ALLOCATION)
    yield _gpu_seconds(Column.ALLOCATED, Part.WHOLE, WHOLE, allocated, step)
    if grouping.name == "job":
        allocated = promql.presence("gpu_job_allocation_info", step.milliseconds, ALLOCATION)
    if grouping.has_allocations:
        yield _gpu_seconds(Column.ALLOCATED, Part.GROUP, grouping, allocated, step, join=grouping.allocation_join)

    def memory(part: Part, grouping: Grouping, series: str, ids: tuple[str, ...]) -> Query:
        return _sum(Column.MEMORY, part, grouping, promql.integral(series, step.milliseconds, ids), step)

    yield memory(Part.WHOLE, WHOLE, "gpu_memory_used_bytes", ("uuid",))
    if grouping.of == "containers":
        yield memory(Part.GROUP, grouping, "container_gpu_memory_bytes", (*NAMED_CONTAINER, "method"))
        yield memory(Part.OUTSIDE, WHOLE, f"gpu_process_memory_used_bytes{OUTSIDE}", PROCESS)
    elif grouping.of == "processes":
        yield memory(Part.GROUP, grouping, "gpu_process_memory_used_bytes", PROCESS)
    else:
        yield memory(Part.GROUP, grouping, "gpu_memory_used_bytes", ("uuid",))
    observed = promql.presence("gpu_up", step.milliseconds, ("uuid",), "count_over_time")
    yield _gpu_seconds(Column.OBSERVED, Part.WHOLE, WHOLE, observed, step)


def _increases(column: Column, part: Part, grouping: Grouping, counter: Counter, step: Step) -> Iterator[Query]:
    for vector in counter.increases(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step)
    for vector in counter.increases_on_new_devices(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step, for_new_devices=True)


def _sum(
    column: Column, part: Part, grouping: Grouping, vector: str, step: Step, *, for_new_devices: bool = False
) -> Query:
    joined = grouping.join.apply(vector, step.text) if grouping.join else vector
    return Query(column, part, grouping, f"sum by ({', '.join(grouping.by)}) ({joined})", for_new_devices)


def _gpu_seconds(
    column: Column, part: Part, grouping: Grouping, presence: str, step: Step, *, join: Join | None = None
) -> Query:
    joined = join.apply(presence, step.text) if join else presence
    seconds = promql.gpu_seconds(joined, grouping.by, step.milliseconds)
    return Query(column, part, grouping, f"sum by ({', '.join(grouping.by)}) ({seconds})")
