"""The live view. All that it shows is made elsewhere, of a picture; here are keys, pages and when to draw."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuledger import durations
from gpuledger.top.cards import Screen, gpu_lines, problems, title
from gpuledger.top.charts import charts
from gpuledger.top.columns import COLUMNS
from gpuledger.top.details import details
from gpuledger.top.feed import Feed
from gpuledger.top.history import History
from gpuledger.top.keys import KEYS, SORTS, Key, footer, help_lines
from gpuledger.top.line import ASCII, UNICODE, Line, Piece, cropped, joined
from gpuledger.top.pages import Page
from gpuledger.top.prompt import Prompt
from gpuledger.top.seen import Gpu, Seen
from gpuledger.top.table import View, summary, table
from gpuledger.top.widgets import Lines, Table

MOST_PROBLEMS = 3
BESIDE_GPUS = 8
"""Rows of the screen that are not for GPUs; they have half of the others."""
USUAL_GPUS = 8
"""So many have a line each on 24 rows, whatever is wrong."""


class Changed(Message):
    """There is another picture, or none any more."""


def _bindings(key: Key) -> list[Binding]:
    """Ctrl-C is textual's own unless it comes first."""
    return [
        Binding(one, f"{key.action}({one!r})" if key.told else key.action, priority=one == "ctrl+c")
        for one in key.keys
    ]  # fmt: skip


class Top(App[None]):
    """Read-only: no key changes anything but what is seen."""

    CSS = """
    Screen { background: transparent; }
    #footer { height: 1; dock: bottom; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [binding for key in KEYS for binding in _bindings(key)]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, feed: Feed, view: View | None = None, *, utf8: bool = True) -> None:
        super().__init__(ansi_color=True)  # the colours the terminal was set to
        self._feed = feed
        self._view = view or View()
        self._glyphs = UNICODE if utf8 else ASCII
        self._history = History()
        self._seen: Seen | None = None
        self._lost = ""
        self._is_paused = self._is_compact = False
        self._prompt: Prompt | None = None

    def compose(self) -> ComposeResult:
        """What is wrong and the GPUs, the table, the keys."""
        yield Lines("above")
        yield Table(self._glyphs, "table")
        yield Lines("footer")

    def on_mount(self) -> None:
        """Begin to read; a terminal that is told to end is left as it was found."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self._feed.start(self._tell)
        self._draw()

    def _tell(self) -> None:
        """Called by the feed's thread."""
        self.post_message(Changed())

    def on_unmount(self) -> None:
        """Read no more."""
        self._feed.stop()

    def on_resize(self) -> None:
        """Draw at the new size."""
        self._draw()

    def on_changed(self) -> None:
        """Take what is new, unless somebody wants to look at what is there."""
        state = self._feed.state
        if state.seen is not None:
            self._history.add(state.seen)
        if not self._is_paused:
            self._seen, self._lost = state.seen, state.lost
            self._draw()

    def _draw(self) -> None:
        main = self.screen_stack[0]
        if not main.is_mounted:
            return
        columns, rows = self.size
        screen = Screen(columns, self._glyphs, self._is_compact)
        found = table(self._seen, self._view) if self._seen is not None else []
        above = self._above(self._seen, screen, rows) if self._seen is not None else self._nothing(columns)
        above.append(summary(found, self._view, columns, self._glyphs))
        main.query_one("#above", Lines).show(above)
        now = self._seen.time if self._seen is not None else None
        main.query_one(Table).show(found, self._view, now)
        main.query_one("#footer", Lines).show([self._prompt.line(columns) if self._prompt else footer(columns)])
        if isinstance(self.screen, Page):
            self.screen.draw()

    def _above(self, seen: Seen, screen: Screen, rows: int) -> list[Line]:
        wrong = problems(seen, screen, self._lost)
        if len(wrong) > MOST_PROBLEMS:
            wrong[MOST_PROBLEMS - 1 :] = [(Piece(f"and {len(wrong) - MOST_PROBLEMS + 1} more", "warn"),)]
        room = max(1, (rows - BESIDE_GPUS - len(wrong)) // 2, min(USUAL_GPUS, rows - 2 * BESIDE_GPUS))
        every = "" if self._feed.interval_s == 1 else f"every {durations.show(self._feed.interval_s)}"
        first = title(seen, screen, where=self._feed.name, every=every)
        if self._is_paused:
            first = joined([(Piece("PAUSED", "warn"),), first])
        return [
            cropped(first, screen.columns), *wrong, *gpu_lines(seen, self._gpus(seen), screen, room, self._history),
        ]  # fmt: skip

    def _nothing(self, columns: int) -> list[Line]:
        where = f"asking {self._feed.name}" if self._feed.name else "reading the GPUs"
        lines: list[Line] = [(Piece("gpuledger", "strong"), Piece(f"  {where} ..."))]
        if self._lost:
            lines.append((Piece(self._lost, "bad"),))
        return [cropped(line, columns) for line in lines]

    def _gpus(self, seen: Seen) -> list[Gpu]:
        return [gpu for gpu in seen.gpus if self._view.choice.gpu in (None, gpu.index)]

    def _look(self, view: View) -> None:
        self._view = view
        self._draw()

    def _choose(self, **changes: object) -> None:
        self._look(replace(self._view, choice=replace(self._view.choice, **changes)))  # type: ignore[arg-type]

    # What keys do. The names are those in KEYS.

    def action_leave(self) -> None:
        """Quit."""
        self.exit()

    def action_help(self) -> None:
        """All keys and columns."""
        columns = [(Piece(f"{one.title:10}", "key"), Piece(one.about)) for one in COLUMNS]
        g = self._glyphs
        bar: list[Line] = [
            (),
            (Piece("memory    ", "key"), Piece(f"{''.join(g.owners)} of each owner, {g.inferred} inferred, {g.unknown} "
                                               f"unknown, {g.kept} the driver's, {g.free} free")),
        ]  # fmt: skip
        self.push_screen(Page(lambda: [*help_lines(), (), *columns, *bar]))

    def action_details(self) -> None:
        """Of the chosen row, or the first."""
        board = self.query_one(Table)
        if board.chosen is None:
            board.go(0)
        if (row := board.chosen) is not None:
            self.push_screen(Page(lambda: details(row, self._glyphs)))

    def action_history(self) -> None:
        """Charts that go on."""
        self.push_screen(Page(self._charts))

    def _charts(self) -> list[Line]:
        if self._seen is None:
            return [(Piece("nothing yet"),)]
        columns, rows = self.size
        screen = Screen(columns - 1, self._glyphs)
        return charts(self._gpus(self._seen), self._history, screen, rows - 2)

    def action_move(self, key: str) -> None:
        """One row."""
        self.query_one(Table).move(1 if key in ("down", "j") else -1)

    def action_page(self, key: str) -> None:
        """As many rows as are seen."""
        board = self.query_one(Table)
        board.move(board.page() if key == "pagedown" else -board.page())

    def action_end(self, key: str) -> None:
        """The first or the last row."""
        self.query_one(Table).go(0 if key == "home" else 1 << 30)

    def action_group(self) -> None:
        """By the next thing there is."""
        self._look(self._view.grouped(1))

    def action_column(self, key: str) -> None:
        """Sort by the next column."""
        self._look(self._view.beside(-1 if key == "<" else 1))

    def action_sort(self, key: str) -> None:
        """Sort by that one, the largest first."""
        self._look(replace(self._view, sort=SORTS[key], falling=True))

    def on_table_sort(self, message: Table.Sort) -> None:
        """A title was clicked."""
        self._look(self._view.sorted_by(message.column))

    def action_invert(self) -> None:
        """The other way round."""
        self._look(replace(self._view, falling=not self._view.falling))

    def action_gpu(self, key: str) -> None:
        """Only that one, or all again."""
        self._choose(gpu=None if self._view.choice.gpu == int(key) else int(key))

    def action_other(self, key: str) -> None:
        """The GPU before or after the chosen one."""
        indexes = sorted({gpu.index for gpu in self._seen.gpus}) if self._seen is not None else []
        if indexes:
            chosen, step = self._view.choice.gpu, 1 if key == "]" else -1
            at = indexes.index(chosen) + step if chosen in indexes else min(0, step)
            self._choose(gpu=indexes[at % len(indexes)])

    def action_all(self) -> None:
        """Everything."""
        self._choose(gpu=None, filter="")

    def action_exited(self) -> None:
        """With or without those who have exited."""
        self._choose(exited=not self._view.choice.exited)

    def action_compact(self) -> None:
        """Lines or cards."""
        self._is_compact = not self._is_compact
        self._draw()

    def action_pause(self) -> None:
        """Stop, or go on with what is newest."""
        self._is_paused = not self._is_paused
        self._draw()
        self.on_changed()

    def action_retry(self) -> None:
        """Read now."""
        self._feed.retry()

    def action_search(self) -> None:
        """Type what to look for."""
        self._ask(Prompt("search"))

    def action_filter(self) -> None:
        """Type what to keep."""
        text = self._view.choice.filter
        self._ask(Prompt("filter", text, before=text))

    def action_again(self, key: str) -> None:
        """The next row that was looked for."""
        board = self.query_one(Table)
        if board.search and not board.find(1 if key == "n" else -1):
            self.bell()

    def _ask(self, prompt: Prompt | None) -> None:
        self._prompt = prompt
        self._draw()

    def on_key(self, event: events.Key) -> None:
        """Take all keys while something is typed.

        Not with a widget to type into: keys that come at once are on their way elsewhere before it has the focus.
        """
        if self._prompt is None:
            return
        event.prevent_default()
        event.stop()
        if event.key == "enter":
            self._ask(None)
        elif event.key == "escape":
            self._typed(replace(self._prompt, text=self._prompt.before))
            self._ask(None)
        else:
            self._typed(self._prompt.after(event.key, event.character))

    def on_paste(self, event: events.Paste) -> None:
        """The same as typing it."""
        if self._prompt is not None:
            self._typed(self._prompt.with_more(event.text))

    def _typed(self, prompt: Prompt) -> None:
        """Do what is asked for while it is typed."""
        self._prompt = prompt
        board = self.query_one(Table)
        if prompt.what == "filter":
            self._choose(filter=prompt.text)
            return
        board.search = prompt.text
        if prompt.text:
            board.find(1, here=True)
        else:
            board.leave()
        self._draw()

    def action_away(self) -> None:
        """From the row and the search first, then from the filter."""
        board = self.query_one(Table)
        if board.chosen is not None or board.search:
            board.leave()
        else:
            self._choose(filter="")
