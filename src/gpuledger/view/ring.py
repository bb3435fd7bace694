"""Numbers over the last so many moments, in memory that is set from the start."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

Values = Sequence[float | None]
NOTHING = math.nan
"""What is not known; in an array there is no None."""


class Ring:
    """Rows of some columns each, all over the same moments. A row comes with its first values and goes with its last.

    At most `most` rows: for a newcomer the row that was silent longest makes room, and where none was, there is none.
    """

    def __init__(self, points: int, columns: int, most: int) -> None:
        self._points, self._columns, self._most = points, columns, most
        self._times = array("d")
        self._next = 0
        self._rows: dict[str, tuple[array[float], ...]] = {}
        self._seen: dict[str, int] = {}  # the moment of a row's last values
        self._moment = 0

    def add(self, time_s: float, rows: Mapping[str, Values]) -> None:
        """One more moment; the oldest falls out when there are enough."""
        at, self._next = self._next, (self._next + 1) % self._points
        self._moment += 1
        if at == len(self._times):
            self._times.append(time_s)
        else:
            self._times[at] = time_s
        for name in rows:
            if name not in self._rows and self._has_room(rows):
                self._rows[name] = tuple(array("f", [NOTHING]) * self._points for _ in range(self._columns))
        for name, columns in self._rows.items():
            values = rows.get(name)
            if values is not None:
                self._seen[name] = self._moment
            for column, value in zip(columns, values or [None] * self._columns, strict=True):
                column[at] = NOTHING if value is None else value
        for name in [name for name, seen in self._seen.items() if seen <= self._moment - self._points]:
            self._drop(name)

    def clear(self) -> None:
        """As new."""
        self._times, self._next, self._rows, self._seen = array("d"), 0, {}, {}

    def times(self) -> list[float]:
        """Of all moments, oldest first."""
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
        if len(self._rows) < self._most:
            return True
        silent = [name for name in self._rows if name not in rows]
        if silent:
            self._drop(min(silent, key=lambda name: self._seen[name]))
        return bool(silent)

    def _drop(self, name: str) -> None:
        del self._rows[name], self._seen[name]
