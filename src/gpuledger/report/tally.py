"""The answers of Prometheus added up: by column and group, and energy by cell too. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from gpuledger.fleet.answer import Course
from gpuledger.report.questions import Column, Part, Question
from gpuledger.report.span import Chunk

Key = tuple[str, ...]
"""The name of a group."""
MOST_BARS = 31


class Tally:
    """What is known so far. A column that nothing was said of stays absent."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self.bars = min(cells, MOST_BARS)
        self.amounts: dict[Part, dict[Key, dict[Column, float]]] = {part: {} for part in Part}
        self.energy_by_cell: dict[Part, array[float]] = {}
        """Joules."""
        self.energy_by_bar: dict[Key, array[float]] = {}
        """Joules of each group, a bar for several cells."""

    def add(self, question: Question, chunk: Chunk, courses: Iterable[Course]) -> None:
        """One answer. Series that are of the same group are added up."""
        groups = self.amounts[question.part]
        for course in courses:
            key = question.grouping.key(course.labels)
            columns = groups.setdefault(key, {})
            risen = sum([value for _, value in course.points])
            columns[question.column] = columns.get(question.column, 0.0) + risen
            if question.column is Column.ENERGY:
                self._add_energy(question.part, key, chunk, course)

    def bar_of(self, cell: int) -> int:
        """The bar that a cell is part of."""
        return cell * self.bars // self._cells

    def _add_energy(self, part: Part, key: Key, chunk: Chunk, course: Course) -> None:
        cells = self.energy_by_cell.setdefault(part, array("d", bytes(8 * self._cells)))
        bars = None
        if part is Part.GROUP:
            bars = self.energy_by_bar.setdefault(key, array("d", bytes(8 * self.bars)))
        for moment_s, joules in course.points:
            cell = chunk.cell(moment_s)
            cells[cell] += joules
            if bars is not None:
                bars[self.bar_of(cell)] += joules

    def whole(self, part: Part, column: Column) -> float | None:
        """Of all groups of a part together; None when nothing was said of it."""
        found = [columns[column] for columns in self.amounts[part].values() if column in columns]
        return sum(found) if found else None
