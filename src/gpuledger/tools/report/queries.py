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
from gpuledger.tools.report.promql import Counter, Gauge

PROCESS = ("uuid", "pid", "process_name")
"""Labels that identify a process; without `instance`, which changes when the exporter's pod is replaced."""
CONTAINER = ("uuid", "container_id")
NAMED_CONTAINER = (*CONTAINER, "namespace", "pod", "container")
"""For gauges: a container that only the kubelet knows has no id."""
ALLOCATION = ("uuid", "namespace", "pod", "container", "container_id", "batch_job", "resource", "replica")
GPU = ("uuid",)
CONTAINER_LABELS = ("namespace", "pod", "container", "pod_uid", "container_id")

PROCESS_ENERGY = Counter(series(metrics.gpu_process_energy_joules_total), (*PROCESS, "method"), may_hide=True)
PROCESS_BUSY = Counter(series(metrics.gpu_process_busy_seconds_total), PROCESS, may_hide=True)
CONTAINER_ENERGY = Counter(series(metrics.container_gpu_energy_joules_total), (*CONTAINER, "method"))
CONTAINER_PARKED = Counter(series(metrics.container_gpu_parked_energy_joules_total), CONTAINER)
CONTAINER_BUSY = Counter(series(metrics.container_gpu_busy_seconds_total), CONTAINER)
GPU_ENERGY = Counter(series(metrics.gpu_energy_joules_total), GPU, of_hardware=True)
GPU_BUSY = Counter(series(metrics.gpu_busy_seconds_total), GPU)
GPU_IN_USE = Counter(series(metrics.gpu_in_use_seconds_total), GPU)
IDLE_ENERGY = Counter(series(metrics.gpu_idle_energy_joules_total), GPU)
UNATTRIBUTED_ENERGY = Counter(
    series(metrics.gpu_unattributed_energy_joules_total).where("reason", "!=", "before"), (*GPU, "reason")
)
PROCESS_ACTIVE = Gauge(series(metrics.gpu_process_active), PROCESS)
PROCESS_MEMORY = Gauge(series(metrics.gpu_process_memory_used_bytes), PROCESS)
CONTAINER_ACTIVE = Gauge(series(metrics.container_gpu_detected).where("evidence", "=", "process"), NAMED_CONTAINER)
CONTAINER_MEMORY = Gauge(series(metrics.container_gpu_memory_bytes), (*NAMED_CONTAINER, "method"))
GPU_MEMORY = Gauge(series(metrics.gpu_memory_used_bytes), GPU)
JOB_ALLOCATIONS = Gauge(series(metrics.gpu_job_allocation_info), ALLOCATION)
ALLOCATIONS = Gauge(
    series(metrics.gpu_pod_allocation_info, metrics.gpu_container_allocation_info, metrics.gpu_job_allocation_info),
    ALLOCATION,
)
CONTAINER_ALLOCATIONS = Gauge(
    series(metrics.gpu_pod_allocation_info, metrics.gpu_container_allocation_info), ALLOCATION
)
ENTITLEMENTS = Gauge(
    series(metrics.gpu_entitlement_compute_ratio),
    ("uuid", "namespace", "pod", "container", "container_id", "batch_job", "source"),
)
OWN_ALLOCATIONS = {"containers": CONTAINER_ALLOCATIONS, "processes": JOB_ALLOCATIONS, "gpus": ALLOCATIONS}
"""The allocations that can be in a group, by what is grouped."""


class Quantity(Enum):
    """A quantity of the report, in the unit of the query."""

    ENERGY = "joules"
    BUSY = "busy seconds"
    RESIDENT = "resident seconds"
    ALLOCATED = "allocated seconds"
    MEMORY = "byte-seconds"
    OBSERVED = "observed seconds"
    SHARED = "apportioned seconds"
    """Seconds of GPUs that are divided among their holders."""
    ENTITLED = "entitled seconds"
    """Parts of GPUs that owners asked for, times seconds."""
    LARGER = "entitled or busy seconds"
    """The larger of both, in each cell."""
    PARKED = "parked joules"
    WORK = "joules above parked power"
    """Energy minus parked energy, of groups with tokens."""
    PROMPT = "prompt tokens"
    OUTPUT = "output tokens"
    CARBON = "joules x grams per kWh"


OF_ALL_GPUS = (Quantity.SHARED, Quantity.ENTITLED, Quantity.LARGER)
"""Charged hours whose rows add up to the hours of all GPUs."""
FOR_LARGER = (Quantity.ENTITLED, Quantity.BUSY)


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
    """The join for allocations, which have other labels."""
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
            namespace, pod, container, pod_uid, container_id = (labels.get(name, "") for name in CONTAINER_LABELS)
            owner = Owner(namespace=namespace, pod=pod, container=container, pod_uid=pod_uid, container_id=container_id)
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
        Grouping("container", "containers", CONTAINER_LABELS, heads=("namespace", "pod", "container")),
        Grouping("workload", "containers", ("namespace",), _workload("container_id"), _workload("namespace", "pod"),
                 heads=("namespace", "workload_kind", "workload")),
        Grouping("user", "processes", (), _process_info("user", "uid"), has_allocations=False, heads=("user",)),
        Grouping("job", "processes", (), _process_info("batch_job"), heads=("job",)),
        Grouping("account", "processes", (), _process_info("batch_account"), heads=("account",)),
        Grouping("node", "gpus", ("node", "hostname", "instance"), heads=("node",)),
        Grouping("gpu-model", "gpus", (), _GPU_MODEL, _GPU_MODEL, heads=("gpu_model",)),
        Grouping(SERVED, "containers", ("namespace",), _LANGUAGE_MODEL, _LANGUAGE_MODEL, heads=("namespace", "model"),
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

    column: Quantity
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
    grouping: Grouping, step: Step, charged: Quantity = Quantity.ALLOCATED, *, by_model: bool = False
) -> Iterator[Query]:
    """All queries of a report; those of the charged hours by GPU model if each model has its own price."""
    whole = Quantity.OBSERVED if charged in OF_ALL_GPUS else charged
    for query in _queries(grouping, step, charged):
        is_charged = query.column is (whole if query.part is Part.WHOLE else charged)
        yield _with_models(query, step) if by_model and is_charged else query


def _queries(grouping: Grouping, step: Step, charged: Quantity) -> Iterator[Query]:
    for column, part, rows, counter in _counters(grouping):
        for vector in counter.increases(step.text, step.gap):
            yield _sum(column, part, rows, vector, step)
        for vector in counter.increases_on_new_devices(step.text, step.gap):
            yield _sum(column, part, rows, vector, step, for_new_devices=True)
    if grouping.name == SERVED:
        models = _LANGUAGE_MODEL.best(step.text)
        for column, output in ((Quantity.PROMPT, False), (Quantity.OUTPUT, True)):
            for tokens in promql.token_increases(output=output, step=step.text, models_of_pods=models):
                yield Query(column, Part.GROUP, grouping, tokens)
    for column, part, rows, gauge, join in _presences(grouping):
        presence = promql.presence(gauge, step.milliseconds)
        joined = join.apply(presence, step.text) if join else presence
        yield Query(column, part, rows, promql.gpu_seconds(joined, rows.by, step.milliseconds))
    yield Query(Quantity.OBSERVED, Part.WHOLE, WHOLE, promql.observed_seconds(step.milliseconds))
    for part, rows, gauge in _memory(grouping):
        yield _sum(Quantity.MEMORY, part, rows, promql.integral(gauge, step.milliseconds), step)
    if charged in OF_ALL_GPUS:
        yield from (_apportioned if charged is Quantity.SHARED else _entitled)(grouping, step)


def _counters(grouping: Grouping) -> Iterator[tuple[Quantity, Part, Grouping, Counter]]:
    """Each counter with its column, its part, and the grouping of its rows."""
    outside = promql.outside(PROCESS_ENERGY)
    energy = {"containers": [CONTAINER_ENERGY], "processes": [PROCESS_ENERGY], "gpus": [CONTAINER_ENERGY, outside]}
    for counter in energy[grouping.of]:
        yield Quantity.ENERGY, Part.GROUP, grouping, counter
        if grouping.join:
            yield Quantity.ENERGY, Part.ALL_GROUPS, WHOLE, counter
    if grouping.of == "containers":
        yield Quantity.ENERGY, Part.OUTSIDE, WHOLE, outside
        yield Quantity.BUSY, Part.OUTSIDE, WHOLE, promql.outside(PROCESS_BUSY)
    if grouping.name == SERVED:
        yield Quantity.PARKED, Part.GROUP, grouping, CONTAINER_PARKED
    yield Quantity.ENERGY, Part.IDLE, WHOLE, IDLE_ENERGY
    yield Quantity.ENERGY, Part.UNATTRIBUTED, REASONS, UNATTRIBUTED_ENERGY
    yield Quantity.ENERGY, Part.WHOLE, WHOLE, GPU_ENERGY
    yield Quantity.BUSY, Part.WHOLE, WHOLE, GPU_BUSY
    yield Quantity.RESIDENT, Part.WHOLE, WHOLE, GPU_IN_USE
    busy = {"containers": CONTAINER_BUSY, "processes": PROCESS_BUSY, "gpus": GPU_BUSY}
    yield Quantity.BUSY, Part.GROUP, grouping, busy[grouping.of]
    if grouping.of == "gpus":
        yield Quantity.RESIDENT, Part.GROUP, grouping, GPU_IN_USE


def _presences(grouping: Grouping) -> Iterator[tuple[Quantity, Part, Grouping, Gauge, Join | None]]:
    """Each gauge that is 1 while a GPU is in use or allocated, and the join of its rows."""
    yield Quantity.ALLOCATED, Part.WHOLE, WHOLE, ALLOCATIONS, None
    if grouping.has_allocations:
        yield Quantity.ALLOCATED, Part.GROUP, grouping, OWN_ALLOCATIONS[grouping.of], grouping.allocation_join
    if grouping.of == "containers":
        yield Quantity.ALLOCATED, Part.OUTSIDE, WHOLE, JOB_ALLOCATIONS, None
        yield Quantity.RESIDENT, Part.OUTSIDE, WHOLE, promql.outside(PROCESS_ACTIVE), None
        yield Quantity.RESIDENT, Part.GROUP, grouping, CONTAINER_ACTIVE, grouping.join
    elif grouping.of == "processes":
        yield Quantity.RESIDENT, Part.GROUP, grouping, PROCESS_ACTIVE, grouping.join


def _memory(grouping: Grouping) -> Iterator[tuple[Part, Grouping, Gauge]]:
    yield Part.WHOLE, WHOLE, GPU_MEMORY
    own = {"containers": CONTAINER_MEMORY, "processes": PROCESS_MEMORY, "gpus": GPU_MEMORY}
    yield Part.GROUP, grouping, own[grouping.of]
    if grouping.of == "containers":
        yield Part.OUTSIDE, WHOLE, promql.outside(PROCESS_MEMORY)


def _entitled(grouping: Grouping, step: Step) -> Iterator[Query]:
    """What owners asked for, as seconds of whole GPUs."""
    of_jobs = replace(ENTITLEMENTS, series=ENTITLEMENTS.series.where("batch_job", "!=", ""))
    of_containers = replace(ENTITLEMENTS, series=ENTITLEMENTS.series.where("batch_job", "=", ""))
    own = {"containers": of_containers, "processes": of_jobs, "gpus": ENTITLEMENTS}
    seconds = promql.integral(own[grouping.of], step.milliseconds)
    if "batch_account" in grouping.by:
        seconds = Join(JOB_ALLOCATIONS.series, ("batch_job",), ("batch_account",)).apply(seconds, step.text)
    elif grouping.allocation_join:
        seconds = grouping.allocation_join.apply(seconds, step.text)
    yield Query(Quantity.ENTITLED, Part.GROUP, grouping, promql.entitled(seconds, grouping.by, step.milliseconds))
    if grouping.of == "containers":
        outside = promql.entitled(promql.integral(of_jobs, step.milliseconds), (), step.milliseconds)
        yield Query(Quantity.ENTITLED, Part.OUTSIDE, WHOLE, outside)


def _apportioned(grouping: Grouping, step: Step) -> Iterator[Query]:
    """The seconds of each GPU, divided among the groups that hold it."""
    step_ms = step.milliseconds
    everyone = groups = _holders(grouping, step)
    if grouping.of == "containers":
        gauges = (JOB_ALLOCATIONS, promql.outside(PROCESS_ACTIVE))
        outside = promql.held([promql.presence(gauge, step_ms) for gauge in gauges], ())
        everyone = groups.op("or", outside.relabelled("outside", "1"))
        yield Query(Quantity.SHARED, Part.OUTSIDE, WHOLE, promql.apportioned(outside, everyone, (), step_ms))
    yield Query(Quantity.SHARED, Part.GROUP, grouping, promql.apportioned(groups, everyone, grouping.by, step_ms))


def _holders(grouping: Grouping, step: Step) -> Expression:
    """How much of a cell each group held each device, from 0 to 1."""
    presences = []
    if grouping.has_allocations:
        presences.append(_presence(OWN_ALLOCATIONS[grouping.of], grouping.allocation_join, step))
    residents = {
        "containers": [CONTAINER_ACTIVE], "processes": [PROCESS_ACTIVE], "gpus": [CONTAINER_ACTIVE, PROCESS_ACTIVE],
    }  # fmt: skip
    for gauge in residents[grouping.of]:
        presence = _presence(gauge, grouping.join, step)
        for label in ("pod_uid", "container_id"):  # allocations of pods have neither
            if label in grouping.labels:
                presence = presence.relabelled(label, "", "pod", ".+")
        presences.append(presence)
    return promql.held(presences, grouping.by)


def _presence(gauge: Gauge, join: Join | None, step: Step) -> Expression:
    presence = promql.presence(gauge, step.milliseconds)
    return join.apply_to_all(presence, gauge.series, step.text) if join else presence


def _with_models(query: Query, step: Step) -> Query:
    """The query, grouped by the model of the GPU too. The label `name` may already be that of a MIG instance."""
    devices = promql.DEVICES.over("max_over_time", step.text).max_by("uuid").op("^", 0)
    info = _GPU_MODEL.best(step.text).op("or", devices, GPU).relabelled(MODEL_LABEL, "$1", "name", "(.*)")
    vector = query.vector.op("*", info, GPU, copy=(MODEL_LABEL,))
    return replace(query, vector=vector, more_labels=(MODEL_LABEL,))


def _sum(
    column: Quantity, part: Part, grouping: Grouping, vector: Expression, step: Step, *, for_new_devices: bool = False
) -> Query:
    joined = grouping.join.apply(vector, step.text) if grouping.join else vector
    return Query(column, part, grouping, joined, for_new_devices)
