"""From what was added up to the lines of a report, whose energies are together the rise of the GPUs' counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpuledger.report.grouping import Grouping
from gpuledger.report.questions import Column, Part
from gpuledger.report.tally import Key, Tally

UNRECORDED = "unrecorded"
"""The reason of energy that the GPUs' counters have and no book has: an exporter was down and had no journal, or does
not show all processes."""
NOISE = 1e-9
"""Of a sum of fractions."""


class Kind(Enum):
    """What a line is about."""

    GROUP = "group"
    REST = "other"
    """Groups that are not among the top ones."""
    UNKNOWN = "unknown"
    """Used by somebody of whom it is not known which group they are of."""
    OUTSIDE = "outside of containers"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Line:
    """Amounts in the units of their columns; one that is not known is absent."""

    kind: Kind
    key: Key = ()
    amounts: Mapping[Column, float] = field(default_factory=dict)
    bars: Sequence[float] = ()
    """Joules over time."""
    count: int = 1
    """Groups in it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """All lines but the total, which is their sum as to energy."""

    lines: tuple[Line, ...]
    total: Line
    reasons: tuple[tuple[str, float], ...]
    """Unattributed joules by reason, the most first."""


def lines(tally: Tally, grouping: Grouping, top: int | None = None) -> Lines:
    """Groups by energy, the largest first, then what no group has."""
    unrecorded = _unrecorded(tally, grouping)
    groups, unknown = _groups(tally, grouping)
    shown = groups if top is None else groups[:top]
    found = [*shown, *_rest(groups[len(shown) :]), *unknown]
    if outside := _whole(tally, Part.OUTSIDE):  # who only waits holds memory, and may have no energy
        found.append(Line(Kind.OUTSIDE, (), outside, _bars(tally, Part.OUTSIDE)))
    known = Part.WHOLE in tally.energy_by_cell
    if known:
        found.append(Line(Kind.IDLE, (), _whole(tally, Part.IDLE), _bars(tally, Part.IDLE)))
    reasons = {key[0]: columns[Column.ENERGY] for key, columns in tally.amounts[Part.UNATTRIBUTED].items()}
    missed = max(0.0, sum(unrecorded))
    booked = sum([line.amounts.get(Column.ENERGY, 0.0) for line in found]) + sum(reasons.values())
    if missed > NOISE * booked:
        reasons[UNRECORDED] = missed
    nobody: dict[Column, float] = {Column.ENERGY: sum(reasons.values())} if known else {}
    memory = tally.whole(Part.WHOLE, Column.MEMORY)
    if memory is not None and grouping.of != "gpus":
        nobody[Column.MEMORY] = max(0.0, memory - sum([line.amounts.get(Column.MEMORY, 0.0) for line in found]))
    bars = _added(_bars(tally, Part.UNATTRIBUTED), _to_bars(tally, [max(0.0, left) for left in unrecorded]))
    found.append(Line(Kind.UNATTRIBUTED, (), nobody, bars))
    total = _whole(tally, Part.WHOLE)
    if known:
        total[Column.ENERGY] = sum([line.amounts.get(Column.ENERGY, 0.0) for line in found])
    ordered = sorted(((name, joules) for name, joules in reasons.items() if joules > 0), key=lambda one: -one[1])
    return Lines(tuple(found), Line(Kind.TOTAL, (), total), tuple(ordered))


def _unrecorded(tally: Tally, grouping: Grouping) -> list[float]:
    """By cell: what the GPUs used, less what somebody has or nobody by a reason. Less than 0 where a book came late."""
    owners = Part.ALL_GROUPS if grouping.join else Part.GROUP
    parts = [tally.energy_by_cell.get(part, ()) for part in (owners, Part.OUTSIDE, Part.IDLE, Part.UNATTRIBUTED)]
    missed = list(tally.energy_by_cell.get(Part.WHOLE, ()))
    for part in parts if missed else ():
        missed = [left - joules for left, joules in zip(missed, part, strict=True)] if part else missed
    return missed


def _groups(tally: Tally, grouping: Grouping) -> tuple[list[Line], list[Line]]:
    """Those with a name, and the one of those of whom it is not known."""
    named, unknown = [], dict[Column, float]()
    for key, amounts in tally.amounts[Part.GROUP].items():
        if grouping.join and not any(key):
            unknown = dict(amounts)
        else:
            named.append(Line(Kind.GROUP, key, amounts, tally.energy_by_bar.get(key, ())))
    if grouping.join:
        of_all = tally.whole(Part.ALL_GROUPS, Column.ENERGY) or 0.0
        left = of_all - sum([line.amounts.get(Column.ENERGY, 0.0) for line in named])
        if left > NOISE * of_all:
            unknown[Column.ENERGY] = left
    named.sort(key=lambda line: (-line.amounts.get(Column.ENERGY, 0.0), line.key))
    return named, [Line(Kind.UNKNOWN, (), unknown)] if unknown else []


def _rest(groups: Sequence[Line]) -> list[Line]:
    if not groups:
        return []
    amounts: dict[Column, float] = {}
    for line in groups:
        for column, amount in line.amounts.items():
            amounts[column] = amounts.get(column, 0.0) + amount
    return [Line(Kind.REST, (), amounts, _added(*[line.bars for line in groups]), len(groups))]


def _whole(tally: Tally, part: Part) -> dict[Column, float]:
    found = [(column, tally.whole(part, column)) for column in Column]
    return {column: amount for column, amount in found if amount is not None}


def _bars(tally: Tally, part: Part) -> list[float]:
    return _to_bars(tally, tally.energy_by_cell.get(part, ()))


def _to_bars(tally: Tally, cells: Sequence[float]) -> list[float]:
    bars = [0.0] * tally.bars
    for cell, joules in enumerate(cells):
        bars[tally.bar_of(cell)] += joules
    return bars


def _added(*many: Sequence[float]) -> list[float]:
    return [sum(bars) for bars in zip(*[one for one in many if one], strict=True)]
