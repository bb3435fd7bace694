"""The columns of the table, which of them fit into a width, and the view: grouping, filter and order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpuledger.tools.text import amount, gib, percent, span
from gpuledger.tools.top.rows import GROUPINGS, TREE, Choice, TableRow, ordered, rows
from gpuledger.tools.top.text import WARN, Glyphs, Line, fitted, joined, styled
from gpuledger.web.snapshot.schema import MEASURED, Snapshot, sum_known

Text = Callable[[TableRow, Glyphs], str]
NARROW = 16
"""A narrower screen shows only the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. If not all columns fit, those with the highest rank are left out first."""

    name: str
    """The value for `--sort`."""
    title: str
    about: str
    min_width: int
    max_width: int
    rank: int
    value: Callable[[TableRow], object]
    """The sort key; None sorts last."""
    text: Text
    short_text: Text | None = None
    """Used if the text does not fit."""
    right: bool = False
    """Numbers are aligned right and sorted in descending order."""
    only: str = ""
    """The grouping that has this column; with a leading `-`, the one that lacks it."""

    is_of_host: bool = False
    """Whether only this host's own processes have it."""

    def is_for(self, grouping: str, *, host: bool = True) -> bool:
        """Whether the table has this column in a grouping; the rows of a tree are processes."""
        rows = "process" if grouping == TREE else grouping
        has_rows = self.only in ("", rows) or (self.only[0] == "-" and self.only[1:] != rows)
        return has_rows and (host or not self.is_of_host)


def _gpus(row: TableRow, glyphs: Glyphs) -> str:
    """Indexes as ranges: 0, 0-7 or 0,2."""
    ranges: list[list[int]] = []
    for gpu in row.gpus:
        if ranges and gpu == ranges[-1][-1] + 1:
            ranges[-1].append(gpu)
        else:
            ranges.append([gpu])
    return ",".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges) or glyphs.none


def _mark(row: TableRow) -> str:
    return {None: "", True: "~", False: "="}[row.is_estimated]


def _method(row: TableRow, glyphs: Glyphs) -> str:
    if not row.methods:
        return ""
    is_plausible = row.share_error is not None and row.share_error < 10
    error = f" {glyphs.error}{percent(row.share_error, glyphs.none)}%" if is_plausible else ""
    estimated = [name for name, _ in row.methods if name not in MEASURED]
    return f"{_mark(row)} {(estimated or [row.methods[0][0]])[0]}{error}"


def asked(row: TableRow, none: str) -> str:
    """GPUs in use and asked for."""
    used = none if row.asked_used is None else f"{row.asked_used:.2f}"
    return none if row.asked is None else f"{used}/{row.asked:.2f}"


def _memory(row: TableRow, glyphs: Glyphs) -> str:
    return ("~" if row.inferred_bytes else "") + gib(row.memory_bytes, glyphs.none)


COLUMNS: tuple[Column, ...] = (
    Column(name="gpu", title="GPU", about="index of the GPU", min_width=3, max_width=5, rank=2,
           value=lambda row: row.gpus, text=_gpus),
    Column(name="pid", title="PID", about="process id on the host", min_width=7, max_width=7, rank=4,
           value=lambda row: row.pid, text=lambda row, g: str(row.pid)[:10] if row.pid is not None else g.none,
           right=True, only="process"),
    Column(name="count", title="PROC", about="number of processes", min_width=4, max_width=5, rank=4,
           value=lambda row: row.processes, text=lambda row, _: str(row.processes), right=True, only="-process"),
    Column(name="owner", title="OWNER", about="pod, container, job or service", min_width=24, max_width=60, rank=0,
           value=lambda row: row.owner.lower(), text=lambda row, g: (g.branch if row.branch else "") + row.label),
    Column(name="process", title="PROCESS", about="name of the process", min_width=8, max_width=15, rank=5,
           value=lambda row: row.process.lower() or None, text=lambda row, g: row.process or g.none, only="process"),
    Column(name="user", title="USER", about="user that runs the process", min_width=8, max_width=12, rank=7,
           value=lambda row: row.user or None, text=lambda row, g: row.user or g.none, only="process"),
    Column(name="workload", title="WORKLOAD", about="workload that the pod belongs to", min_width=24, max_width=28,
           rank=9, value=lambda row: row.workload or None, text=lambda row, g: row.workload or g.none),
    Column(name="image", title="IMAGE", about="image of the container", min_width=24, max_width=28, rank=10,
           value=lambda row: row.image or None, text=lambda row, g: row.image or g.none),
    Column(name="time", title="TIME", about="time since the process started", min_width=8, max_width=8, rank=8,
           value=lambda row: row.age_s, text=lambda row, g: span(row.age_s, g.none) if row.active else "exited",
           right=True, only="process"),
    Column(name="cpu", title="CPU%", about="CPU time; 100 is one core", min_width=5, max_width=6, rank=8,
           value=lambda row: row.cpu, text=lambda row, g: percent(row.cpu, g.none), right=True, only="process",
           is_of_host=True),
    Column(name="host", title="HOST GiB", about="memory of the host", min_width=8, max_width=8, rank=8,
           value=lambda row: row.host_bytes, text=lambda row, g: gib(row.host_bytes, g.none), right=True,
           only="process", is_of_host=True),
    Column(name="mem", title="MEM GiB", about="memory; ~ if part of it is inferred", min_width=8, max_width=8, rank=0,
           value=lambda row: row.memory_bytes, text=_memory, right=True),
    Column(name="sm", title="SM%", about="share of the SM (compute engine) time", min_width=4, max_width=5, rank=1,
           value=lambda row: row.sm, text=lambda row, g: percent(row.sm, g.none), right=True),
    Column(name="watts", title="WATTS", about="power now", min_width=6, max_width=7, rank=1,
           value=lambda row: row.watts, text=lambda row, g: amount(row.watts, g.none), right=True),
    Column(name="energy", title="kJ", about="energy since the exporter started", min_width=7, max_width=9, rank=3,
           value=lambda row: row.joules, text=lambda row, g: amount(row.joules, g.none, 1000), right=True),
    Column(name="asked", title="ASKED", about="GPUs used, and asked for as parts of a GPU", min_width=9, max_width=11,
           rank=3, value=lambda row: row.asked, text=lambda row, g: asked(row, g.none), right=True, only="-process"),
    Column(name="how", title="HOW", about="energy method: = measured, ~ estimated", min_width=3, max_width=17, rank=6,
           value=_mark, text=_method, short_text=lambda row, _: _mark(row)),
)  # fmt: skip
Columns = tuple[tuple[Column, int], ...]
"""Columns with their widths."""
BY_NAME = {column.name: column for column in COLUMNS}
NUMBERS = tuple(column.name for column in COLUMNS if column.right)


@dataclass(frozen=True, slots=True)
class View:
    """What the user wants to see, and in which order."""

    choice: Choice = field(default_factory=Choice)
    sort: str = "mem"
    descending: bool = True
    host: bool = False
    """Whether processes have values of the host."""

    def sorted_by(self, name: str) -> View:
        """Sorted by a column: numbers descending, names ascending; the same column again reverses the order."""
        descending = not self.descending if name == self.sort else name in NUMBERS
        return replace(self, sort=name, descending=descending)

    def sorted_by_next(self, step: int) -> View:
        """Sorted by a neighbouring column."""
        names = [column.name for column in COLUMNS if column.is_for(self.choice.grouping, host=self.host)]
        position = names.index(self.sort) if self.sort in names else 0
        return self.sorted_by(names[(position + step) % len(names)])

    def grouped_by_next(self) -> View:
        """The view with the next grouping."""
        before = GROUPINGS.index(self.choice.grouping) if self.choice.grouping in GROUPINGS else -1
        return self.grouped_by(GROUPINGS[(before + 1) % len(GROUPINGS)])

    def toggled_tree(self) -> View:
        """The view as a tree, or by process if it is one."""
        return self.grouped_by(TREE if self.choice.grouping != TREE else GROUPINGS[0])

    def grouped_by(self, grouping: str) -> View:
        """Grouped by a criterion; if that lacks the sort column, sorted by memory."""
        has_column = BY_NAME[self.sort].is_for(grouping)
        view = self if has_column else replace(self, sort="mem", descending=True)
        return replace(view, choice=replace(self.choice, grouping=grouping))

    def choosing(self, **changes: object) -> View:
        """The view with some fields of its choice changed."""
        return replace(self, choice=replace(self.choice, **changes))  # type: ignore[arg-type]

    def toggled_gpu(self, gpu: int) -> View:
        """The view with only this GPU, or with all GPUs if it is chosen already."""
        return self.choosing(gpu=None if self.choice.gpu == gpu else gpu)

    def rows(self, snapshot: Snapshot) -> list[TableRow]:
        """The rows in order."""
        return ordered(rows(snapshot, self.choice), BY_NAME[self.sort].value, descending=self.descending)


def fit_rows(rows: Sequence[TableRow], view: View, width: int) -> Columns:
    """The columns that fit and that have values."""
    return fit(view.choice.grouping, width, host=view.host, asked=any(row.asked is not None for row in rows))


def summary(parts: list[TableRow], view: View, glyphs: Glyphs) -> Line:
    """The line above the table: the number of rows, the filters, and the sums."""
    choice = view.choice
    parts = [row for row in parts if not row.branch]  # a branch has the sums of its rows
    names = ("known_bytes", "inferred_bytes", "sm", "watts", "joules")
    known_bytes, inferred_bytes, sm, watts, joules = (sum_known(getattr(row, name) for row in parts) for name in names)
    memory = f"{gib(known_bytes, glyphs.none)} GiB" + (
        f" + ~{gib(inferred_bytes, glyphs.none)} inferred" if inferred_bytes else ""
    )
    numbers = (memory, f"{percent(sm, glyphs.none)} % SM", f"{amount(watts, glyphs.none)} W",
               f"{amount(joules, glyphs.none, 1000)} kJ")  # fmt: skip
    grouping = "pod, with processes" if choice.grouping == TREE else choice.grouping
    filters = [f"GPU {choice.gpu}"] if choice.gpu is not None else []
    filters += [f"filter: {choice.filter}"] if choice.filter else []
    filters += [] if choice.exited else ["no exited"]
    return joined([
        styled(f"{len(parts)} by {grouping}", "bold"),
        *(styled(text, WARN) for text in filters),
        styled(f" {glyphs.dot} ".join(numbers)),
        styled("= measured  ~ estimated", "dim"),
    ])  # fmt: skip


@lru_cache(maxsize=16)
def fit(grouping: str, width: int, *, host: bool = False, asked: bool = True) -> Columns:
    """The columns that fit, with their widths; the remaining room goes to columns that can use it."""
    fitting = [c for c in COLUMNS if c.is_for(grouping, host=host) and (asked or c.name != "asked")]
    while len(fitting) > 2 and sum(column.min_width + 1 for column in fitting) - 1 > width:
        fitting.remove(max(fitting, key=lambda column: column.rank))
    if width < NARROW:
        fitting = fitting[:1]
    widths = [min(column.min_width, max(1, width)) for column in fitting]
    widths[0] -= max(0, sum(widths) + len(widths) - 1 - width)  # a shortened owner is still useful
    room = width - sum(widths) - len(widths) + 1
    while room > 0 and any(w < column.max_width for w, column in zip(widths, fitting, strict=True)):
        for position, column in enumerate(fitting):
            if room > 0 and widths[position] < column.max_width:
                widths[position] += 1
                room -= 1
    return tuple(zip(fitting, widths, strict=True))


def headings(columns: Columns, view: View, glyphs: Glyphs) -> list[str]:
    """The titles; the sort column has an arrow."""
    titles = []
    for column, width in columns:
        arrow = (glyphs.down if view.descending else glyphs.up) if column.name == view.sort else ""
        title = column.title[: width - len(arrow)] + arrow
        titles.append(fitted(title, width, glyphs.cut, right=column.right))
    return titles


def cells(columns: Columns, row: TableRow, glyphs: Glyphs, style: str = "") -> Line:
    """The text and style of each cell; `style` overrides the colour of the owner."""
    line = []
    for column, width in columns:
        text = column.text(row, glyphs)
        if len(text) > width and column.short_text is not None:
            text = column.short_text(row, glyphs)
        owner_style = row.style if column.name == "owner" else ""
        line.append((fitted(text, width, glyphs.cut, right=column.right), style or owner_style))
    return tuple(line)
