"""The live view: keys, pages, and when to draw. The lines and rows come from other modules."""

from __future__ import annotations

import asyncio
import signal
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import DataTable, Footer, Input, Static

from gpuledger.config import durations
from gpuledger.model.plaintext import escaped
from gpuledger.tools.top.bars import History
from gpuledger.tools.top.cards import Screen, gpu_lines, problem_lines, server_lines, title
from gpuledger.tools.top.columns import View, summary
from gpuledger.tools.top.feed import Feed
from gpuledger.tools.top.keys import CHANGES, KEYS, Key, name_of
from gpuledger.tools.top.pages import charts, details, help_lines
from gpuledger.tools.top.text import ASCII, BAD, UNICODE, WARN, Line, cropped, joined, styled
from gpuledger.tools.top.widgets import Page, Prompt, Table, rich_text
from gpuledger.web.snapshot.schema import Gpu, Snapshot

MAX_SERVERS = 4
OTHER_ROWS = 8
"""Rows of the screen that are not for GPUs; GPUs get half of the remaining ones."""
USUAL_GPUS = 8
"""This many GPUs have a line each on a screen of 24 rows, whatever the problems are."""
WHILE_TYPING = {"away", "quit"}
"""Actions that are available while the user types."""


class Changed(Message):
    """The feed has a new snapshot, or lost its source."""


def _bindings(key: Key) -> list[Binding]:
    """Only the first key of each action is in the footer."""
    return [
        Binding(
            name,
            "quit" if name == "ctrl+c" else f"{key.action}({name!r})" if key.with_key else key.action,
            key.label,
            show=bool(key.label) and name == key.keys[0],
            key_display=name_of(name),
            priority=key.priority or name == "ctrl+c",
        )
        for name in key.keys
    ]


class Top(App[None]):
    """The live view. Read-only: keys change only the display."""

    CSS = """
    Screen { background: transparent; }
    #above { height: auto; }
    Footer { background: transparent; }
    FooterKey { background: transparent; }
    FooterKey .footer-key--key { background: transparent; color: ansi_cyan; padding: 0; }
    FooterKey .footer-key--description { background: transparent; color: ansi_default; padding: 0 1 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [binding for key in KEYS if key.action for binding in _bindings(key)]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, feed: Feed, view: View | None = None, *, utf8: bool = True) -> None:
        super().__init__(ansi_color=True)  # the colours of the terminal, light or dark
        self._feed = feed
        self._view = view or View()
        self._glyphs = UNICODE if utf8 else ASCII
        self._history = History()
        self._snapshot: Snapshot | None = None
        self._lost = ""
        self._is_paused = self._is_compact = False
        self._filter_before = ""
        self._above, self.table, self._prompt = Static(id="above"), Table(self._glyphs), Prompt()

    def compose(self) -> ComposeResult:
        """Problems and GPUs, the table, the keys."""
        yield self._above
        yield self.table
        yield self._prompt
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start reading. SIGTERM restores the terminal."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self.table.focus()
        self._feed.start(self._announce)
        self._draw()

    def _announce(self) -> None:
        """Called by the feed's thread."""
        self.post_message(Changed())

    def on_unmount(self) -> None:
        """Stop reading."""
        self._feed.stop()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self._draw()

    def on_changed(self) -> None:
        """Show the new snapshot, unless the screen is frozen."""
        state = self._feed.state
        if state.snapshot is not None:
            self._history.add(state.snapshot)
        if not self._is_paused:
            self._snapshot, self._lost = state.snapshot, state.lost
            self._draw()

    def _draw(self) -> None:
        if not self.screen_stack[0].is_mounted:
            return
        columns = self.size.width
        rows = self._view.rows(self._snapshot) if self._snapshot is not None else []
        above = self._snapshot_lines(self._snapshot) if self._snapshot is not None else self._waiting_lines()
        above.append(cropped(summary(rows, self._view, self._glyphs), columns))
        self._above.update(rich_text(*above))
        self.table.show(rows, self._view, columns)
        if isinstance(self.screen, Page):
            self.screen.draw()

    def _snapshot_lines(self, snapshot: Snapshot) -> list[Line]:
        screen = Screen(columns=self.size.width, glyphs=self._glyphs, compact=self._is_compact)
        height = self.size.height
        problems = problem_lines(snapshot, screen, self._lost, max(1, height // 5))
        room = max(1, (height - OTHER_ROWS - len(problems)) // 2, min(USUAL_GPUS, height - 2 * OTHER_ROWS))
        interval = "" if self._feed.interval_s == 1 else f"every {durations.show(self._feed.interval_s)}"
        paused = styled("PAUSED" if self._is_paused else "", WARN)
        first = joined([paused, title(snapshot, source=self._feed.name, interval=interval)])
        gpus = gpu_lines(snapshot, self._gpus(snapshot), screen, room, self._history)
        return [cropped(first, screen.columns), *problems, *gpus, *server_lines(snapshot, screen, MAX_SERVERS)]

    def _waiting_lines(self) -> list[Line]:
        source = f"connecting to {self._feed.name}" if self._feed.name else "reading the GPUs"
        lines = [styled("gpuledger", "bold") + styled(f"  {source} ...")]
        lines += [styled(self._lost, BAD)] if self._lost else []
        return [cropped(line, self.size.width) for line in lines]

    def _gpus(self, snapshot: Snapshot) -> list[Gpu]:
        return [gpu for gpu in snapshot.gpus if self._view.choice.gpu in (None, gpu.gpu)]

    def _change(self, view: View) -> None:
        self._view = view
        self._draw()

    def _choose(self, **changes: object) -> None:
        self._change(self._view.choosing(**changes))

    # Actions, by their names in KEYS

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - textual's
        """While the user types, keys are text."""
        return not self._prompt.purpose or action in WHILE_TYPING

    def action_leave(self) -> None:
        """Quit."""
        self.exit()

    def action_help(self) -> None:
        """Show all keys and columns."""
        self.push_screen(Page(lambda: help_lines(self._glyphs)))

    def action_details(self) -> None:
        """Show all fields of the row under the cursor."""
        if (row := self.table.chosen) is not None:
            now = self._snapshot.time if self._snapshot is not None else 0.0
            self.push_screen(Page(lambda: details(row, self._glyphs, now)))

    def action_history(self) -> None:
        """Show charts, which are updated."""
        self.push_screen(Page(self._charts))

    def _charts(self) -> list[Line]:
        if self._snapshot is None:
            return [styled("no snapshot yet")]
        columns, height = self.size
        screen = Screen(columns=columns - 1, glyphs=self._glyphs)
        return charts(self._gpus(self._snapshot), self._history, screen, height - 2)

    def action_change(self, key: str) -> None:
        """Change the view."""
        self._change(CHANGES[key](self._view))

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the clicked column."""
        if event.column_key.value is not None:
            self._change(self._view.sorted_by(event.column_key.value))

    def on_data_table_row_selected(self) -> None:
        """Show the clicked row."""
        self.action_details()

    def action_other(self, key: str) -> None:
        """Show only the previous or next GPU."""
        indexes = sorted({gpu.gpu for gpu in self._snapshot.gpus}) if self._snapshot is not None else []
        if indexes:
            chosen, step = self._view.choice.gpu, 1 if key == "]" else -1
            position = indexes.index(chosen) + step if chosen in indexes else min(0, step)
            self._choose(gpu=indexes[position % len(indexes)])

    def action_compact(self) -> None:
        """Switch between lines and cards."""
        self._is_compact = not self._is_compact
        self._draw()

    def action_pause(self) -> None:
        """Freeze the screen, or show the newest snapshot again."""
        self._is_paused = not self._is_paused
        self._draw()
        self.on_changed()

    def action_retry(self) -> None:
        """Read now."""
        self._feed.retry()

    def action_search(self) -> None:
        """Type a search."""
        self._type("search")

    def action_filter(self) -> None:
        """Type a filter."""
        self._filter_before = self._view.choice.filter
        self._type("filter", self._filter_before)

    def _type(self, purpose: str, text: str = "") -> None:
        self.query_one(Footer).display = False
        self._prompt.open(purpose, text)

    def _stop_typing(self) -> None:
        self._prompt.close()
        self.query_one(Footer).display = True
        self.table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter or search while it is typed."""
        text = escaped(event.value, in_columns=True)
        if self._prompt.purpose == "filter":
            self._choose(filter=text)
        elif self._prompt.purpose == "search":
            self.table.search = text
            if text:
                self.table.find(1, stay=True)
            else:
                self.table.leave()
            self._draw()

    def on_input_submitted(self) -> None:
        """Keep the filter or search."""
        self._stop_typing()

    def action_again(self, key: str) -> None:
        """Go to the next or previous match."""
        if self.table.search and not self.table.find(1 if key == "n" else -1):
            self.bell()

    def action_away(self) -> None:
        """Leave the prompt, then the cursor and the search, then the filter."""
        purpose = self._prompt.purpose
        if purpose:
            self._stop_typing()
        if purpose == "filter":
            self._choose(filter=self._filter_before)
        elif self.table.cursor_row or self.table.search:
            self.table.leave()
        elif not purpose:
            self._choose(filter="")
