"""The rows of a report. Their energies add up to the increase of the GPUs' energy counters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from gpuledger.integrations.tokens.phases import Window, fit
from gpuledger.model import PhaseEnergy
from gpuledger.tools.report.gather import FITTED, OUTSIDE, Key, Totals
from gpuledger.tools.report.queries import FOR_LARGER, OF_ALL_GPUS, SERVED, Grouping, Part, Quantity

UNRECORDED = "unrecorded"
"""The reason for energy that is in the GPUs' counters but in no book: an exporter was down and had no journal, or does
not expose all processes."""
OF_TOKENS = (Quantity.PROMPT, Quantity.OUTPUT, Quantity.WORK, Quantity.PARKED)
"""Columns of a report by language model, whose total is the sum of the rows."""
NOISE = 1e-9
"""Rounding error of a sum of floats, relative to the sum."""


class Kind(Enum):
    """The kind of a row; the value is its name in CSV and JSON."""

    GROUP = "group"
    REST = "other"
    """Groups below the top ones."""
    UNMAPPED = "unmapped"
    """Groups that the file of `--map` does not have."""
    UNKNOWN = "unknown"
    """Use by owners whose group is unknown."""
    OUTSIDE = "outside of containers"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"
    DIFFERENCE = "difference"
    """Hours of GPUs minus the charged hours, if owners are charged for what they asked for."""
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Amounts in the units of their columns; an unknown amount is absent."""

    kind: Kind
    key: Key = ()
    amounts: Mapping[Quantity, float] = field(default_factory=dict)
    bars: Sequence[float] = ()
    """Joules over time."""
    count: int = 1
    """The number of groups in the row."""
    by_model: Mapping[str, float] = field(default_factory=dict)
    """Charged seconds by the model of the GPU, if each model has its own price."""
    phases: PhaseEnergy | None = None
    """Energy of prefill and decode, if the row is a language model whose load determines them."""


@dataclass(frozen=True, slots=True)
class ReportRows:
    """All rows, and the total, whose energy is the sum of the rows."""

    rows: tuple[ReportRow, ...]
    total: ReportRow
    reasons: tuple[tuple[str, float], ...]
    """Unattributed joules by reason, largest first."""
    unmapped: tuple[str, ...] = ()
    """Groups that the file of `--map` does not have, largest first."""
    spread: Mapping[Quantity, float] = field(default_factory=dict)
    """Idle and unattributed use that was spread over the other rows."""


def create_rows(
    totals: Totals, grouping: Grouping, top: int | None = None, departments: Mapping[str, str] | None = None
) -> ReportRows:
    """Groups by energy, largest first, then energy that belongs to no group."""
    unrecorded = _unrecorded(totals, grouping)
    groups, unknown = _groups(totals, grouping)
    unmapped: list[ReportRow] = []
    if departments is not None:
        groups, unmapped = _by_department(groups, departments)
    top_groups = groups if top is None else groups[:top]
    rest = groups[len(top_groups) :]
    rows = [*top_groups, *_merged(rest, Kind.REST), *_merged(unmapped, Kind.UNMAPPED), *unknown]
    if outside := _whole(totals, Part.OUTSIDE):  # a waiting process holds memory but may have no energy
        hours = totals.by_model[Part.OUTSIDE].get((), {})
        outside |= _larger(totals, OUTSIDE)
        rows.append(ReportRow(Kind.OUTSIDE, amounts=outside, bars=_bars(totals, Part.OUTSIDE), by_model=hours))
    total = _total(totals)
    has_energy = Part.WHOLE in totals.energy_by_cell
    if has_energy or Quantity.SHARED in total.amounts:
        rows.append(_idle(totals, rows, total))
    reasons = {key[0]: columns[Quantity.ENERGY] for key, columns in totals.amounts[Part.UNATTRIBUTED].items()}
    missing = max(0.0, sum(unrecorded))
    booked = _sum_of(rows, Quantity.ENERGY) + sum(reasons.values())
    lost = [0.0] * len(unrecorded)
    if missing > NOISE * booked:  # in the cells that miss energy, because others book it late
        reasons[UNRECORDED], positive = missing, [max(0.0, joules) for joules in unrecorded]
        lost = [joules * missing / sum(positive) for joules in positive]
    unattributed: dict[Quantity, float] = {Quantity.ENERGY: sum(reasons.values())} if has_energy else {}
    if totals.intensity is not None and has_energy:
        grams = sum([joules * grams for joules, grams in zip(lost, totals.intensity, strict=True)])
        unattributed[Quantity.CARBON] = (totals.whole(Part.UNATTRIBUTED, Quantity.CARBON) or 0.0) + grams
    memory = totals.whole(Part.WHOLE, Quantity.MEMORY)
    if memory is not None and grouping.of != "gpus":
        unattributed[Quantity.MEMORY] = max(0.0, memory - _sum_of(rows, Quantity.MEMORY))
    bars = _sum(_bars(totals, Part.UNATTRIBUTED), _to_bars(totals, lost))
    rows.append(ReportRow(Kind.UNATTRIBUTED, amounts=unattributed, bars=bars))
    if totals.charged in (Quantity.ENTITLED, Quantity.LARGER) and totals.charged in total.amounts:
        rows.append(_difference(totals.charged, rows, total))
    summed = (Quantity.ENERGY, Quantity.CARBON) if totals.intensity is not None else (Quantity.ENERGY,)
    if has_energy:
        total = replace(total, amounts={**total.amounts, **{column: _sum_of(rows, column) for column in summed}})
    if grouping.name == SERVED:
        total = replace(total, amounts={**total.amounts, **{column: _sum_of(rows, column) for column in OF_TOKENS}})
    ordered = sorted(((name, joules) for name, joules in reasons.items() if joules > 0), key=lambda item: -item[1])
    return ReportRows(tuple(rows), total, tuple(ordered), tuple("/".join(row.key) for row in unmapped))


def split_by_department(rows: ReportRows, departments: Mapping[str, str]) -> dict[str, ReportRows]:
    """The groups of each department, with their total."""
    members = _members([row for row in rows.rows if row.kind is Kind.GROUP], departments)
    return {name: ReportRows(tuple(own), _merged(own, Kind.TOTAL)[0], ()) for name, own in members.items() if name}


def spread(rows: ReportRows) -> ReportRows:
    """Idle and unattributed energy, and idle hours of GPUs, divided among the other rows in proportion to their use.

    A row with the use u_i gets u_i / sum u of what is spread. Hours are spread for each model of GPU that a row used;
    hours of a model that no row used are spread by all hours.
    """
    own = [row for row in rows.rows if row.kind not in (Kind.IDLE, Kind.UNATTRIBUTED)]
    rest = [row for row in rows.rows if row not in own]
    spread_amounts: dict[Quantity, float] = {}
    for column in (Quantity.ENERGY, Quantity.CARBON, Quantity.SHARED):
        weights = [row.amounts.get(column, 0.0) for row in own]
        amount = _sum_of(rest, column)
        if not sum(weights) or not amount:
            continue
        spread_amounts[column] = amount
        own = [
            replace(row, amounts={**row.amounts, column: weight + amount * weight / sum(weights)}) if weight else row
            for row, weight in zip(own, weights, strict=True)
        ]
        if column is Quantity.ENERGY:
            own = _with_bars(own, weights, _sum(*[row.bars for row in rest]))
        elif column is Quantity.SHARED:
            own = _with_models(own, weights, rest)
        rest = [_without(row, column) for row in rest]
    kept = (row for row in rest if any(row.amounts.values()))
    return replace(rows, rows=(*own, *kept), spread=spread_amounts)


def _without(row: ReportRow, column: Quantity) -> ReportRow:
    """The row without what was spread."""
    amounts = {other: amount for other, amount in row.amounts.items() if other is not column}
    return replace(row, amounts=amounts, bars=() if column is Quantity.ENERGY else row.bars)


def _with_bars(own: list[ReportRow], weights: Sequence[float], bars: Sequence[float]) -> list[ReportRow]:
    """Each row with its part of these joules over time."""
    parts = [[joules * weight / sum(weights) for joules in bars] for weight in weights]
    return [replace(row, bars=_sum(row.bars, part)) if row.bars else row for row, part in zip(own, parts, strict=True)]


def _with_models(own: list[ReportRow], weights: Sequence[float], rest: Sequence[ReportRow]) -> list[ReportRow]:
    """Each row with its part of the seconds of each model; the amounts follow from them."""
    models = {model for row in rest for model in row.by_model}
    for model in sorted(models):
        seconds = sum([row.by_model.get(model, 0.0) for row in rest])
        used = [row.by_model.get(model, 0.0) for row in own]
        shares = used if sum(used) else weights
        own = [
            replace(row, by_model={**row.by_model, model: before + seconds * share / sum(shares)}) if share else row
            for row, before, share in zip(own, used, shares, strict=True)
        ]
    return [
        replace(row, amounts={**row.amounts, Quantity.SHARED: sum(row.by_model.values())}) if row.by_model else row
        for row in own
    ]


def _total(totals: Totals) -> ReportRow:
    amounts = _whole(totals, Part.WHOLE)
    if totals.charged in OF_ALL_GPUS and Quantity.OBSERVED in amounts:
        amounts[totals.charged] = amounts[Quantity.OBSERVED]
    return ReportRow(Kind.TOTAL, amounts=amounts, by_model=totals.by_model[Part.WHOLE].get((), {}))


def _idle(totals: Totals, rows: Sequence[ReportRow], total: ReportRow) -> ReportRow:
    """Idle energy, and the hours of GPUs that no row held."""
    amounts = _whole(totals, Part.IDLE)
    by_model: dict[str, float] = {}
    if Quantity.SHARED in total.amounts:
        amounts[Quantity.SHARED] = max(0.0, total.amounts[Quantity.SHARED] - _sum_of(rows, Quantity.SHARED))
        for model, seconds in total.by_model.items():
            by_model[model] = max(0.0, seconds - sum([row.by_model.get(model, 0.0) for row in rows]))
    return ReportRow(Kind.IDLE, amounts=amounts, bars=_bars(totals, Part.IDLE), by_model=by_model)


def _difference(charged: Quantity, rows: Sequence[ReportRow], total: ReportRow) -> ReportRow:
    """Hours of GPUs that nothing was charged for; negative if more was charged than there is."""
    by_model = {
        model: seconds - sum([row.by_model.get(model, 0.0) for row in rows])
        for model, seconds in total.by_model.items()
    }
    return ReportRow(
        Kind.DIFFERENCE, amounts={charged: total.amounts[charged] - _sum_of(rows, charged)}, by_model=by_model
    )


def _larger(totals: Totals, key: Key) -> dict[Quantity, float]:
    """The larger of entitled and busy time in each cell, if that is charged."""
    cells = [cells for column in FOR_LARGER if (cells := totals.by_cell.get(key, {}).get(column))]
    if totals.charged is not Quantity.LARGER or not cells:
        return {}
    return {Quantity.LARGER: sum(map(max, zip(*cells, strict=True)))}


def _unrecorded(totals: Totals, grouping: Grouping) -> list[float]:
    """By cell: the GPUs' energy minus all booked energy. Negative if energy was booked in a later cell."""
    groups = Part.ALL_GROUPS if grouping.join else Part.GROUP
    missing = list(totals.energy_by_cell.get(Part.WHOLE, ()))
    for part in (groups, Part.OUTSIDE, Part.IDLE, Part.UNATTRIBUTED) if missing else ():
        if booked := totals.energy_by_cell.get(part, ()):
            missing = [energy - joules for energy, joules in zip(missing, booked, strict=True)]
    return missing


def _groups(totals: Totals, grouping: Grouping) -> tuple[list[ReportRow], list[ReportRow]]:
    """The rows of groups, and at most one row for owners whose group is unknown."""
    named, unknown, unknown_hours = [], dict[Quantity, float](), dict[str, float]()
    for key, found in totals.amounts[Part.GROUP].items():
        hours, amounts = totals.by_model[Part.GROUP].get(key, {}), {**found, **_larger(totals, key)}
        if grouping.join and not any(key):
            unknown, unknown_hours = dict(amounts), hours
        else:
            named.append(ReportRow(Kind.GROUP, key, amounts, totals.energy_by_bar.get(key, ()), by_model=hours))
    if grouping.name == SERVED:
        named = [_served(row, totals) for row in named]
    for column in (Quantity.ENERGY, Quantity.CARBON) if grouping.join else ():
        whole = totals.whole(Part.ALL_GROUPS, column) or 0.0
        remainder = whole - _sum_of(named, column)
        if remainder > NOISE * whole:
            unknown[column] = remainder
    bars = _bars(totals, Part.ALL_GROUPS)
    for row in named if grouping.join else ():
        bars = [max(0.0, joules - own) for joules, own in zip(bars, row.bars or bars, strict=True)]
    named.sort(key=_largest_first)
    return named, [ReportRow(Kind.UNKNOWN, (), unknown, bars, by_model=unknown_hours)] if unknown else []


def _served(row: ReportRow, totals: Totals) -> ReportRow:
    """A language model with its energy above parked power, and that of prefill and decode."""
    energy, parked = row.amounts.get(Quantity.ENERGY), row.amounts.get(Quantity.PARKED, 0.0)
    if energy is None:
        return row
    cells = totals.by_cell.get(row.key, {})
    nothing = [0.0] * len(next(iter(cells.values()), ()))
    columns = [cells.get(column, nothing) for column in FITTED]
    windows = [Window(joules - waiting, prompt, output) for joules, waiting, prompt, output in
               zip(*columns, strict=True)]  # fmt: skip
    amounts = {**row.amounts, Quantity.PARKED: parked, Quantity.WORK: max(0.0, energy - parked)}
    return replace(row, amounts=amounts, phases=fit(windows))


def _by_department(
    groups: Sequence[ReportRow], departments: Mapping[str, str]
) -> tuple[list[ReportRow], list[ReportRow]]:
    """One row per department, and the groups that have none."""
    members = _members(groups, departments)
    unmapped = members.pop("", [])
    merged = [row for name, rows in members.items() for row in _merged(rows, Kind.GROUP, (name,))]
    return sorted(merged, key=_largest_first), unmapped


def _members(groups: Sequence[ReportRow], departments: Mapping[str, str]) -> dict[str, list[ReportRow]]:
    """The groups of each department; those that have none by the name ""."""
    members: dict[str, list[ReportRow]] = {}
    for row in groups:
        members.setdefault(departments.get("/".join(row.key), ""), []).append(row)
    return members


def _largest_first(row: ReportRow) -> tuple[float, Key]:
    return (-row.amounts.get(Quantity.ENERGY, 0.0), row.key)


def _merged(groups: Sequence[ReportRow], kind: Kind, key: Key = ()) -> list[ReportRow]:
    """At most one row with the sums of these groups."""
    if not groups:
        return []
    amounts: dict[Quantity, float] = {}
    by_model: dict[str, float] = {}
    for row in groups:
        for column, amount in row.amounts.items():
            amounts[column] = amounts.get(column, 0.0) + amount
        for model, seconds in row.by_model.items():
            by_model[model] = by_model.get(model, 0.0) + seconds
    return [ReportRow(kind, key, amounts, _sum(*[row.bars for row in groups]), len(groups), by_model)]


def _sum_of(rows: Sequence[ReportRow], column: Quantity) -> float:
    return sum([row.amounts.get(column, 0.0) for row in rows])


def _whole(totals: Totals, part: Part) -> dict[Quantity, float]:
    amounts = [(column, totals.whole(part, column)) for column in Quantity]
    return {column: amount for column, amount in amounts if amount is not None}


def _bars(totals: Totals, part: Part) -> list[float]:
    return _to_bars(totals, totals.energy_by_cell.get(part, ()))


def _to_bars(totals: Totals, cells: Sequence[float]) -> list[float]:
    bars = [0.0] * totals.bars
    for cell, joules in enumerate(cells):
        bars[totals.bar_of[cell]] += joules
    return bars


def _sum(*series: Sequence[float]) -> list[float]:
    return [sum(bars) for bars in zip(*[bars for bars in series if bars], strict=True)]
