"""All keys of the live view: the bindings, the help and the docs come from this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from gpuledger.tools.top.columns import View

NAMES = {"up": "↑", "down": "↓", "pageup": "PgUp", "pagedown": "PgDn", "ctrl+c": "Ctrl-C", "escape": "Esc"}
DIGITS = tuple("0123456789")
SORTS = {"M": "mem", "P": "sm", "W": "watts", "E": "energy"}
"""Columns with a key of their own."""


@dataclass(frozen=True, slots=True)
class Key:
    """Keys with the same action. A key is a character or a name such as f1."""

    keys: tuple[str, ...]
    action: str
    """The action of the app; empty if the table handles the keys."""
    about: str
    label: str = ""
    """The text in the footer; empty if the key is not shown there."""
    with_key: bool = False
    """Whether the action takes the key as its argument."""
    priority: bool = False
    """Whether the app handles the key before the focused widget does."""

    @property
    def names(self) -> str:
        """The names of the keys."""
        return "0-9" if self.keys == DIGITS else " ".join(name_of(key) for key in self.keys)


def name_of(key: str) -> str:
    """The name of a key as printed on a keyboard."""
    return key if len(key) == 1 else NAMES.get(key, key.capitalize())


KEYS: tuple[Key, ...] = (
    Key(("?", "f1"), "help", "show this help", "Help"),
    Key(("up", "down", "k", "j"), "", "move one row up or down"),
    Key(("pageup", "pagedown", "home", "end"), "", "move one page up or down, or to the first or last row"),
    Key(("enter",), "details", "show all fields of a row", "Details"),
    Key(("/", "f3"), "search", "search for a row with these words", "Search", priority=True),
    Key(("n", "N"), "again", "go to the next or previous match", with_key=True),
    Key(("\\", "f4"), "filter", "show only rows with these words", "Filter", priority=True),
    Key(("g",), "change", "group by process, container, pod, namespace, user", "Group", with_key=True),
    Key(("t", "f5"), "change", "show a tree of pods and their processes; again: processes", "Tree", with_key=True),
    Key((">", "<", "f6"), "change", "sort by the next or previous column", "Sort", with_key=True),
    Key(tuple(SORTS), "change", "sort by memory, SM share, power, energy", with_key=True),
    Key(("I",), "change", "reverse the order", with_key=True),
    Key(DIGITS, "change", "show only this GPU; again: all GPUs", with_key=True),
    Key(("[", "]"), "other", "show only the previous or next GPU", with_key=True),
    Key(("a",), "change", "show all GPUs and clear the filter", with_key=True),
    Key(("x",), "change", "hide or show exited processes", with_key=True),
    Key(("h",), "history", "show charts of each GPU since the start of top", "History"),
    Key(("c",), "compact", "switch between one line per GPU and cards"),
    Key(("space",), "pause", "freeze the screen or resume; reading continues", "Pause"),
    Key(("r",), "retry", "read now"),
    Key(("escape",), "away", "leave a page, a search, a filter"),
    Key(("q", "f10", "ctrl+c"), "leave", "quit", "Quit"),
)  # fmt: skip
CHANGES: dict[str, Callable[[View], View]] = {
    "g": View.grouped_by_next,
    **dict.fromkeys(("t", "f5"), View.toggled_tree),
    **dict.fromkeys((">", "f6"), lambda view: view.sorted_by_next(1)),
    "<": lambda view: view.sorted_by_next(-1),
    **{key: partial(replace, sort=name, descending=True) for key, name in SORTS.items()},
    "I": lambda view: replace(view, descending=not view.descending),
    **{digit: partial(View.toggled_gpu, gpu=int(digit)) for digit in DIGITS},
    "a": lambda view: view.choosing(gpu=None, filter=""),
    "x": lambda view: view.choosing(exited=not view.choice.exited),
}
"""The new view for each key with the action `change`."""
