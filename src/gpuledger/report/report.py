"""A complete report with prices, and the columns that all formats show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger.report.queries import Column, Grouping
from gpuledger.report.rows import Kind, Row, Rows
from gpuledger.report.span import Span

GIB = 1 << 30
JOULES_PER_KWH = 3.6e6
GPU_HOURS = {"allocated": Column.ALLOCATED, "resident": Column.RESIDENT, "busy": Column.BUSY}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a kWh and a GPU-hour, and emissions of a kWh; None if not given."""

    kwh: float | None = None
    gpu_hour: float | None = None
    hours: str = "allocated"
    """The GPU-hours that are charged: a key of GPU_HOURS."""
    currency: str = ""
    grams_per_kwh: float | None = None
    pue: float = 1.0
    """Power usage effectiveness: facility energy divided by IT energy."""

    def energy_cost(self, amounts: Mapping[Column, float]) -> float | None:
        """The cost of the energy, including the facility's share."""
        return self._per_kwh(amounts, self.kwh)

    def hours_cost(self, amounts: Mapping[Column, float]) -> float | None:
        """The cost of the GPU-hours."""
        seconds = amounts.get(GPU_HOURS[self.hours])
        return None if seconds is None or self.gpu_hour is None else seconds / 3600 * self.gpu_hour

    def carbon_kg(self, amounts: Mapping[Column, float]) -> float | None:
        """The emissions of the energy, including the facility's share."""
        grams = self._per_kwh(amounts, self.grams_per_kwh)
        return None if grams is None else grams / 1000

    def _per_kwh(self, amounts: Mapping[Column, float], rate: float | None) -> float | None:
        joules = amounts.get(Column.ENERGY)
        return None if joules is None or rate is None else joules / JOULES_PER_KWH * self.pue * rate


@dataclass(frozen=True, slots=True)
class Report:
    """The settings of a report, and its content."""

    span: Span
    grouping: Grouping
    prices: Prices
    rows: Rows
    notes: tuple[str, ...] = ()

    @property
    def all_rows(self) -> Sequence[Row]:
        """The rows, followed by the total."""
        return (*self.rows.rows, self.rows.total)


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One column: its key in files, its heading, its number of decimals, and its value in a row."""

    key: str
    head: str
    decimals: int
    value: Callable[[Row], float | None]


def columns(report: Report) -> list[ShownColumn]:
    """The columns of a report; costs and emissions only if their rate is given."""
    prices = report.prices
    shown = [
        ShownColumn("energy_kwh", "energy kWh", 3, _scaled(Column.ENERGY, JOULES_PER_KWH)),
        ShownColumn("energy_share", "share", 3, lambda row: _share(row, report.rows.total)),
        ShownColumn("busy_gpu_hours", "busy h", 2, _scaled(Column.BUSY, 3600)),
        ShownColumn("resident_gpu_hours", "resident h", 2, _scaled(Column.RESIDENT, 3600)),
        ShownColumn("allocated_gpu_hours", "allocated h", 2, _scaled(Column.ALLOCATED, 3600)),
        ShownColumn("memory_gib_hours", "memory GiB h", 1, _scaled(Column.MEMORY, 3600 * GIB)),
    ]
    if prices.kwh is not None:
        head = f"energy {prices.currency}" if prices.currency else "energy cost"
        shown.append(ShownColumn("energy_cost", head, 2, lambda row: prices.energy_cost(row.amounts)))
    if prices.gpu_hour is not None:
        head = f"GPU h {prices.currency}" if prices.currency else "GPU h cost"
        shown.append(ShownColumn("gpu_hours_cost", head, 2, lambda row: prices.hours_cost(row.amounts)))
    if prices.grams_per_kwh is not None:
        shown.append(ShownColumn("carbon_kg", "CO2e kg", 3, lambda row: prices.carbon_kg(row.amounts)))
    return shown


def row_name(row: Row, grouping: Grouping) -> str:
    """The name of a row; one in parentheses is not the name of a group."""
    if row.kind is Kind.REST:
        return f"({row.count} more)"
    if row.kind is Kind.TOTAL:
        return "total"
    if row.kind is not Kind.GROUP:
        return f"({row.kind.value})"
    if not any(row.key):
        return f"(no {grouping.heads[-1]})"
    if grouping.name in ("pod", "container"):  # as Owner.display_name
        return "/".join(part for part in row.key if part)
    return "/".join(part or f"(no {head})" for head, part in zip(grouping.heads, row.key, strict=True))


def show_number(value: float | None, decimals: int) -> str:
    """A number for people: `-` if unknown, and two digits if it is too small for the decimals."""
    if value is None:
        return "-"
    return f"{value:.2g}" if 0 < value < 10 ** (1 - decimals) else f"{value:,.{decimals}f}"


def facts(report: Report) -> list[tuple[str, str]]:
    """Names and texts below the table: coverage, unattributed energy, prices and notes."""
    lines: list[tuple[str, str]] = []
    observed, used = (report.rows.total.amounts.get(column) for column in (Column.OBSERVED, Column.RESIDENT))
    if observed is not None:
        idle = "" if used is None else f", {show_number(max(0.0, observed - used) / 3600, 2)} of them without a process"
        lines.append(("GPU-hours observed", f"{show_number(observed / 3600, 2)}{idle}"))
    if report.rows.reasons:
        parts = [f"{reason} {show_number(joules / JOULES_PER_KWH, 3)} kWh" for reason, joules in report.rows.reasons]
        lines.append(("unattributed", ", ".join(parts)))
    if rates := _rates(report.prices):
        lines.append(("prices", f"{', '.join(rates)}; PUE {report.prices.pue:g}"))
    return lines + [("note", note) for note in report.notes]


def _rates(prices: Prices) -> list[str]:
    rates = []
    if prices.kwh is not None:
        rates.append(f"{prices.kwh:g} {prices.currency} per kWh".replace("  ", " "))
    if prices.gpu_hour is not None:
        rates.append(f"{prices.gpu_hour:g} {prices.currency} per GPU-hour ({prices.hours})".replace("  ", " "))
    if prices.grams_per_kwh is not None:
        rates.append(f"{prices.grams_per_kwh:g} g CO2e per kWh")
    return rates


def _scaled(column: Column, unit: float) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        amount = row.amounts.get(column)
        return None if amount is None else amount / unit

    return value


def _share(row: Row, total: Row) -> float | None:
    energy, whole = row.amounts.get(Column.ENERGY), total.amounts.get(Column.ENERGY)
    return None if energy is None or not whole else energy / whole
