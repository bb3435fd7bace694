"""The columns of the table, each defined once, and which of them fit into a width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from gpuledger.top.amounts import amount, gib, percent, span
from gpuledger.top.line import Glyphs, Line, Piece, fitted
from gpuledger.top.rows import Row
from gpuledger.top.seen import MEASURED

Text = Callable[[Row, Glyphs], str]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Of several that do not fit, that of the highest rank is left out first."""

    name: str
    """In `--sort`."""
    title: str
    about: str
    least: int
    most: int
    rank: int
    value: Callable[[Row], object]
    """To sort by; None comes last."""
    text: Text
    brief: Text | None = None
    """Where the text is too long."""
    right: bool = False
    """Numbers: to the right, and the largest first."""
    only: str = ""
    """The one grouping it is for; `-` and a grouping: all others."""

    def is_for(self, grouping: str) -> bool:
        """Whether there is such a thing in that grouping."""
        return self.only in ("", grouping) or (self.only[0] == "-" and self.only[1:] != grouping)


def _gpus(row: Row, glyphs: Glyphs) -> str:
    """0, 0-7 or 0,2."""
    parts: list[list[int]] = []
    for gpu in row.gpus:
        if parts and gpu == parts[-1][-1] + 1:
            parts[-1].append(gpu)
        else:
            parts.append([gpu])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts) or glyphs.none


def mark(row: Row) -> str:
    """How its energy is known."""
    return {None: "", True: "~", False: "="}[row.is_estimated]


def _how(row: Row, glyphs: Glyphs) -> str:
    if not row.methods:
        return ""
    is_told = row.share_error is not None and row.share_error < 10
    error = f" {glyphs.error}{percent(row.share_error, glyphs)}%" if is_told else ""
    guessed = [name for name, _ in row.methods if name not in MEASURED]
    return f"{mark(row)} {(guessed or [row.methods[0][0]])[0]}{error}"


def _memory(row: Row, glyphs: Glyphs) -> str:
    return ("~" if row.inferred_bytes else "") + gib(row.memory_bytes, glyphs)


def _age(row: Row) -> float | None:
    return None if row.started is None else -row.started


def _since(now: float | None) -> Text:
    def text(row: Row, glyphs: Glyphs) -> str:
        if not row.active:
            return "exited"
        return span(None if now is None or row.started is None else max(0.0, now - row.started), glyphs)

    return text


COLUMNS: tuple[Column, ...] = (
    Column("gpu", "GPU", "number of the GPU", 3, 5, 2, lambda row: row.gpus, _gpus),
    Column("pid", "PID", "process id on the host", 7, 7, 4, lambda row: row.pid,
           lambda row, glyphs: str(row.pid)[:10] if row.pid is not None else glyphs.none, right=True, only="process"),
    Column("count", "PROC", "processes", 4, 5, 4, lambda row: row.processes, lambda row, _: str(row.processes),
           right=True, only="-process"),
    Column("owner", "OWNER", "pod, container, job or service", 24, 60, 0, lambda row: row.owner.lower(),
           lambda row, _: row.owner),
    Column("process", "PROCESS", "name of the process", 8, 15, 5, lambda row: row.process.lower() or None,
           lambda row, glyphs: row.process or glyphs.none, only="process"),
    Column("user", "USER", "who started it", 8, 12, 7, lambda row: row.user or None,
           lambda row, glyphs: row.user or glyphs.none, only="process"),
    Column("workload", "WORKLOAD", "what the pod belongs to", 24, 28, 9, lambda row: row.workload or None,
           lambda row, glyphs: row.workload or glyphs.none),
    Column("image", "IMAGE", "image of the container", 24, 28, 10, lambda row: row.image or None,
           lambda row, glyphs: row.image or glyphs.none),
    Column("time", "TIME", "since it started", 8, 8, 8, _age, _since(None), right=True, only="process"),
    Column("mem", "MEM GiB", "memory; ~ where some of it is inferred", 8, 8, 0, lambda row: row.memory_bytes, _memory,
           right=True),
    Column("sm", "SM%", "share of the compute engine", 4, 5, 1, lambda row: row.sm,
           lambda row, glyphs: percent(row.sm, glyphs), right=True),
    Column("watts", "WATTS", "power now", 6, 7, 1, lambda row: row.watts,
           lambda row, glyphs: amount(row.watts, glyphs), right=True),
    Column("energy", "kJ", "energy since the exporter started", 7, 9, 3, lambda row: row.joules,
           lambda row, glyphs: amount(row.joules, glyphs, 1000), right=True),
    Column("how", "HOW", "how the energy is known: = measured, ~ estimated", 3, 17, 6, mark, _how,
           lambda row, _: mark(row)),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}
NUMBERS = tuple(column.name for column in COLUMNS if column.right)


NARROW = 16
"""Columns below which there is room for nothing but who it is."""


@lru_cache(maxsize=16)
def _fitting(grouping: str, width: int) -> tuple[tuple[Column, int], ...]:
    """Columns with their widths; what room is left goes to those that have a use for it, in turn."""
    shown = [column for column in COLUMNS if column.is_for(grouping)]
    while len(shown) > 2 and sum(column.least + 1 for column in shown) - 1 > width:
        shown.remove(max(shown, key=lambda column: column.rank))
    if width < NARROW:
        shown = shown[:1]
    widths = [min(column.least, max(1, width)) for column in shown]
    widths[0] -= max(0, sum(widths) + len(widths) - 1 - width)  # a name that is cut is still a name
    room = width - sum(widths) - len(widths) + 1
    while room > 0 and any(w < column.most for w, column in zip(widths, shown, strict=True)):
        for at, column in enumerate(shown):
            if room > 0 and widths[at] < column.most:
                widths[at] += 1
                room -= 1
    return tuple(zip(shown, widths, strict=True))


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns are shown, and how wide each is."""

    columns: tuple[tuple[Column, int], ...]
    now: float | None = None
    """To tell how long a process has run."""

    @staticmethod
    def fit(grouping: str, width: int, now: float | None = None) -> Layout:
        """Those that fit."""
        return Layout(_fitting(grouping, width), now)

    def heading(self, sort: str, glyphs: Glyphs, *, falling: bool) -> Line:
        """The titles; that of the column that is sorted by has an arrow."""
        pieces: list[Piece] = []
        for column, width in self.columns:
            arrow = (glyphs.down if falling else glyphs.up) if column.name == sort else ""
            title = fitted(column.title[: width - len(arrow)] + arrow, width, glyphs.cut, right=column.right)
            pieces += [Piece(" ", "head"), Piece(title, "sorted" if arrow else "head")]
        return tuple(pieces[1:])

    def line(self, row: Row, glyphs: Glyphs, style: str = "") -> Line:
        """A row as a line."""
        pieces: list[Piece] = []
        for column, width in self.columns:
            text = (_since(self.now) if column.name == "time" else column.text)(row, glyphs)
            if len(text) > width and column.brief is not None:
                text = column.brief(row, glyphs)
            colour = style or (row.colour if column.name == "owner" else "")
            pieces += [Piece(" ", style), Piece(fitted(text, width, glyphs.cut, right=column.right), colour)]
        return tuple(pieces[1:])

    def at(self, x: int) -> str:
        """The column at that place."""
        for column, width in self.columns:
            if x <= width:
                return column.name
            x -= width + 1
        return ""
