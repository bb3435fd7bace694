"""Every key of the live view, once: the view, its help and the docs are made of this table."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.top.line import Line, Piece, cropped

NAMES = {"up": "↑", "down": "↓", "pageup": "PgUp", "pagedown": "PgDn", "ctrl+c": "Ctrl-C", "escape": "Esc"}

DIGITS = tuple("0123456789")
SORTS = {"M": "mem", "P": "sm", "W": "watts", "E": "energy"}
"""Columns that have a key of their own."""


@dataclass(frozen=True, slots=True)
class Key:
    """What some keys do. Each is a character, or has a name such as f1."""

    keys: tuple[str, ...]
    action: str
    """The method of the view."""
    about: str
    label: str = ""
    """In the last line of the screen, if it is there."""
    told: bool = False
    """Whether the method is told which of the keys it was."""

    @property
    def shown(self) -> str:
        """The keys as people call them."""
        return "0-9" if self.keys == DIGITS else " ".join(name_of(key) for key in self.keys)


def name_of(key: str) -> str:
    """A key as people call it."""
    return key if len(key) == 1 else NAMES.get(key, key.capitalize())


KEYS: tuple[Key, ...] = (
    Key(("?", "f1"), "help", "this help", "Help"),
    Key(("up", "down", "k", "j"), "move", "one row up or down", told=True),
    Key(("pageup", "pagedown"), "page", "one page up or down", told=True),
    Key(("home", "end"), "end", "first or last row", told=True),
    Key(("enter",), "details", "all that is known of a row", "Details"),
    Key(("/", "f3"), "search", "go to the row with these words", "Search"),
    Key(("n", "N"), "again", "next or previous row with them", told=True),
    Key(("\\", "f4"), "filter", "show only rows with these words", "Filter"),
    Key(("g", "t", "f5"), "group", "group by process, container, pod, namespace, user", "Group"),
    Key((">", "<", "f6"), "column", "sort by the next or previous column", "Sort", told=True),
    Key(tuple(SORTS), "sort", "sort by memory, compute engine, power, energy", told=True),
    Key(("I",), "invert", "sort the other way round"),
    Key(DIGITS, "gpu", "only that GPU; again, all of them", told=True),
    Key(("[", "]"), "other", "previous or next GPU", told=True),
    Key(("a",), "all", "all GPUs, no filter"),
    Key(("x",), "exited", "hide or show processes that have exited"),
    Key(("h",), "history", "what each GPU did since the view runs", "History"),
    Key(("c",), "compact", "one line a GPU, or cards"),
    Key(("space",), "pause", "stop and go on; readings go on all the while", "Pause"),
    Key(("r",), "retry", "read now"),
    Key(("escape",), "away", "leave a page, a search, a filter"),
    Key(("q", "f10", "ctrl+c"), "leave", "quit", "Quit"),
)  # fmt: skip


def footer(columns: int) -> Line:
    """The main keys in one line."""
    pieces: list[Piece] = []
    for key in KEYS:
        if key.label:
            pieces += [Piece(name_of(key.keys[0]), "key"), Piece(key.label, "head"), Piece(" ")]
    return cropped(tuple(pieces), columns)


def help_lines() -> list[Line]:
    """A line for each; on 24 lines there is room for all of them."""
    wide = max(len(key.shown) for key in KEYS) + 2
    lines: list[Line] = [
        (Piece("gpuledger top", "strong"), Piece(" shows who uses the GPUs. It only looks: no key changes anything."))
    ]
    lines += [(Piece(f"{key.shown:{wide}}", "key"), Piece(key.about)) for key in KEYS]
    return lines
