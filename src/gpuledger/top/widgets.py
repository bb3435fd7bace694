"""Two things to draw on for textual: some lines, and the table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpuledger.top.columns import Layout
from gpuledger.top.line import LOOKS, UNICODE, Glyphs, Line, Piece
from gpuledger.top.rows import Row, found_in
from gpuledger.top.table import View

STYLES = {name: Style.parse(look.rich) if look.rich else Style() for name, look in LOOKS.items()}
WHEEL = 3
"""Rows that one step of a mouse's wheel moves."""


def strip(line: Line, columns: int) -> Strip:
    """The line as textual draws it: as segments, so that nothing in a name is taken for markup."""
    return Strip([Segment(text, STYLES[style]) for text, style in line]).adjust_cell_length(columns)


class Lines(Widget):
    """As many lines as it is given."""

    DEFAULT_CSS = "Lines { height: auto; width: 100%; }"

    def __init__(self, id: str | None = None) -> None:  # noqa: A002 - as textual calls it
        super().__init__(id=id)
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these."""
        is_as_high = len(lines) == len(self._lines)
        self._lines = lines
        self.styles.height = max(1, len(lines))
        self.refresh(layout=not is_as_high)

    def render_line(self, y: int) -> Strip:
        """Called by textual for each line."""
        return strip(self._lines[y] if y < len(self._lines) else (), self.size.width)


class Table(Widget):
    """Draws the rows that can be seen, and no others. The cursor stays with its row whatever the order becomes."""

    DEFAULT_CSS = "Table { height: 1fr; width: 100%; }"

    class Sort(Message):
        """A title was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:  # noqa: A002 - as textual calls it
        super().__init__(id=id)
        self._glyphs = glyphs
        self._rows: list[Row] = []
        self._view = View()
        self._now: float | None = None
        self._first = 0
        self._cursor: int | None = None
        self.search = ""

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        return self._rows[self._cursor] if self._cursor is not None else None

    def show(self, rows: list[Row], view: View, now: float | None) -> None:
        """Draw these."""
        before = self.chosen
        self._rows, self._view, self._now = rows, view, now
        if before is not None:
            same = next((at for at, row in enumerate(rows) if row.key == before.key), self._cursor or 0)
            self._cursor = min(same, len(rows) - 1) if rows else None
        self._scroll()
        self.refresh()

    def move(self, by: int) -> None:
        """Move the cursor by so many rows."""
        self.go(by if self._cursor is None else self._cursor + by, is_new=self._cursor is None)

    def go(self, to: int, *, is_new: bool = False) -> None:
        """Move the cursor there, or to the end that is nearest; a new one is at the first row that is seen."""
        if self._rows:
            self._cursor = min(len(self._rows) - 1, max(0, self._first if is_new else to))
            self._scroll()
            self.refresh()

    def page(self) -> int:
        """Rows that can be seen."""
        return max(1, self.size.height - 1)

    def leave(self) -> None:
        """No row is chosen any more."""
        self._cursor, self.search = None, ""
        self.refresh()

    def find(self, step: int, *, here: bool = False) -> bool:
        """Move to the next row with the words of the search; False if there is none."""
        start = min(0, step) if self._cursor is None else self._cursor if here else self._cursor + step
        for distance in range(len(self._rows)):
            at = (start + step * distance) % len(self._rows)
            if found_in(self._rows[at], self.search):
                self.go(at)
                return True
        return False

    def _scroll(self) -> None:
        """As little as needed for the cursor to be seen."""
        page = self.page()
        if self._cursor is not None:
            self._first = min(max(self._first, self._cursor - page + 1), self._cursor)
        self._first = max(0, min(self._first, len(self._rows) - page))

    def render_line(self, y: int) -> Strip:
        """Called by textual for each line."""
        columns = self.size.width
        layout = Layout.fit(self._view.choice.grouping, columns, self._now)
        if y == 0:
            line = layout.heading(self._view.sort, self._glyphs, falling=self._view.falling)
            return strip((*line, Piece(" " * columns, "head")), columns)
        at = self._first + y - 1
        if at >= len(self._rows):
            return strip((Piece("nobody" if y == 1 else "", "dim"),), columns)
        row = self._rows[at]
        if at == self._cursor:
            return strip((*layout.line(row, self._glyphs, "cursor"), Piece(" " * columns, "cursor")), columns)
        is_match = bool(self.search) and found_in(row, self.search)
        return strip(layout.line(row, self._glyphs, "match" if is_match else "" if row.active else "dim"), columns)

    def on_click(self, event: events.Click) -> None:
        """A title sorts, a row is chosen."""
        if event.y == 0:
            column = Layout.fit(self._view.choice.grouping, self.size.width).at(event.x)
            if column:
                self.post_message(self.Sort(column))
        elif self._first + event.y - 1 < len(self._rows):
            self.go(self._first + event.y - 1)

    def on_mouse_scroll_down(self) -> None:
        """The wheel."""
        self.move(WHEEL)

    def on_mouse_scroll_up(self) -> None:
        """The wheel."""
        self.move(-WHEEL)

    def on_resize(self) -> None:
        """Another number of rows can be seen."""
        self._scroll()
