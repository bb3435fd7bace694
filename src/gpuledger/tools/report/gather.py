"""Runs the queries of a report in chunks that Prometheus accepts, and sums the results."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.errors import PrometheusError
from gpuledger.tools.prometheus.answer import LARGEST_VALUE, RangeSeries, RangeVector
from gpuledger.tools.prometheus.expression import Expression, Selector
from gpuledger.tools.report import promql
from gpuledger.tools.report.promql import LOOKBACK_S, whole_window
from gpuledger.tools.report.queries import (
    FOR_LARGER,
    MODEL_LABEL,
    SERVED,
    Grouping,
    Part,
    Quantity,
    Query,
    Step,
    queries,
)
from gpuledger.tools.report.span import CHUNK, Chunk, Span

RETRIED = ("timeout", "size", "query")
"""Kinds of errors that fewer cells per query may avoid: too many samples, too many bytes, too slow."""
MOVED = (
    "the response has other timestamps than the query; a query frontend may align them",
    "query Prometheus directly, or set --from and --to to multiples of the step, such as whole days",
)
OVERWRITTEN = (
    "Prometheus scrapes the exporters without honor_labels: true and replaces the labels namespace and pod by "
    "those of the exporter"
)
INTENSITY_POINTS = 20
"""Points of the grid's intensity that are averaged in a cell; grids publish a value every 5 to 60 minutes."""
LARGEST_INTENSITY = 5000.0
"""Grams per kWh; no grid exceeds a third of it. Other values are likely in another unit."""
FITTED = (Quantity.ENERGY, Quantity.PARKED, Quantity.PROMPT, Quantity.OUTPUT)
"""Columns that prefill and decode are estimated from, cell by cell."""

Key = tuple[str, ...]
"""The key of a row."""
QueryRange = Callable[[str, float, float, float], RangeVector]
"""Runs a range query: PromQL, first and last time, and step, in seconds."""


OUTSIDE: Key = ("", Part.OUTSIDE.value)
"""Stands for the row outside of containers in `Totals.by_cell`; no group has this key."""


class Totals:
    """Sums by part, row and column, and energy over time. A column without data is absent."""

    def __init__(
        self,
        cells: int,
        *,
        charged: Quantity = Quantity.ALLOCATED,
        intensity: Sequence[float] | None = None,
        by_cell: Iterable[Quantity] = (),
        bar_of: Sequence[int] = (),  # by cell
    ) -> None:
        """`intensity` has the grams of CO2 per kWh of each cell; `by_cell` columns of groups are kept for each cell."""
        self._cells = cells
        self.intensity = intensity
        self._kept = frozenset(by_cell)
        self.by_cell: dict[Key, dict[Quantity, array[float]]] = {}
        self.charged = charged
        """The hours of GPUs that are charged."""
        self.bar_of = bar_of or range(cells)
        self.bars = self.bar_of[-1] + 1
        self.amounts: dict[Part, dict[Key, dict[Quantity, float]]] = {part: {} for part in Part}
        self.by_model: dict[Part, dict[Key, dict[str, float]]] = {part: {} for part in Part}
        """Charged seconds by the model of the GPU, if each model has its own price."""
        self.energy_by_cell: dict[Part, array[float]] = {}
        """Joules."""
        self.energy_by_bar: dict[Key, array[float]] = {}
        """Joules of each group; a bar covers several cells."""

    def add(self, query: Query, chunk: Chunk, result: Iterable[RangeSeries]) -> None:
        """Add the result of a query. Series of the same row are summed."""
        rows = self.amounts[query.part]
        for series in result:
            key = query.grouping.key(series.labels)
            columns, amount = rows.setdefault(key, {}), sum([value for _, value in series.points])
            columns[query.column] = columns.get(query.column, 0.0) + amount
            if MODEL_LABEL in query.more_labels:
                models = self.by_model[query.part].setdefault(key, {})
                model = series.labels.get(MODEL_LABEL, "")
                models[model] = models.get(model, 0.0) + amount
            if query.column is Quantity.ENERGY:
                self._add_energy(query.part, key, chunk, series)
            if query.part in (Part.GROUP, Part.OUTSIDE) and query.column in self._kept:
                self._keep(query.column, key if query.part is Part.GROUP else OUTSIDE, chunk, series)

    def whole(self, part: Part, column: Quantity) -> float | None:
        """The sum over all rows of a part; None if there is no value."""
        values = [columns[column] for columns in self.amounts[part].values() if column in columns]
        return sum(values) if values else None

    def _keep(self, column: Quantity, key: Key, chunk: Chunk, series: RangeSeries) -> None:
        kept = self.by_cell.setdefault(key, {}).setdefault(column, array("d", bytes(8 * self._cells)))
        for moment_s, amount in series.points:
            kept[chunk.cell(moment_s)] += amount

    def _add_energy(self, part: Part, key: Key, chunk: Chunk, series: RangeSeries) -> None:
        cells = self.energy_by_cell.setdefault(part, array("d", bytes(8 * self._cells)))
        bars = None
        if part is Part.GROUP:
            bars = self.energy_by_bar.setdefault(key, array("d", bytes(8 * self.bars)))
        for moment_s, joules in series.points:
            cell = chunk.cell(moment_s)
            cells[cell] += joules
            if bars is not None:
                bars[self.bar_of[cell]] += joules
        if self.intensity is not None:
            columns = self.amounts[part][key]
            grams = sum([joules * self.intensity[chunk.cell(moment_s)] for moment_s, joules in series.points])
            columns[Quantity.CARBON] = columns.get(Quantity.CARBON, 0.0) + grams


@dataclass(slots=True)
class Gatherer:
    """Runs the queries of one report. A doubtful result is an error, or with `partial` a note."""

    query_range: QueryRange
    partial: bool = False
    progress: Callable[[float], None] = lambda _: None
    """Called with the completed fraction, from 0 to 1."""
    max_cells: int = CHUNK
    """Cells per query that the server has accepted so far."""
    notes: dict[str, None] = field(default_factory=dict)

    def gather(
        self,
        grouping: Grouping,
        span: Span,
        gap_ms: int,
        charged: Quantity = Quantity.ALLOCATED,
        *,
        by_model: bool = False,
        intensity: Sequence[float] | None = None,
    ) -> Totals:
        """Run all queries. Raises PrometheusError if one fails, or if there are no data in the whole span."""
        kept = {*(FITTED if grouping.name == SERVED else ()), *(FOR_LARGER if charged is Quantity.LARGER else ())}
        totals = Totals(span.cells, charged=charged, intensity=intensity, by_cell=kept, bar_of=span.bars)

        def needed(step: Step) -> Iterable[Query]:
            return queries(grouping, step, charged, by_model=by_model)

        self.collect(span, gap_ms, needed, totals.add, of_containers=grouping.of == "containers")
        return totals

    def collect(
        self,
        span: Span,
        gap_ms: int,
        queries_of: Callable[[Step], Iterable[Query]],
        add: Callable[[Query, Chunk, Iterable[RangeSeries]], None],
        *,
        of_containers: bool,
    ) -> None:
        """Run queries for all cells and pass on their results."""
        has_data, chunks = bytearray(span.cells), span.chunks()
        for number, chunk in enumerate(chunks):
            step = Step(chunk.step_ms, gap_ms)
            cells = self._cells_with_value(promql.devices(step.text), chunk)
            for cell in cells:
                has_data[cell] = 1
            if not cells:
                continue
            if of_containers:
                self._check_labels(promql.overwritten_namespaces(step.text), chunk)
            new_devices = bool(self._cells_with_value(promql.new_devices(step.text), chunk))
            needed = [query for query in queries_of(step) if new_devices or not query.for_new_devices]
            for done, query in enumerate(needed):
                self.progress((number + done / len(needed)) / len(chunks))
                for piece, answer in self._run(query.promql, chunk):
                    add(query, piece, answer.series)
        if not any(has_data):
            fix = "check that Prometheus scraped it then, and --prometheus.selector"
            raise PrometheusError(f"no metrics of gpuledger from {span.begin} to {span.end}", fix, "empty")
        self._note_gaps(span, has_data)

    def label_sets(self, info: Selector, labels: Iterable[str], span: Span) -> Iterator[Mapping[str, str]]:
        """The values of these labels on all series in any cell."""
        for chunk in span.chunks():
            query = info.over("max_over_time", f"{chunk.step_ms}ms").max_by(*labels)
            for _, answer in self._run(query, chunk):
                yield from (series.labels for series in answer.series)

    def intensity(self, query: str, span: Span) -> array[float]:
        """Grams of CO2 per kWh in each cell. Raises PrometheusError if the query does not return one series of them."""
        values: list[float | None] = [None] * span.cells
        for chunk in span.chunks():
            for piece, answer in self._run(averaged(query, chunk.step_ms), chunk):
                if len(answer.series) > 1:
                    what = f"--carbon-query: {query!r} returns {len(answer.series)} series"
                    raise PrometheusError(what, "select one of them, or aggregate them with avg", "format")
                for moment_s, value in (point for series in answer.series for point in series.points):
                    values[piece.cell(moment_s)] = value
        filled, notes = fill(values, query)
        self.notes.update(dict.fromkeys(notes))
        return filled

    def _cells_with_value(self, query: Expression, chunk: Chunk) -> set[int]:
        """The cells in which the result is above 0."""
        return {
            piece.cell(moment_s)
            for piece, answer in self._run(query, chunk)
            for series in answer.series
            for moment_s, value in series.points
            if value > 0
        }

    def _run(self, query: Expression, chunk: Chunk) -> Iterator[tuple[Chunk, RangeVector]]:
        pending = [chunk]
        while pending:
            piece = pending.pop()
            if piece.count > self.max_cells:
                pending += reversed(piece.halves())
                continue
            try:
                answer = self.query_range(query.text, piece.first_s, piece.last_s, piece.step_ms / 1000)
            except PrometheusError as error:
                if error.kind not in RETRIED:
                    raise
                if piece.count == 1:
                    fix = "a shorter --step queries less at a time"
                    raise PrometheusError(str(error), fix, error.kind) from None
                self.max_cells = piece.count // 2
                pending.append(piece)
                continue
            ends = [point[0] for series in answer.series for point in (*series.points[:1], *series.points[-1:])]
            if not all(map(piece.ends_at, ends)):
                raise PrometheusError(*MOVED, "format")
            self._check_answer(answer, query)
            yield piece, answer

    def _check_answer(self, answer: RangeVector, query: Expression) -> None:
        doubts = [f"Prometheus warns: {warning}" for warning in answer.warnings]
        if answer.dropped:
            doubts.append(f"{answer.dropped} values of {query.metric} are NaN, infinite or above {LARGEST_VALUE:g}")
        self._report_doubts(doubts)

    def _check_labels(self, query: Expression, chunk: Chunk) -> None:
        results = (series for _, answer in self._run(query, chunk) for series in answer.series)
        overwritten = any(series.labels.get("exported_namespace") for series in results)
        self._report_doubts([OVERWRITTEN] if overwritten else [])

    def _report_doubts(self, doubts: Sequence[str]) -> None:
        if doubts and not self.partial:
            raise PrometheusError(f"{doubts[0]}; the report would be wrong", "--allow-partial creates it", "partial")
        self.notes.update(dict.fromkeys(doubts))

    def _note_gaps(self, span: Span, has_data: bytearray) -> None:
        first, last = has_data.find(1), has_data.rfind(1)
        if span.begin_of(first) - span.begin_ms >= span.step_ms:
            self.notes[f"no data before {span.show(span.begin_of(first))}"] = None
        if span.end_ms - span.begin_of(last + 1) >= span.step_ms:
            self.notes[f"no data after {span.show(span.begin_of(last + 1))}"] = None
        gaps = [len(gap) for gap in re.findall(rb"\x00+", has_data[first:last])]
        if missing := sum(cells for cells in gaps if cells * span.step_ms >= LOOKBACK_S * 1000):
            self.notes[f"no data of any GPU in {100 * missing / span.cells:.1f} % of the time"] = None


def averaged(query: str, step_ms: int) -> Expression:
    """The mean of a user's query over the cell that ends now."""
    step = f"{max(1, step_ms // INTENSITY_POINTS)}ms"
    return Expression(query, metric=query).sampled("avg_over_time", whole_window(step_ms), step)


def fill(values: Sequence[float | None], query: str) -> tuple[array[float], list[str]]:
    """Grams per kWh of each cell, with notes. A cell without a value gets that of the nearest cell with one."""
    known = [cell for cell, value in enumerate(values) if value is not None]
    if not known:
        fix = "check that it returns grams of CO2 equivalent per kWh in this span"
        raise PrometheusError(f"--carbon-query: {query!r} has no values", fix, "empty")
    for value in values:
        if value is not None and not 0 <= value <= LARGEST_INTENSITY:
            fix = "return grams of CO2 equivalent per kWh"
            raise PrometheusError(f"--carbon-query: {value:g} is no carbon intensity of a grid", fix, "format")
    filled, nearest = array("d"), 0
    for cell in range(len(values)):
        while nearest + 1 < len(known) and abs(known[nearest + 1] - cell) <= abs(known[nearest] - cell):
            nearest += 1
        filled.append(values[known[nearest]] or 0.0)
    missing = len(values) - len(known)
    part = f"{100 * missing / len(values):.1f} %"
    notes = [f"--carbon-query has no value in {part} of the time; the nearest one is used"] if missing else []
    return filled, notes
