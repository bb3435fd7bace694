"""Energy and hours of each GPU in each hour, by holder, for `--format focus`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from gpuledger.catalog import metrics
from gpuledger.errors import ConfigError
from gpuledger.tools.prometheus.answer import RangeSeries
from gpuledger.tools.prometheus.expression import series
from gpuledger.tools.report.gather import Gatherer, Key
from gpuledger.tools.report.queries import Column, Grouping, Part, Query, Step, queries
from gpuledger.tools.report.rows import Kind
from gpuledger.tools.report.span import Chunk, Span

HOUR_MS = 3_600_000
NOISE = 1e-6
"""Joules and seconds below which a charge is rounding error."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a part of a GPU's hour."""

    kind: str
    """The kind of a row of the report."""
    key: Key = ()

    @property
    def is_owner(self) -> bool:
        """False for idle and unattributed energy."""
        return self.kind not in (Kind.IDLE.value, Kind.UNATTRIBUTED.value)


@dataclass(slots=True)
class Charge:
    """Energy and GPU-seconds."""

    joules: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuHour:
    """One GPU in one hour, and the charges that it consists of."""

    uuid: str
    model: str
    node: str
    begin_ms: int
    end_ms: int
    charges: Mapping[Holder, Charge]


@dataclass(slots=True)
class _Gpu:
    """The amounts of one GPU by cell."""

    device: dict[int, Charge] = field(default_factory=dict)
    all_groups: dict[int, float] = field(default_factory=dict)
    holders: dict[int, dict[Holder, Charge]] = field(default_factory=dict)


def whole_hours(span: Span) -> Span:
    """The whole hours within a span, in cells of an hour. Raises ConfigError if there is none."""
    begin_ms, end_ms = -(-span.begin_ms // HOUR_MS) * HOUR_MS, span.end_ms // HOUR_MS * HOUR_MS
    if begin_ms >= end_ms:
        raise ConfigError("--format focus: the span contains no whole hour", "choose a longer one")
    return replace(span, begin_ms=begin_ms, end_ms=end_ms, step_ms=HOUR_MS)


def gather_hours(gatherer: Gatherer, grouping: Grouping, span: Span, gap_ms: int) -> Iterator[GpuHour]:
    """All hours of all GPUs, in order of time. Their energy is the increase of the GPUs' energy counters."""
    instances = gatherer.label_sets(series(metrics.gpu_mig_info), ("uuid", "parent_uuid"), span)
    parents = {labels["uuid"]: labels["parent_uuid"] for labels in instances}
    gpus = gatherer.label_sets(series(metrics.gpu_info), ("uuid", "name", "node", "hostname", "instance"), span)
    infos = {labels.get("uuid", ""): labels for labels in gpus}
    hours = _Hours(parents)
    gatherer.collect(
        span, gap_ms, lambda step: _queries(grouping, step), hours.add, of_containers=grouping.of == "containers"
    )
    for cell in range(span.cells):
        for uuid, charges in hours.charges(cell, span.cells):
            info = infos.get(uuid, {})
            node = next(filter(None, (info.get(name, "") for name in ("node", "hostname", "instance"))), "")
            yield GpuHour(uuid, info.get("name", ""), node, span.begin_of(cell), span.begin_of(cell + 1), charges)


def _queries(grouping: Grouping, step: Step) -> Iterator[Query]:
    """The queries of energy and apportioned hours, by GPU."""
    for query in queries(grouping, step, Column.SHARED):
        if query.column in (Column.ENERGY, Column.SHARED, Column.OBSERVED):
            yield replace(query, more_labels=("uuid",))


class _Hours:
    """Adds up the results of the queries."""

    def __init__(self, parents: Mapping[str, str]) -> None:
        self._parents = parents
        self._gpus: dict[str, _Gpu] = {}
        self._unrecorded: dict[str, list[float]] = {}

    def add(self, query: Query, chunk: Chunk, result: Iterable[RangeSeries]) -> None:
        """Add the result of one query."""
        for member in result:
            uuid = member.labels.get("uuid", "")
            gpu = self._gpus.setdefault(self._parents.get(uuid, uuid), _Gpu())
            for moment_s, amount in member.points:
                cell = chunk.cell(moment_s)
                if query.part is Part.ALL_GROUPS:
                    gpu.all_groups[cell] = gpu.all_groups.get(cell, 0.0) + amount
                    continue
                if query.part is Part.WHOLE:
                    charge = gpu.device.setdefault(cell, Charge())
                else:
                    holder = _holder(query, member.labels)
                    charge = gpu.holders.setdefault(cell, {}).setdefault(holder, Charge())
                if query.column is Column.ENERGY:
                    charge.joules += amount
                else:
                    charge.seconds += amount

    def charges(self, cell: int, cells: int) -> Iterator[tuple[str, dict[Holder, Charge]]]:
        """The charges of each GPU in a cell: holders, idle, and unattributed energy."""
        if not self._unrecorded:
            self._unrecorded = {uuid: _unrecorded(gpu, cells) for uuid, gpu in self._gpus.items()}
        for uuid, gpu in sorted(self._gpus.items()):
            charges = {holder: replace(charge) for holder, charge in gpu.holders.get(cell, {}).items()}
            unknown = gpu.all_groups.get(cell, 0.0) - _joules(charges, (Kind.GROUP.value, Kind.UNKNOWN.value))
            if cell in gpu.all_groups and unknown > NOISE:
                charges.setdefault(Holder(Kind.UNKNOWN.value), Charge()).joules += unknown
            if (lost := self._unrecorded[uuid][cell]) > NOISE:
                charges.setdefault(Holder(Kind.UNATTRIBUTED.value), Charge()).joules += lost
            held_s = sum([charge.seconds for charge in charges.values()])
            if (idle_s := gpu.device.get(cell, Charge()).seconds - held_s) > NOISE:
                charges.setdefault(Holder(Kind.IDLE.value), Charge()).seconds += idle_s
            charges = {h: charge for h, charge in charges.items() if charge.joules > NOISE or charge.seconds > NOISE}
            if charges:
                yield uuid, dict(sorted(charges.items(), key=lambda item: (not item[0].is_owner, item[0].key)))


def _holder(query: Query, labels: Mapping[str, str]) -> Holder:
    if query.part is not Part.GROUP:
        kinds = {Part.OUTSIDE: Kind.OUTSIDE, Part.IDLE: Kind.IDLE, Part.UNATTRIBUTED: Kind.UNATTRIBUTED}
        return Holder(kinds[query.part].value)
    key = query.grouping.key(labels)
    return Holder(Kind.UNKNOWN.value) if query.grouping.join and not any(key) else Holder(Kind.GROUP.value, key)


def _joules(charges: Mapping[Holder, Charge], kinds: tuple[str, ...]) -> float:
    return sum([charge.joules for holder, charge in charges.items() if holder.kind in kinds])


def _unrecorded(gpu: _Gpu, cells: int) -> list[float]:
    """Energy of each cell that is in the GPU's counter and in no book.

    Energy may be booked a cell after it was counted. With D_k, counted minus booked energy up to cell k, the unrecorded
    energy up to cell k is the least D from k on, but not negative: it never falls, and ends at the whole difference.
    """
    missing = []
    for cell in range(cells):
        holders = gpu.holders.get(cell, {})
        groups = gpu.all_groups.get(cell)
        booked = sum([charge.joules for charge in holders.values()])
        if groups is not None:
            booked += groups - _joules(holders, (Kind.GROUP.value, Kind.UNKNOWN.value))
        missing.append(gpu.device.get(cell, Charge()).joules - booked)
    difference = list(accumulate(missing))
    least = list(accumulate(reversed(difference), min))[::-1]
    upto = [max(0.0, value) for value in least]
    return [after - before for before, after in zip([0.0, *upto], upto, strict=False)]
