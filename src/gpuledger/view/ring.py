"""A ring buffer of rows of numbers, with a fixed size in memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

Values = Sequence[float | None]
UNKNOWN = math.nan
"""Stands for None, which an array cannot hold."""


class Ring:
    """Rows with a fixed number of columns over the last `points` times.

    A row is dropped once all its values are older than that. If there are `max_rows` rows, a new row evicts the row
    that has been without values for the longest time; if every row has values, the new row is ignored.
    """

    def __init__(self, points: int, columns: int, max_rows: int) -> None:
        self._points, self._columns, self._max_rows = points, columns, max_rows
        self._times = array("d")
        self._next = 0
        self._rows: dict[str, tuple[array[float], ...]] = {}
        self._updated: dict[str, int] = {}  # number of the last addition with values for a row
        self._additions = 0

    def add(self, time_s: float, rows: Mapping[str, Values]) -> None:
        """Add the values of one time; the oldest time is overwritten if the ring is full."""
        at, self._next = self._next, (self._next + 1) % self._points
        self._additions += 1
        if at == len(self._times):
            self._times.append(time_s)
        else:
            self._times[at] = time_s
        for name in rows:
            if name not in self._rows and self._has_room(rows):
                self._rows[name] = tuple(array("f", [UNKNOWN]) * self._points for _ in range(self._columns))
        for name, columns in self._rows.items():
            values = rows.get(name)
            if values is not None:
                self._updated[name] = self._additions
            for column, value in zip(columns, values or [None] * self._columns, strict=True):
                column[at] = UNKNOWN if value is None else value
        oldest = self._additions - self._points
        for name in [name for name, updated in self._updated.items() if updated <= oldest]:
            self._drop(name)

    def clear(self) -> None:
        """Remove everything."""
        self._times, self._next, self._rows, self._updated = array("d"), 0, {}, {}

    def times(self) -> list[float]:
        """All times, oldest first."""
        return self._in_order(self._times)

    def rows(self) -> dict[str, list[list[float | None]]]:
        """The columns of each row, oldest value first."""
        return {
            name: [[None if math.isnan(value) else value for value in self._in_order(column)] for column in columns]
            for name, columns in self._rows.items()
        }

    def _in_order(self, column: array[float]) -> list[float]:
        count = len(self._times)
        start = self._next if count == self._points else 0
        return [*column[start:count], *column[:start]]

    def _has_room(self, rows: Mapping[str, Values]) -> bool:
        if len(self._rows) < self._max_rows:
            return True
        absent = [name for name in self._rows if name not in rows]
        if absent:
            self._drop(min(absent, key=lambda name: self._updated[name]))
        return bool(absent)

    def _drop(self, name: str) -> None:
        del self._rows[name], self._updated[name]
