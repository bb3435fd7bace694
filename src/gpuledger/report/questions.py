"""Everything a report asks of Prometheus for the cells of one length. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from gpuledger.report import gauges
from gpuledger.report.counters import Counter
from gpuledger.report.grouping import PROCESS, REASONS, WHOLE, Grouping, Join

CONTAINER = ("uuid", "container_id")
NAMED = (*CONTAINER, "namespace", "pod", "container")
"""Of gauges, which may be shown of containers that only a kubelet knows: it does not tell ids."""
OUTSIDE = '{container_id=""}'
GRANT = ("uuid", "namespace", "pod", "container", "container_id", "batch_job", "resource", "replica")


class Column(Enum):
    """What is counted, in the unit Prometheus has it in."""

    ENERGY = "joules"
    BUSY = "busy seconds"
    RESIDENT = "resident seconds"
    ALLOCATED = "allocated seconds"
    MEMORY = "byte-seconds"
    SEEN = "seconds seen"


class Part(Enum):
    """Whose it is."""

    GROUP = "groups"
    ALL_GROUPS = "all groups together"
    """Asked where a series may be in no group, because nothing says which."""
    OUTSIDE = "processes outside of containers"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    WHOLE = "all GPUs"


@dataclass(frozen=True, slots=True)
class Question:
    """One query, whose series are parts of one column."""

    column: Column
    part: Part
    grouping: Grouping
    promql: str
    newcomers: bool = False
    """Whether it is only needed when GPUs were seen that had not been there before."""


@dataclass(frozen=True, slots=True)
class Step:
    """The length of a cell, and the longest gap that is bridged."""

    milliseconds: int
    gap_ms: int

    @property
    def text(self) -> str:
        """For the window of a counter."""
        return f"{self.milliseconds}ms"

    @property
    def gap(self) -> str:
        """How far before the cell one looks."""
        return f"{self.gap_ms}ms"


def questions(grouping: Grouping, step: Step) -> Iterator[Question]:
    """All of them."""
    yield from _energy(grouping, step)
    yield from _times(grouping, step)
    yield from _held(grouping, step)


def _energy(grouping: Grouping, step: Step) -> Iterator[Question]:
    processes = Counter("gpu_process_energy_joules_total", (*PROCESS, "method"), may_hide=True)
    outside = Counter(f"gpu_process_energy_joules_total{OUTSIDE}", (*PROCESS, "method"), may_hide=True)
    containers = Counter("container_gpu_energy_joules_total", (*CONTAINER, "method"))
    of_groups = {"containers": [containers], "processes": [processes], "gpus": [containers, outside]}[grouping.of]
    for counter in of_groups:
        yield from _rises(Column.ENERGY, Part.GROUP, grouping, counter, step)
        if grouping.join:
            yield from _rises(Column.ENERGY, Part.ALL_GROUPS, WHOLE, counter, step)
    if grouping.of == "containers":
        yield from _rises(Column.ENERGY, Part.OUTSIDE, WHOLE, outside, step)
    idle = Counter("gpu_idle_energy_joules_total", ("uuid",))
    nobody = Counter('gpu_unattributed_energy_joules_total{reason!="before"}', ("uuid", "reason"))
    yield from _rises(Column.ENERGY, Part.IDLE, WHOLE, idle, step)
    yield from _rises(Column.ENERGY, Part.UNATTRIBUTED, REASONS, nobody, step)
    device = Counter("gpu_energy_joules_total", ("uuid",), of_hardware=True)
    yield from _rises(Column.ENERGY, Part.WHOLE, WHOLE, device, step)


def _times(grouping: Grouping, step: Step) -> Iterator[Question]:
    """Busy and resident."""
    busy, in_use = Counter("gpu_busy_seconds_total", ("uuid",)), Counter("gpu_in_use_seconds_total", ("uuid",))
    yield from _rises(Column.BUSY, Part.WHOLE, WHOLE, busy, step)
    yield from _rises(Column.RESIDENT, Part.WHOLE, WHOLE, in_use, step)
    if grouping.of == "gpus":
        yield from _rises(Column.BUSY, Part.GROUP, grouping, busy, step)
        yield from _rises(Column.RESIDENT, Part.GROUP, grouping, in_use, step)
        return
    on_gpu = gauges.shares("gpu_process_active", step.milliseconds, PROCESS)
    if grouping.of == "processes":
        busy = Counter("gpu_process_busy_seconds_total", PROCESS, may_hide=True)
        yield from _rises(Column.BUSY, Part.GROUP, grouping, busy, step)
        yield _seconds(Column.RESIDENT, Part.GROUP, grouping, grouping.join, on_gpu, step)
        return
    busy = Counter("container_gpu_busy_seconds_total", CONTAINER)
    yield from _rises(Column.BUSY, Part.GROUP, grouping, busy, step)
    outside = Counter(f"gpu_process_busy_seconds_total{OUTSIDE}", PROCESS, may_hide=True)
    yield from _rises(Column.BUSY, Part.OUTSIDE, WHOLE, outside, step)
    on_gpu = gauges.shares('container_gpu_detected{evidence="process"}', step.milliseconds, NAMED)
    yield _seconds(Column.RESIDENT, Part.GROUP, grouping, grouping.join, on_gpu, step)
    on_gpu = gauges.shares(f"gpu_process_active{OUTSIDE}", step.milliseconds, PROCESS)
    yield _seconds(Column.RESIDENT, Part.OUTSIDE, WHOLE, None, on_gpu, step)


def _held(grouping: Grouping, step: Step) -> Iterator[Question]:
    """Devices that somebody was given, memory, and GPUs seen."""
    names = "gpu_pod_allocation_info|gpu_container_allocation_info|gpu_job_allocation_info"
    given = gauges.shares(f'{{__name__=~"{names}"}}', step.milliseconds, GRANT)
    yield _seconds(Column.ALLOCATED, Part.WHOLE, WHOLE, None, given, step)
    if grouping.name == "job":
        given = gauges.shares("gpu_job_allocation_info", step.milliseconds, GRANT)
    if grouping.grants:
        yield _seconds(Column.ALLOCATED, Part.GROUP, grouping, grouping.grant_join, given, step)

    def memory(part: Part, grouping: Grouping, series: str, ids: tuple[str, ...]) -> Question:
        return _sum(Column.MEMORY, part, grouping, gauges.amounts(series, step.milliseconds, ids), step)

    yield memory(Part.WHOLE, WHOLE, "gpu_memory_used_bytes", ("uuid",))
    if grouping.of == "containers":
        yield memory(Part.GROUP, grouping, "container_gpu_memory_bytes", (*NAMED, "method"))
        yield memory(Part.OUTSIDE, WHOLE, f"gpu_process_memory_used_bytes{OUTSIDE}", PROCESS)
    elif grouping.of == "processes":
        yield memory(Part.GROUP, grouping, "gpu_process_memory_used_bytes", PROCESS)
    else:
        yield memory(Part.GROUP, grouping, "gpu_memory_used_bytes", ("uuid",))
    seen = gauges.shares("gpu_up", step.milliseconds, ("uuid",), "count_over_time")
    yield _seconds(Column.SEEN, Part.WHOLE, WHOLE, None, seen, step)


def _rises(column: Column, part: Part, grouping: Grouping, counter: Counter, step: Step) -> Iterator[Question]:
    for vector in counter.rises(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step)
    for vector in counter.found(step.text, step.gap):
        yield _sum(column, part, grouping, vector, step, newcomers=True)


def _sum(
    column: Column, part: Part, grouping: Grouping, vector: str, step: Step, *, newcomers: bool = False
) -> Question:
    joined = grouping.join.apply(vector, step.text) if grouping.join else vector
    promql = f"sum by ({', '.join(grouping.wanted)}) ({joined})"
    return Question(column, part, grouping, promql, newcomers)


def _seconds(  # noqa: PLR0917 - what makes a question, in the order of Question
    column: Column, part: Part, grouping: Grouping, join: Join | None, vector: str, step: Step
) -> Question:
    joined = join.apply(vector, step.text) if join else vector
    held = gauges.seconds(joined, grouping.wanted, step.milliseconds)
    return Question(column, part, grouping, f"sum by ({', '.join(grouping.wanted)}) ({held})")
