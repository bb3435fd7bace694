"""The rows of a report. Their energies add up to the increase of the GPUs' energy counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpuledger.report.gather import Key, Totals
from gpuledger.report.queries import Column, Grouping, Part

UNRECORDED = "unrecorded"
"""The reason for energy that is in the GPUs' counters but in no book: an exporter was down and had no journal, or does
not expose all processes."""
NOISE = 1e-9
"""Rounding error of a sum of floats, relative to the sum."""


class Kind(Enum):
    """The kind of a row; the value is its name in CSV and JSON."""

    GROUP = "group"
    REST = "other"
    """Groups below the top ones."""
    UNKNOWN = "unknown"
    """Use by owners whose group is unknown."""
    OUTSIDE = "outside of containers"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Row:
    """Amounts in the units of their columns; an unknown amount is absent."""

    kind: Kind
    key: Key = ()
    amounts: Mapping[Column, float] = field(default_factory=dict)
    bars: Sequence[float] = ()
    """Joules over time."""
    count: int = 1
    """The number of groups in the row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows, and the total, whose energy is the sum of the rows."""

    rows: tuple[Row, ...]
    total: Row
    reasons: tuple[tuple[str, float], ...]
    """Unattributed joules by reason, largest first."""


def create_rows(totals: Totals, grouping: Grouping, top: int | None = None) -> Rows:
    """Groups by energy, largest first, then energy that belongs to no group."""
    unrecorded = _unrecorded(totals, grouping)
    groups, unknown = _groups(totals, grouping)
    top_groups = groups if top is None else groups[:top]
    rows = [*top_groups, *_rest(groups[len(top_groups) :]), *unknown]
    if outside := _whole(totals, Part.OUTSIDE):  # a waiting process holds memory but may have no energy
        rows.append(Row(Kind.OUTSIDE, amounts=outside, bars=_bars(totals, Part.OUTSIDE)))
    has_energy = Part.WHOLE in totals.energy_by_cell
    if has_energy:
        rows.append(Row(Kind.IDLE, amounts=_whole(totals, Part.IDLE), bars=_bars(totals, Part.IDLE)))
    reasons = {key[0]: columns[Column.ENERGY] for key, columns in totals.amounts[Part.UNATTRIBUTED].items()}
    missing = max(0.0, sum(unrecorded))
    booked = _energy(rows) + sum(reasons.values())
    if missing > NOISE * booked:
        reasons[UNRECORDED] = missing
    unattributed: dict[Column, float] = {Column.ENERGY: sum(reasons.values())} if has_energy else {}
    memory = totals.whole(Part.WHOLE, Column.MEMORY)
    if memory is not None and grouping.of != "gpus":
        unattributed[Column.MEMORY] = max(0.0, memory - sum([row.amounts.get(Column.MEMORY, 0.0) for row in rows]))
    bars = _sum(_bars(totals, Part.UNATTRIBUTED), _to_bars(totals, [max(0.0, joules) for joules in unrecorded]))
    rows.append(Row(Kind.UNATTRIBUTED, amounts=unattributed, bars=bars))
    total = _whole(totals, Part.WHOLE)
    if has_energy:
        total[Column.ENERGY] = _energy(rows)
    ordered = sorted(((name, joules) for name, joules in reasons.items() if joules > 0), key=lambda item: -item[1])
    return Rows(tuple(rows), Row(Kind.TOTAL, amounts=total), tuple(ordered))


def _unrecorded(totals: Totals, grouping: Grouping) -> list[float]:
    """By cell: the GPUs' energy minus all booked energy. Negative if energy was booked in a later cell."""
    groups = Part.ALL_GROUPS if grouping.join else Part.GROUP
    missing = list(totals.energy_by_cell.get(Part.WHOLE, ()))
    for part in (groups, Part.OUTSIDE, Part.IDLE, Part.UNATTRIBUTED) if missing else ():
        if booked := totals.energy_by_cell.get(part, ()):
            missing = [energy - joules for energy, joules in zip(missing, booked, strict=True)]
    return missing


def _groups(totals: Totals, grouping: Grouping) -> tuple[list[Row], list[Row]]:
    """The rows of groups, and at most one row for owners whose group is unknown."""
    named, unknown = [], dict[Column, float]()
    for key, amounts in totals.amounts[Part.GROUP].items():
        if grouping.join and not any(key):
            unknown = dict(amounts)
        else:
            named.append(Row(Kind.GROUP, key, amounts, totals.energy_by_bar.get(key, ())))
    if grouping.join:
        whole = totals.whole(Part.ALL_GROUPS, Column.ENERGY) or 0.0
        remainder = whole - _energy(named)
        if remainder > NOISE * whole:
            unknown[Column.ENERGY] = remainder
    named.sort(key=lambda row: (-row.amounts.get(Column.ENERGY, 0.0), row.key))
    return named, [Row(Kind.UNKNOWN, amounts=unknown)] if unknown else []


def _rest(groups: Sequence[Row]) -> list[Row]:
    if not groups:
        return []
    amounts: dict[Column, float] = {}
    for row in groups:
        for column, amount in row.amounts.items():
            amounts[column] = amounts.get(column, 0.0) + amount
    return [Row(Kind.REST, amounts=amounts, bars=_sum(*[row.bars for row in groups]), count=len(groups))]


def _energy(rows: Sequence[Row]) -> float:
    return sum([row.amounts.get(Column.ENERGY, 0.0) for row in rows])


def _whole(totals: Totals, part: Part) -> dict[Column, float]:
    amounts = [(column, totals.whole(part, column)) for column in Column]
    return {column: amount for column, amount in amounts if amount is not None}


def _bars(totals: Totals, part: Part) -> list[float]:
    return _to_bars(totals, totals.energy_by_cell.get(part, ()))


def _to_bars(totals: Totals, cells: Sequence[float]) -> list[float]:
    bars = [0.0] * totals.bars
    for cell, joules in enumerate(cells):
        bars[totals.bar_of(cell)] += joules
    return bars


def _sum(*series: Sequence[float]) -> list[float]:
    return [sum(bars) for bars in zip(*[bars for bars in series if bars], strict=True)]
