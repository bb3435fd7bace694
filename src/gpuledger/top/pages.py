"""A page over the whole screen of the live view: help, details, charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from gpuledger.top.line import Line, Piece
from gpuledger.top.widgets import Lines


class Page(ModalScreen[None]):
    """Some lines over all the screen, that can be scrolled; any of its keys closes it."""

    CSS = """
    Page { background: transparent; }
    Page VerticalScroll { height: 1fr; background: transparent; scrollbar-size: 1 1; }
    Page #hint { height: 1; dock: bottom; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, "dismiss") for key in ("escape", "q", "enter", "h", "?", "f1", "space")),
        *(Binding(key, "app.leave") for key in ("f10", "ctrl+c")),
        Binding("j", "down"),
        Binding("k", "up"),
    ]

    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, lines: Callable[[], list[Line]]) -> None:
        super().__init__()
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The lines, and how to get away from them."""
        with VerticalScroll():
            yield Lines("page")
        yield Lines("hint")

    def on_mount(self) -> None:
        """Draw."""
        self.query_one("#hint", Lines).show([(Piece("Esc", "key"), Piece(" back"))])
        self.draw()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self.draw()

    def draw(self) -> None:
        """Draw the lines as they are now; before it is put together there is nothing to draw on."""
        for page in self.query("#page").results(Lines):
            page.show(self._lines())

    def action_down(self) -> None:
        """As in a pager."""
        for lines in self.query(VerticalScroll):
            lines.scroll_down(animate=False)

    def action_up(self) -> None:
        """As in a pager."""
        for lines in self.query(VerticalScroll):
            lines.scroll_up(animate=False)
