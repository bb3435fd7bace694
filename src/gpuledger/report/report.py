"""A whole report, and the columns that every form of it shows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuledger.report.grouping import Grouping
from gpuledger.report.lines import Kind, Line, Lines
from gpuledger.report.prices import JOULES_PER_KWH, Prices
from gpuledger.report.questions import Column
from gpuledger.report.span import Span

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Report:
    """What was asked for, and what came out."""

    span: Span
    grouping: Grouping
    prices: Prices
    lines: Lines
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """One column: its key in files, its head for people, how many decimals, and its value of a line."""

    key: str
    head: str
    decimals: int
    value: Callable[[Line], float | None]


def columns(report: Report) -> list[Shown]:
    """Those that were asked for; prices only where there is one."""
    prices = report.prices
    found = [
        Shown("energy_kwh", "energy kWh", 3, _in(Column.ENERGY, JOULES_PER_KWH)),
        Shown("energy_share", "share", 3, lambda line: _share(line, report.lines.total)),
        Shown("busy_gpu_hours", "busy h", 2, _in(Column.BUSY, 3600)),
        Shown("resident_gpu_hours", "resident h", 2, _in(Column.RESIDENT, 3600)),
        Shown("allocated_gpu_hours", "allocated h", 2, _in(Column.ALLOCATED, 3600)),
        Shown("memory_gib_hours", "memory GiB h", 1, _in(Column.MEMORY, 3600 * GIB)),
    ]
    if prices.kwh is not None:
        head = f"energy {prices.currency}" if prices.currency else "energy cost"
        found.append(Shown("energy_cost", head, 2, lambda line: prices.energy_cost(line.amounts)))
    if prices.gpu_hour is not None:
        head = f"GPU h {prices.currency}" if prices.currency else "GPU h cost"
        found.append(Shown("gpu_hours_cost", head, 2, lambda line: prices.hours_cost(line.amounts)))
    if prices.grams_per_kwh is not None:
        found.append(Shown("carbon_kg", "CO2e kg", 3, lambda line: _thousandth(prices.carbon_grams(line.amounts))))
    return found


def name(line: Line, grouping: Grouping) -> str:
    """Of a line, for people; parentheses say that it is no name of a group."""
    if line.kind is Kind.REST:
        return f"({line.count} more)"
    if line.kind is Kind.TOTAL:
        return "total"
    if line.kind is not Kind.GROUP:
        return f"({line.kind.value})"
    if not any(line.key):
        return f"(no {grouping.heads[-1]})"
    return "/".join(part or f"(no {head})" for head, part in zip(grouping.heads, line.key, strict=True))


def number(value: float | None, decimals: int) -> str:
    """A number for people; `-` where it is not known, and two digits of what is too small for the decimals."""
    if value is None:
        return "-"
    return f"{value:.2g}" if 0 < value < 10 ** (1 - decimals) else f"{value:,.{decimals}f}"


def facts(report: Report) -> list[tuple[str, str]]:
    """What a reader must know beside the lines."""
    prices, found = report.prices, list[tuple[str, str]]()
    seen, used = (report.lines.total.amounts.get(column) for column in (Column.SEEN, Column.RESIDENT))
    if seen is not None:
        idle = "" if used is None else f", {number(max(0.0, seen - used) / 3600, 2)} of them with no process"
        found.append(("GPU-hours seen", f"{number(seen / 3600, 2)}{idle}"))
    if report.lines.reasons:
        parts = [f"{reason} {number(joules / JOULES_PER_KWH, 3)} kWh" for reason, joules in report.lines.reasons]
        found.append(("unattributed", ", ".join(parts)))
    said = []
    if prices.kwh is not None:
        said.append(f"{prices.kwh:g} {prices.currency} a kWh".replace("  ", " "))
    if prices.gpu_hour is not None:
        said.append(f"{prices.gpu_hour:g} {prices.currency} a GPU-hour ({prices.hours})".replace("  ", " "))
    if prices.grams_per_kwh is not None:
        said.append(f"{prices.grams_per_kwh:g} g CO2e a kWh")
    if said:
        found.append(("prices", f"{', '.join(said)}; PUE {prices.pue:g}"))
    return found + [("note", note) for note in report.notes]


def _in(column: Column, unit: float) -> Callable[[Line], float | None]:
    def value(line: Line) -> float | None:
        amount = line.amounts.get(column)
        return None if amount is None else amount / unit

    return value


def _share(line: Line, total: Line) -> float | None:
    mine, whole = line.amounts.get(Column.ENERGY), total.amounts.get(Column.ENERGY)
    return None if mine is None or not whole else mine / whole


def _thousandth(value: float | None) -> float | None:
    return None if value is None else value / 1000


def all_lines(report: Report) -> Sequence[Line]:
    """With the total, which is the last."""
    return (*report.lines.lines, report.lines.total)
