"""All PromQL queries of a report for cells of one length, and the groupings of `--by`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gpuledger.catalog import metrics
from gpuledger.model import Owner
from gpuledger.tools.prometheus.expression import Expression, Selector, series
from gpuledger.tools.report import promql
from gpuledger.tools.report.promql import Counter

PROCESS = ("uuid", "pid", "process_name")
"""Labels that identify a process; without `instance`, which changes when the exporter's pod is replaced."""
CONTAINER = ("uuid", "container_id")
NAMED_CONTAINER = (*CONTAINER, "namespace", "pod", "container")
"""For gauges: a container that only the kubelet knows has no id."""
PROCESS_ENERGY = series(metrics.gpu_process_energy_joules_total)
PROCESS_BUSY = series(metrics.gpu_process_busy_seconds_total)
PROCESS_ACTIVE = series(metrics.gpu_process_active)
PROCESS_MEMORY = series(metrics.gpu_process_memory_used_bytes)
CONTAINER_PROCESSES = series(metrics.container_gpu_detected).where("evidence", "=", "process")
JOBS = series(metrics.gpu_job_allocation_info)
CONTAINER_ALLOCATIONS = series(metrics.gpu_pod_allocation_info, metrics.gpu_container_allocation_info)
ALLOCATIONS = series(
    metrics.gpu_pod_allocation_info, metrics.gpu_container_allocation_info, metrics.gpu_job_allocation_info
)
OWN_ALLOCATIONS = {"containers": CONTAINER_ALLOCATIONS, "processes": JOBS, "gpus": ALLOCATIONS}
"""The allocations that can be in a group, by what is grouped."""
ALLOCATION = ("uuid", "namespace", "pod", "container", "container_id", "batch_job", "resource", "replica")


class Column(Enum):
    """A quantity of the report, in the unit of the query."""

    ENERGY = "joules"
    BUSY = "busy seconds"
    RESIDENT = "resident seconds"
    ALLOCATED = "allocated seconds"
    MEMORY = "byte-seconds"
    OBSERVED = "observed seconds"
    SHARED = "apportioned seconds"
    """Seconds of GPUs that are divided among their holders."""
    PARKED = "parked joules"
    WORK = "joules above parked power"
    """Of groups with tokens; energy minus parked energy."""
    PROMPT = "prompt tokens"
    OUTPUT = "output tokens"
    CARBON = "joules x grams per kWh"


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

    info: Selector | Callable[[str], Expression]
    """The series with the labels, or a vector for a window, of which the largest series counts."""
    on: tuple[str, ...]
    labels: tuple[str, ...]
    preferred: str = ""
    """Series with this label count if a process has several: its user or account may be known late."""

    def apply(self, vector: Expression, window: str) -> Expression:
        """The vector with the labels. If several series have labels for it, one of the preferred ones counts."""
        return vector.op("*", self.best(window), self.on, self.labels)

    def apply_to_all(self, vector: Expression, series: Selector, window: str) -> Expression:
        """A vector that is made of `series`, with the labels, and with the series for which there are none."""
        without_labels = series.over("max_over_time", window).max_by(*self.on).op("^", 0)
        return vector.op("*", self.best(window).op("or", without_labels, self.on), self.on, self.labels)

    def best(self, window: str) -> Expression:
        """The series with the labels, one for each value of `on`."""
        if not isinstance(self.info, Selector):
            return self.info(window).largest_by(*self.on).op("^", 0)
        info = self._labelled(self.info, window)
        if not self.preferred:
            return info.largest_by(*self.on)
        preferred = self._labelled(self.info.where(self.preferred, "!=", ""), window)
        return preferred.op("*", 2).op("or", info).largest_by(*self.on).op("^", 0)

    def _labelled(self, info: Selector, window: str) -> Expression:
        return info.over("max_over_time", window).max_by(*self.on, *self.labels)


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
    needs: str = ""
    """What the exporters need to expose the labels of the join."""

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
    return Join(series(metrics.gpu_process_info), PROCESS, labels, preferred=labels[0])


def _workload(*on: str) -> Join:
    return Join(series(metrics.gpu_owner_info), on, ("workload_kind", "workload_name"))


_GPU_MODEL = Join(series(metrics.gpu_info, metrics.gpu_mig_info), ("uuid",), ("name",))
_LANGUAGE_MODEL = Join(promql.models, ("namespace", "pod"), ("model_name",))
SERVED = "model"
"""The grouping with tokens."""
GROUPINGS: Mapping[str, Grouping] = {
    grouping.name: grouping
    for grouping in (
        Grouping("namespace", "containers", ("namespace",), heads=("namespace",)),
        Grouping("pod", "containers", ("namespace", "pod", "pod_uid"), heads=("namespace", "pod")),
        Grouping("container", "containers", ("namespace", "pod", "container", "pod_uid", "container_id"),
                 heads=("namespace", "pod", "container")),
        Grouping("workload", "containers", ("namespace",), _workload("container_id"), _workload("namespace", "pod"),
                 heads=("namespace", "workload_kind", "workload")),
        Grouping("user", "processes", (), _process_info("user", "uid"), has_allocations=False, heads=("user",)),
        Grouping("job", "processes", (), _process_info("batch_job"), heads=("job",)),
        Grouping("account", "processes", (), _process_info("batch_account"), heads=("account",)),
        Grouping("node", "gpus", ("node", "hostname", "instance"), heads=("node",)),
        Grouping("gpu-model", "gpus", (), _GPU_MODEL, _GPU_MODEL, heads=("gpu_model",)),
        Grouping(SERVED, "containers", (), _LANGUAGE_MODEL, _LANGUAGE_MODEL, heads=("model",),
                 needs="Prometheus must scrape servers of language models, with the labels namespace and pod"),
    )
}  # fmt: skip
MODEL_LABEL = "gpu_model"
LABEL = re.compile(r"label:([\w./-]{1,317})", re.ASCII)
WHOLE = Grouping("whole", "gpus", ())
REASONS = Grouping("reason", "gpus", ("reason",))


def find_grouping(text: str) -> Grouping:
    """The grouping of `--by`. Raises ValueError."""
    if not (match := LABEL.fullmatch(text)):
        if text not in GROUPINGS:
            raise ValueError(f"is not one of {', '.join(GROUPINGS)} or label:NAME, such as label:team")
        return GROUPINGS[text]
    info = series(metrics.gpu_owner_label_info).where("label", "=", match[1])
    of_container, of_pod = (Join(info, on, ("value",)) for on in (("container_id",), ("namespace", "pod")))
    needs = f"pod labels need --kubernetes.api and --kubernetes.pod-labels={match[1]} on the exporters"
    return Grouping(text, "containers", (), of_container, of_pod, heads=(text,), needs=needs)


@dataclass(frozen=True, slots=True)
class Query:
    """One query, whose series are parts of one column."""

    column: Column
    part: Part
    grouping: Grouping
    vector: Expression
    for_new_devices: bool = False
    """Whether the query is needed only if GPUs appeared in the cells."""
    more_labels: tuple[str, ...] = ()
    """Labels to group by, besides those of the grouping."""

    @property
    def promql(self) -> Expression:
        """The whole query."""
        return self.vector.sum_by(*self.more_labels, *self.grouping.by)


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


def queries(
    grouping: Grouping, step: Step, charged: Column = Column.ALLOCATED, *, by_model: bool = False
) -> Iterator[Query]:
    """All queries of a report; those of the charged hours by GPU model if each model has its own price."""
    yield from _energy(grouping, step)
    if grouping.name == SERVED:
        yield from _tokens(grouping, step)
    hours = [*_busy_and_resident(grouping, step), *_allocated_and_memory(grouping, step)]
    if charged is Column.SHARED:
        hours += _apportioned(grouping, step)
    whole = Column.OBSERVED if charged is Column.SHARED else charged
    for query in hours:
        is_charged = query.column is (whole if query.part is Part.WHOLE else charged)
        yield _with_models(query, step) if by_model and is_charged else query


def _energy(grouping: Grouping, step: Step) -> Iterator[Query]:
    processes = Counter(PROCESS_ENERGY, (*PROCESS, "method"), may_hide=True)
    outside = Counter(_outside(PROCESS_ENERGY), (*PROCESS, "method"), may_hide=True)
    containers = Counter(series(metrics.container_gpu_energy_joules_total), (*CONTAINER, "method"))
    counters = {"containers": [containers], "processes": [processes], "gpus": [containers, outside]}[grouping.of]
    for counter in counters:
        yield from _increases(Column.ENERGY, Part.GROUP, grouping, counter, step)
        if grouping.join:
            yield from _increases(Column.ENERGY, Part.ALL_GROUPS, WHOLE, counter, step)
    if grouping.of == "containers":
        yield from _increases(Column.ENERGY, Part.OUTSIDE, WHOLE, outside, step)
    idle = Counter(series(metrics.gpu_idle_energy_joules_total), ("uuid",))
    unattributed = series(metrics.gpu_unattributed_energy_joules_total).where("reason", "!=", "before")
    yield from _increases(Column.ENERGY, Part.IDLE, WHOLE, idle, step)
    yield from _increases(Column.ENERGY, Part.UNATTRIBUTED, REASONS, Counter(unattributed, ("uuid", "reason")), step)
    device = Counter(series(metrics.gpu_energy_joules_total), ("uuid",), of_hardware=True)
    yield from _increases(Column.ENERGY, Part.WHOLE, WHOLE, device, step)


def _tokens(grouping: Grouping, step: Step) -> Iterator[Query]:
    """Tokens and parked energy by language model."""
    parked = Counter(series(metrics.container_gpu_parked_energy_joules_total), CONTAINER)
    yield from _increases(Column.PARKED, Part.GROUP, grouping, parked, step)
    models = _LANGUAGE_MODEL.best(step.text)
    for column, output in ((Column.PROMPT, False), (Column.OUTPUT, True)):
        for tokens in promql.token_increases(output=output, step=step.text, models_of_pods=models):
            yield Query(column, Part.GROUP, grouping, tokens)


def _busy_and_resident(grouping: Grouping, step: Step) -> Iterator[Query]:
    busy = Counter(series(metrics.gpu_busy_seconds_total), ("uuid",))
    in_use = Counter(series(metrics.gpu_in_use_seconds_total), ("uuid",))
    yield from _increases(Column.BUSY, Part.WHOLE, WHOLE, busy, step)
    yield from _increases(Column.RESIDENT, Part.WHOLE, WHOLE, in_use, step)
    if grouping.of == "gpus":
        yield from _increases(Column.BUSY, Part.GROUP, grouping, busy, step)
        yield from _increases(Column.RESIDENT, Part.GROUP, grouping, in_use, step)
        return
    if grouping.of == "processes":
        busy = Counter(PROCESS_BUSY, PROCESS, may_hide=True)
        yield from _increases(Column.BUSY, Part.GROUP, grouping, busy, step)
        resident = promql.presence(PROCESS_ACTIVE, step.milliseconds, PROCESS)
        yield _gpu_seconds(Column.RESIDENT, Part.GROUP, grouping, resident, step, join=grouping.join)
        return
    busy = Counter(series(metrics.container_gpu_busy_seconds_total), CONTAINER)
    yield from _increases(Column.BUSY, Part.GROUP, grouping, busy, step)
    outside = Counter(_outside(PROCESS_BUSY), PROCESS, may_hide=True)
    yield from _increases(Column.BUSY, Part.OUTSIDE, WHOLE, outside, step)
    resident = promql.presence(CONTAINER_PROCESSES, step.milliseconds, NAMED_CONTAINER)
    yield _gpu_seconds(Column.RESIDENT, Part.GROUP, grouping, resident, step, join=grouping.join)
    resident = promql.presence(_outside(PROCESS_ACTIVE), step.milliseconds, PROCESS)
    yield _gpu_seconds(Column.RESIDENT, Part.OUTSIDE, WHOLE, resident, step)


def _allocated_and_memory(grouping: Grouping, step: Step) -> Iterator[Query]:
    allocated = promql.presence(ALLOCATIONS, step.milliseconds, ALLOCATION)
    yield _gpu_seconds(Column.ALLOCATED, Part.WHOLE, WHOLE, allocated, step)
    if grouping.of == "containers":
        jobs = promql.presence(JOBS, step.milliseconds, ALLOCATION)
        yield _gpu_seconds(Column.ALLOCATED, Part.OUTSIDE, WHOLE, jobs, step)
    if grouping.has_allocations:
        allocated = promql.presence(OWN_ALLOCATIONS[grouping.of], step.milliseconds, ALLOCATION)
        yield _gpu_seconds(Column.ALLOCATED, Part.GROUP, grouping, allocated, step, join=grouping.allocation_join)

    def memory(part: Part, grouping: Grouping, gauge: Selector, *ids: str) -> Query:
        return _sum(Column.MEMORY, part, grouping, promql.integral(gauge, step.milliseconds, ids), step)

    gpu_memory = series(metrics.gpu_memory_used_bytes)
    yield memory(Part.WHOLE, WHOLE, gpu_memory, "uuid")
    if grouping.of == "containers":
        container_memory = series(metrics.container_gpu_memory_bytes)
        yield memory(Part.GROUP, grouping, container_memory, *NAMED_CONTAINER, "method")
        yield memory(Part.OUTSIDE, WHOLE, _outside(PROCESS_MEMORY), *PROCESS)
    elif grouping.of == "processes":
        yield memory(Part.GROUP, grouping, PROCESS_MEMORY, *PROCESS)
    else:
        yield memory(Part.GROUP, grouping, gpu_memory, "uuid")
    observed = promql.presence(series(metrics.gpu_up), step.milliseconds, ("uuid",), "count_over_time")
    yield _gpu_seconds(Column.OBSERVED, Part.WHOLE, WHOLE, observed, step)


def _apportioned(grouping: Grouping, step: Step) -> Iterator[Query]:
    """The seconds of each GPU, divided among the groups that hold it."""
    step_ms = step.milliseconds
    everyone = groups = _holders(grouping, step)
    if grouping.of == "containers":
        resident = promql.presence(_outside(PROCESS_ACTIVE), step_ms, PROCESS)
        outside = promql.held([promql.presence(JOBS, step_ms, ALLOCATION), resident], ())
        everyone = groups.op("or", outside.relabelled("outside", "1"))
        yield Query(Column.SHARED, Part.OUTSIDE, WHOLE, promql.apportioned(outside, everyone, (), step_ms))
    yield Query(Column.SHARED, Part.GROUP, grouping, promql.apportioned(groups, everyone, grouping.by, step_ms))


def _holders(grouping: Grouping, step: Step) -> Expression:
    """How much of a cell each group held each device, from 0 to 1."""
    residents: dict[Selector, tuple[str, ...]] = {}
    if grouping.of != "processes":
        residents[CONTAINER_PROCESSES] = NAMED_CONTAINER
    if grouping.of != "containers":
        residents[PROCESS_ACTIVE] = PROCESS
    presences = []
    if grouping.has_allocations:
        presences.append(_presence(OWN_ALLOCATIONS[grouping.of], ALLOCATION, grouping.allocation_join, step))
    for gauge, ids in residents.items():
        presence = _presence(gauge, ids, grouping.join, step)
        for label in ("pod_uid", "container_id"):  # allocations of pods have neither
            if label in grouping.labels:
                presence = presence.relabelled(label, "", "pod", ".+")
        presences.append(presence)
    return promql.held(presences, grouping.by)


def _presence(gauge: Selector, ids: tuple[str, ...], join: Join | None, step: Step) -> Expression:
    presence = promql.presence(gauge, step.milliseconds, ids)
    return join.apply_to_all(presence, gauge, step.text) if join else presence


def _with_models(query: Query, step: Step) -> Query:
    """The query, grouped by the model of the GPU too. The label `name` may already be that of a MIG instance."""
    devices = promql.DEVICES.over("max_over_time", step.text).max_by("uuid").op("^", 0)
    info = _GPU_MODEL.best(step.text).op("or", devices, ("uuid",)).relabelled(MODEL_LABEL, "$1", "name", "(.*)")
    vector = query.vector.op("*", info, ("uuid",), copy=(MODEL_LABEL,))
    return replace(query, vector=vector, more_labels=(MODEL_LABEL,))


def _increases(column: Column, part: Part, grouping: Grouping, counter: Counter, step: Step) -> Iterator[Query]:
    for vector in counter.increases(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step)
    for vector in counter.increases_on_new_devices(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step, for_new_devices=True)


def _sum(
    column: Column, part: Part, grouping: Grouping, vector: Expression, step: Step, *, for_new_devices: bool = False
) -> Query:
    joined = grouping.join.apply(vector, step.text) if grouping.join else vector
    return Query(column, part, grouping, joined, for_new_devices)


def _gpu_seconds(
    column: Column, part: Part, grouping: Grouping, presence: Expression, step: Step, *, join: Join | None = None
) -> Query:
    joined = join.apply(presence, step.text) if join else presence
    return Query(column, part, grouping, promql.gpu_seconds(joined, grouping.by, step.milliseconds))


def _outside(processes: Selector) -> Selector:
    """The processes in no container."""
    return processes.where("container_id", "=", "")
