"""All PromQL queries of a report for cells of one length, and the groupings of `--by`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gpuledger.model import Owner
from gpuledger.tools.report import promql, tokenql
from gpuledger.tools.report.promql import Counter

PROCESS = ("uuid", "pid", "process_name")
"""Labels that identify a process; without `instance`, which changes when the exporter's pod is replaced."""
CONTAINER = ("uuid", "container_id")
NAMED_CONTAINER = (*CONTAINER, "namespace", "pod", "container")
"""For gauges: a container that only the kubelet knows has no id."""
OUTSIDE = '{container_id=""}'
JOBS = "gpu_job_allocation_info"
CONTAINER_ALLOCATIONS = '{__name__=~"gpu_pod_allocation_info|gpu_container_allocation_info"}'
ALLOCATIONS = f'{{__name__=~"gpu_pod_allocation_info|gpu_container_allocation_info|{JOBS}"}}'
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

    info: str
    on: tuple[str, ...]
    labels: tuple[str, ...]
    preferred: str = ""
    """A selector of the series that count if a process has several: its user or account may be known late."""
    vector: Callable[[str], str] | None = None
    """The PromQL of a vector for a window, instead of `info`; of several series, the largest counts."""

    def apply(self, vector: str, window: str) -> str:
        """The vector with the labels. If several series have labels for it, one of the preferred ones counts."""
        on = ", ".join(self.on)
        return f"({vector}) * on ({on}) group_left ({', '.join(self.labels)}) {self.best(window)}"

    def apply_to_all(self, vector: str, series: str, window: str) -> str:
        """The same for a vector that is made of `series`, with those for which there are no labels."""
        on = ", ".join(self.on)
        info = f"({self.best(window)} or on ({on}) max by ({on}) (max_over_time({series}[{window}])) ^ 0)"
        return f"({vector}) * on ({on}) group_left ({', '.join(self.labels)}) {info}"

    def best(self, window: str) -> str:
        """The series with the labels, one for each value of `on`."""
        on = ", ".join(self.on)
        if self.vector is not None:
            return f"(topk by ({on}) (1, {self.vector(window)}) ^ 0)"
        info = f"max by ({on}, {', '.join(self.labels)}) (max_over_time({self.info}[{window}]))"
        if not self.preferred:
            return f"topk by ({on}) (1, {info})"
        preferred = info.replace(self.info, f"{self.info}{{{self.preferred}}}")
        return f"(topk by ({on}) (1, {preferred} * 2 or {info}) ^ 0)"


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
    return Join("gpu_process_info", PROCESS, labels, preferred=f'{labels[0]}!=""')


def _workload(*on: str) -> Join:
    return Join("gpu_owner_info", on, ("workload_kind", "workload_name"))


_GPU_MODEL = Join('{__name__=~"gpu_info|gpu_mig_info"}', ("uuid",), ("name",))
_LANGUAGE_MODEL = Join("", ("namespace", "pod"), ("model_name",), vector=tokenql.models)
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
    info = f'gpu_owner_label_info{{label="{match[1]}"}}'
    of_container, of_pod = (Join(info, on, ("value",)) for on in (("container_id",), ("namespace", "pod")))
    needs = f"pod labels need --kubernetes.api and --kubernetes.pod-labels={match[1]} on the exporters"
    return Grouping(text, "containers", (), of_container, of_pod, heads=(text,), needs=needs)


@dataclass(frozen=True, slots=True)
class Query:
    """One query, whose series are parts of one column."""

    column: Column
    part: Part
    grouping: Grouping
    promql: str
    for_new_devices: bool = False
    """Whether the query is needed only if GPUs appeared in the cells."""
    by_model: bool = False
    """Whether series are also grouped by the model of the GPU, in the label MODEL_LABEL."""


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


def _tokens(grouping: Grouping, step: Step) -> Iterator[Query]:
    """Tokens and parked energy by language model."""
    parked = Counter("container_gpu_parked_energy_joules_total", CONTAINER)
    yield from _increases(Column.PARKED, Part.GROUP, grouping, parked, step)
    models = _LANGUAGE_MODEL.best(step.text)
    for column, output in ((Column.PROMPT, False), (Column.OUTPUT, True)):
        for tokens in tokenql.increases(output=output, step=step.text, models_of_pods=models):
            yield Query(column, Part.GROUP, grouping, tokens)


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
    allocated = promql.presence(ALLOCATIONS, step.milliseconds, ALLOCATION)
    yield _gpu_seconds(Column.ALLOCATED, Part.WHOLE, WHOLE, allocated, step)
    if grouping.of == "containers":
        jobs = promql.presence(JOBS, step.milliseconds, ALLOCATION)
        yield _gpu_seconds(Column.ALLOCATED, Part.OUTSIDE, WHOLE, jobs, step)
        allocated = promql.presence(CONTAINER_ALLOCATIONS, step.milliseconds, ALLOCATION)
    elif grouping.of == "processes":
        allocated = promql.presence(JOBS, step.milliseconds, ALLOCATION)
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


def _apportioned(grouping: Grouping, step: Step) -> Iterator[Query]:
    """The seconds of each GPU, divided among the groups that hold it."""
    step_ms = step.milliseconds
    everyone = groups = _holders(grouping, step)
    if grouping.of == "containers":
        resident = promql.presence(f"gpu_process_active{OUTSIDE}", step_ms, PROCESS)
        outside = promql.held([promql.presence(JOBS, step_ms, ALLOCATION), resident], ())
        everyone = f'({groups} or label_replace({outside}, "outside", "1", "", ""))'
        seconds = promql.apportioned(outside, everyone, (), step_ms)
        yield Query(Column.SHARED, Part.OUTSIDE, WHOLE, _summed((), seconds))
    seconds = promql.apportioned(groups, everyone, grouping.by, step_ms)
    yield Query(Column.SHARED, Part.GROUP, grouping, _summed(grouping.by, seconds))


def _holders(grouping: Grouping, step: Step) -> str:
    """How much of a cell each group held each device, from 0 to 1."""
    allocations = {"containers": CONTAINER_ALLOCATIONS, "processes": JOBS, "gpus": ALLOCATIONS}[grouping.of]
    residents: dict[str, tuple[str, ...]] = {}
    if grouping.of != "processes":
        residents['container_gpu_detected{evidence="process"}'] = NAMED_CONTAINER
    if grouping.of != "containers":
        residents["gpu_process_active"] = PROCESS
    presences = []
    if grouping.has_allocations:
        presences.append(_presence(allocations, ALLOCATION, grouping.allocation_join, step))
    for series, ids in residents.items():
        presence = _presence(series, ids, grouping.join, step)
        for label in ("pod_uid", "container_id"):  # allocations of pods have neither
            if label in grouping.labels:
                presence = f'label_replace({presence}, "{label}", "", "pod", ".+")'
        presences.append(presence)
    return promql.held(presences, grouping.by)


def _presence(series: str, ids: tuple[str, ...], join: Join | None, step: Step) -> str:
    presence = promql.presence(series, step.milliseconds, ids)
    return join.apply_to_all(presence, series, step.text) if join else presence


def _with_models(query: Query, step: Step) -> Query:
    """The query, grouped by the model of the GPU too. The label `name` may already be that of a MIG instance."""
    by = query.grouping.by
    vector = query.promql.removeprefix(_summed(by, "").removesuffix("()"))
    devices = f"max by (uuid) (max_over_time({promql.DEVICES}[{step.text}])) ^ 0"
    info = f'label_replace({_GPU_MODEL.best(step.text)} or on (uuid) {devices}, "{MODEL_LABEL}", "$1", "name", "(.*)")'
    with_models = f"{vector} * on (uuid) group_left ({MODEL_LABEL}) {info}"
    return replace(query, promql=_summed((*by, MODEL_LABEL), with_models), by_model=True)


def _increases(column: Column, part: Part, grouping: Grouping, counter: Counter, step: Step) -> Iterator[Query]:
    for vector in counter.increases(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step)
    for vector in counter.increases_on_new_devices(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step, for_new_devices=True)


def _sum(
    column: Column, part: Part, grouping: Grouping, vector: str, step: Step, *, for_new_devices: bool = False
) -> Query:
    joined = grouping.join.apply(vector, step.text) if grouping.join else vector
    return Query(column, part, grouping, _summed(grouping.by, joined), for_new_devices)


def _gpu_seconds(
    column: Column, part: Part, grouping: Grouping, presence: str, step: Step, *, join: Join | None = None
) -> Query:
    joined = join.apply(presence, step.text) if join else presence
    seconds = promql.gpu_seconds(joined, grouping.by, step.milliseconds)
    return Query(column, part, grouping, _summed(grouping.by, seconds))


def _summed(by: tuple[str, ...], vector: str) -> str:
    return f"sum by ({', '.join(by)}) ({vector})"
