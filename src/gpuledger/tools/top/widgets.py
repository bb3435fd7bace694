"""The widgets of the live view: the table, the prompt, and full-screen pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static

from gpuledger.tools.top.columns import Columns, View, cells, fit_rows, headings
from gpuledger.tools.top.rows import TableRow, is_match
from gpuledger.tools.top.text import Glyphs, Line

MATCH = "bold yellow"
MAX_REMOVED = 50
"""Rows that are removed one by one; removing a row takes as long as adding a hundred."""


def rich_text(*lines: Line) -> Text:
    """Lines for textual; names are never interpreted as markup."""
    text = Text("\n", no_wrap=True, overflow="crop", end="").join(Text.assemble(*line) for line in lines)
    text.no_wrap, text.overflow = True, "crop"
    return text


class Table(DataTable[Text], inherit_bindings=False):
    """The table of owners. Only visible rows are formatted, so that thousands of rows cost little.

    A cursor below the first row stays on its row in any order; on the first row it stays at the top.
    """

    DEFAULT_CSS = """
    Table { height: 1fr; background: transparent; color: ansi_default; scrollbar-size: 0 0; }
    Table:focus { background-tint: transparent; }
    Table > .datatable--header, Table:focus > .datatable--header {
        background: ansi_default; background-tint: transparent; color: ansi_default; text-style: reverse;
    }
    Table > .datatable--cursor, Table:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    Table > .datatable--hover { background: transparent; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor_up", show=False),
        Binding("down,j", "cursor_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(cursor_type="row", cell_padding=0)
        self._glyphs = glyphs
        self._owner_rows: Sequence[TableRow] = ()
        self._fitting: Columns = ()
        self._titles: list[str] = []
        self.search = ""

    @property
    def chosen(self) -> TableRow | None:
        """The row under the cursor."""
        return self._owner_rows[self.cursor_row] if self.cursor_row < len(self._owner_rows) else None

    def show(self, rows: Sequence[TableRow], view: View, width: int) -> None:
        """Show these rows."""
        chosen, position = self.chosen, self.cursor_row
        self._owner_rows, self._fitting = rows, fit_rows(rows, view, width)
        titles = headings(self._fitting, view, self._glyphs)
        if titles != self._titles or self.row_count - len(rows) > MAX_REMOVED:
            self._reset(titles)
        for key in list(self.rows)[len(rows) :]:
            self.remove_row(key)
        empty = [Text()] * len(titles)
        for _ in range(self.row_count, len(rows)):
            self.add_row(*empty)  # `get_row_at` provides the cells
        if chosen is not None and position > 0:
            same = (index for index, row in enumerate(rows) if row.key == chosen.key)
            self.move_cursor(row=next(same, position), animate=False)
        self.notify_style_update()  # drops cached cells

    def _reset(self, titles: list[str]) -> None:
        """Remove all rows and, if the titles changed, all columns, without losing the scroll position."""
        top, has_new_columns = self.scroll_offset.y, titles != self._titles
        self.clear(columns=has_new_columns)
        if has_new_columns:
            self._titles = titles
            for (column, width), title in zip(self._fitting, titles, strict=True):
                self.add_column(Text(title), width=width + 1, key=column.name)
        self.scroll_to(y=top, animate=False)

    def get_row_at(self, row_index: int) -> list[Any]:
        """The cells of a row, formatted when the row is drawn."""
        row = self._owner_rows[row_index]
        is_matching = bool(self.search) and is_match(row, self.search)
        style = MATCH if is_matching else "" if row.active else "dim"
        return [Text(text, style) for text, style in cells(self._fitting, row, self._glyphs, style)]

    def leave(self) -> None:
        """Move the cursor to the top and end the search."""
        self.search = ""
        self.move_cursor(row=0, animate=False)
        self.notify_style_update()

    def find(self, step: int, *, stay: bool = False) -> bool:
        """Move to the next match in the direction of `step`; False if there is none."""
        start = self.cursor_row + (0 if stay else step)
        for distance in range(len(self._owner_rows)):
            position = (start + step * distance) % len(self._owner_rows)
            if is_match(self._owner_rows[position], self.search):
                self.move_cursor(row=position, animate=False)
                return True
        return False


class Prompt(Horizontal):
    """A line for typing a filter or a search."""

    DEFAULT_CSS = """
    Prompt { height: 1; dock: bottom; display: none; }
    Prompt Label { width: auto; color: ansi_cyan; text-style: bold; }
    Prompt Input { width: 1fr; background: transparent; color: ansi_default; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._label = Label()
        self._input = Input(compact=True, select_on_focus=False)
        self.purpose = ""
        """`filter`, `search`, or empty while the prompt is closed."""

    def compose(self) -> ComposeResult:
        """The label and the input."""
        yield self._label
        yield self._input

    def open(self, purpose: str, text: str = "") -> None:
        """Start typing."""
        self.purpose = purpose
        self._label.update(f"{purpose}: ")
        with self.prevent(Input.Changed):
            self._input.value = text
        self._input.cursor_position = len(text)
        self.display = True
        self.screen.set_focus(self._input)  # at once: the next keys may be waiting already

    def close(self) -> None:
        """Stop typing."""
        self.purpose = ""
        self.display = False


class Page(ModalScreen[None]):
    """Lines over the whole screen, which can be scrolled."""

    DEFAULT_CSS = """
    Page { background: transparent; }
    Page VerticalScroll {
        height: 1fr; background: transparent; scrollbar-size: 1 1;
        scrollbar-color: ansi_cyan; scrollbar-color-hover: ansi_cyan; scrollbar-color-active: ansi_cyan;
        scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
        scrollbar-background-active: ansi_default;
    }
    """
    AUTO_FOCUS = "VerticalScroll"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", key_display="Esc"),
        *(Binding(key, "dismiss", show=False) for key in ("q", "enter", "h", "?", "f1", "space")),
        *(Binding(key, "app.quit", show=False) for key in ("f10", "ctrl+c")),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, lines: Callable[[], list[Line]]) -> None:
        super().__init__()
        self._lines = lines
        self._content = Static()

    def compose(self) -> ComposeResult:
        """The lines and the keys."""
        with VerticalScroll():
            yield self._content
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Draw."""
        self.draw()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self.draw()

    def draw(self) -> None:
        """Draw the current lines."""
        self._content.update(rich_text(*self._lines()))

    def action_scroll(self, rows: int) -> None:
        """Scroll, as in a pager."""
        for pager in self.query(VerticalScroll):
            pager.scroll_relative(y=rows, animate=False)
