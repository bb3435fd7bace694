"""The table with all that belongs to it: which rows in which order, the line above them, and how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gpuledger.top.amounts import amount, gib, percent
from gpuledger.top.columns import BY_NAME, COLUMNS, NUMBERS, Layout
from gpuledger.top.line import Glyphs, Line, Piece, cropped, joined
from gpuledger.top.rows import GROUPINGS, Choice, Row, ordered, rows, total
from gpuledger.top.seen import Seen


@dataclass(frozen=True, slots=True)
class View:
    """What somebody wants to see, and in which order."""

    choice: Choice = field(default_factory=Choice)
    sort: str = "mem"
    falling: bool = True

    def sorted_by(self, name: str) -> View:
        """By another column: numbers from the largest on, names from A; by the same one, the other way round."""
        falling = not self.falling if name == self.sort else name in NUMBERS
        return replace(self, sort=name, falling=falling)

    def beside(self, step: int) -> View:
        """Sorted by the next column there is, to the right or to the left."""
        names = [column.name for column in COLUMNS if column.is_for(self.choice.grouping)]
        at = names.index(self.sort) if self.sort in names else 0
        return self.sorted_by(names[(at + step) % len(names)])

    def grouped(self, step: int) -> View:
        """By what comes next; a column that is not there any more gives way to memory."""
        grouping = GROUPINGS[(GROUPINGS.index(self.choice.grouping) + step) % len(GROUPINGS)]
        there = BY_NAME[self.sort].is_for(grouping)
        view = self if there else replace(self, sort="mem", falling=True)
        return replace(view, choice=replace(self.choice, grouping=grouping))


def table(seen: Seen, view: View) -> list[Row]:
    """The rows in order."""
    return ordered(rows(seen, view.choice), BY_NAME[view.sort].value, falling=view.falling)


def summary(found: list[Row], view: View, columns: int, glyphs: Glyphs) -> Line:
    """What is shown, and what it is in all."""
    choice, whole = view.choice, total(found)
    known = f"{gib(whole.known_bytes, glyphs)} GiB" + (
        f" + ~{gib(whole.inferred_bytes, glyphs)} inferred" if whole.inferred_bytes else ""
    )
    sums = (known, f"{percent(whole.sm, glyphs)} % SM", f"{amount(whole.watts, glyphs)} W",
            f"{amount(whole.joules, glyphs, 1000)} kJ")  # fmt: skip
    chosen = [f"GPU {choice.gpu}"] if choice.gpu is not None else []
    chosen += [f"filter: {choice.filter}"] if choice.filter else []
    chosen += [] if choice.exited else ["no exited"]
    parts: list[Line] = [(Piece(f"{len(found)} by {choice.grouping}", "strong"),)]
    parts += [(Piece(text, "warn"),) for text in chosen]
    parts.append((Piece(f" {glyphs.dot} ".join(sums)),))
    parts.append((Piece("= measured  ~ estimated", "dim"),))
    return cropped(joined(parts), columns)


def row_line(row: Row, layout: Layout, glyphs: Glyphs) -> Line:
    """One row; who has exited is dim."""
    return layout.line(row, glyphs, "" if row.active else "dim")
