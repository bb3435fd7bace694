"""A complete report, and the columns that all formats show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuledger.model.tokens import per_token
from gpuledger.tools.report.queries import SERVED, Column, Grouping
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.rows import Kind, Row, Rows
from gpuledger.tools.report.span import Span
from gpuledger.tools.text import GIB, JOULES_PER_KWH, UNKNOWN, decimals_of, rounded, sum_of_texts


@dataclass(frozen=True, slots=True)
class Report:
    """The settings of a report, and its content."""

    span: Span
    grouping: Grouping
    prices: Rates
    rows: Rows
    notes: tuple[str, ...] = ()
    department: str = ""
    """The heading of departments, in a report with `--map`."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The headings of the parts of a key."""
        return (self.department,) if self.department else self.grouping.heads

    @property
    def all_rows(self) -> Sequence[Row]:
        """The rows, followed by the total."""
        return (*self.rows.rows, self.rows.total)


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One column: its key in files, its heading, its value in a row, and its decimals; None if they fit the total."""

    key: str
    head: str
    value: Callable[[Row], float | None]
    decimals: int | None = None
    parts: tuple[ShownColumn, ...] = ()
    """The columns that this one is the sum of."""

    def texts(self, report: Report) -> list[str]:
        """The rounded values of all rows and of the total. If the values add up, so do the rounded ones."""
        if self.parts:
            return [sum_of_texts(texts) for texts in zip(*[part.texts(report) for part in self.parts], strict=True)]
        percent = 100 if self.key == "energy_share" else 1
        values = [value if value is None else value * percent for value in map(self.value, report.all_rows)]
        *rows, total = values
        largest = total if total is not None else max([value or 0.0 for value in rows], default=0.0)
        texts = rounded(rows, total, decimals_of(largest) if self.decimals is None else self.decimals)
        return [f"{text} %" if percent != 1 and text != UNKNOWN else text for text in texts]


def columns(report: Report) -> list[ShownColumn]:
    """The columns of a report; costs and emissions only if their rate is given."""
    prices = report.prices
    shown = [
        ShownColumn("energy_kwh", "energy kWh", _scaled(Column.ENERGY, JOULES_PER_KWH)),
        ShownColumn("energy_share", "share", lambda row: _share(row, report.rows.total), 1),
        ShownColumn("busy_gpu_hours", "busy h", _scaled(Column.BUSY, 3600)),
        ShownColumn("resident_gpu_hours", "resident h", _scaled(Column.RESIDENT, 3600)),
        ShownColumn("allocated_gpu_hours", "allocated h", _scaled(Column.ALLOCATED, 3600)),
    ]
    if prices.charged is Column.SHARED:
        shown.append(ShownColumn("apportioned_gpu_hours", "apportioned h", _scaled(Column.SHARED, 3600)))
    shown.append(ShownColumn("memory_gib_hours", "memory GiB h", _scaled(Column.MEMORY, 3600 * GIB)))
    if prices.kwh is not None:
        head = f"energy {prices.currency}" if prices.currency else "energy cost"
        shown.append(ShownColumn("energy_cost", head, lambda row: prices.energy_cost(row.amounts), 2))
    if prices.has_hours:
        head = f"GPU h {prices.currency}" if prices.currency else "GPU h cost"
        shown.append(ShownColumn("gpu_hours_cost", head, prices.hours_cost, 2))
    if prices.kwh is not None and prices.has_hours:
        head = f"total {prices.currency}" if prices.currency else "total cost"
        shown.append(ShownColumn("cost", head, prices.row_cost, 2, tuple(shown[-2:])))
    if prices.has_carbon:
        shown.append(ShownColumn("carbon_kg", "CO2e kg", lambda row: prices.carbon_kg(row.amounts)))
    if prices.embodied is not None:
        shown.append(ShownColumn("embodied_carbon_kg", "embodied kg", prices.embodied_kg))
    if prices.has_sci:
        unit = functional_unit(report)
        shown.append(ShownColumn(unit.key, unit.head, lambda row: prices.sci(row, unit.count(row))))
    return [*shown, *_of_tokens(report)] if report.grouping.name == SERVED else shown


@dataclass(frozen=True, slots=True)
class FunctionalUnit:
    """R of SCI."""

    name: str
    plural: str
    key: str
    head: str
    count: Callable[[Row], float | None]


def functional_unit(report: Report) -> FunctionalUnit:
    """A million tokens in a report by language model, else a GPU-hour of the kind that is charged."""
    if report.grouping.name == SERVED:
        return FunctionalUnit(
            "million tokens", "million tokens", "sci_grams_per_million_tokens", "SCI g/Mtoken", _millions
        )
    hours = _scaled(report.prices.charged, 3600)
    plural = f"GPU-hours ({report.prices.hours})"
    return FunctionalUnit("GPU-hour", plural, "sci_grams_per_gpu_hour", "SCI g/GPU h", hours)


def _of_tokens(report: Report) -> list[ShownColumn]:
    """Columns of a report by language model. Energy per token is above parked power, which is separate."""
    prices = report.prices
    shown = [
        ShownColumn("prompt_tokens", "prompt tokens", _scaled(Column.PROMPT, 1)),
        ShownColumn("output_tokens", "output tokens", _scaled(Column.OUTPUT, 1)),
        ShownColumn("parked_kwh", "parked kWh", _scaled(Column.PARKED, JOULES_PER_KWH)),
        ShownColumn(
            "joules_per_output_token",
            "J/output token",
            lambda row: _per(row, _tokens(row, Column.OUTPUT)),
        ),
        ShownColumn("joules_per_token", "J/token", lambda row: _per(row, _tokens(row))),
    ]

    def of_work(row: Row, amount: float | None) -> float | None:
        """The part of an amount that is above parked power, per million tokens."""
        energy, work, millions = row.amounts.get(Column.ENERGY), row.amounts.get(Column.WORK), _millions(row)
        if row.kind is Kind.TOTAL or not energy or work is None or amount is None or not millions:
            return None
        return amount * work / energy / millions

    def grams(row: Row) -> float | None:
        kg = prices.carbon_kg(row.amounts)
        return of_work(row, None if kg is None else 1000 * kg)

    def cost(row: Row) -> float | None:
        whole, millions = prices.row_cost(row), _millions(row)
        return None if whole is None or not millions or row.kind is Kind.TOTAL else whole / millions

    if prices.kwh is not None:
        head = f"energy {prices.currency or 'cost'}/Mtoken"
        value = lambda row: of_work(row, prices.energy_cost(row.amounts))  # noqa: E731 - used once
        shown.append(ShownColumn("energy_cost_per_million_tokens", head, value, 4))
    if prices.kwh is not None or prices.has_hours:
        head = f"all {prices.currency or 'cost'}/Mtoken"
        shown.append(ShownColumn("cost_per_million_tokens", head, cost, 4))
    if prices.has_carbon:
        shown.append(ShownColumn("carbon_grams_per_million_tokens", "CO2e g/Mtoken", grams))
    if any(row.phases is not None for row in report.rows.rows):
        for key, head in PHASES.items():
            shown.append(ShownColumn(f"{key}_per_token", head, _phase(key)))
    return shown


PHASES = {
    "prompt_j": "prefill J/token",
    "prompt_error_j": "error",
    "output_j": "decode J/token",
    "output_error_j": "error ",
}
"""Fields of PhaseEnergy, and their headings."""


def _phase(name: str) -> Callable[[Row], float | None]:
    return lambda row: None if row.phases is None else getattr(row.phases, name)


def _tokens(row: Row, *columns: Column) -> float:
    return sum([row.amounts.get(column, 0.0) for column in columns or (Column.PROMPT, Column.OUTPUT)])


def _millions(row: Row) -> float | None:
    return _tokens(row) / 1e6 or None


def _per(row: Row, tokens: float) -> float | None:
    """Energy above parked power per token."""
    work = row.amounts.get(Column.WORK)
    return None if work is None else per_token(work, tokens)


def cells(report: Report) -> list[list[str]]:
    """The texts of all rows and of the total, as people read them: the name, and a rounded number per column."""
    names = [row_name(row, report.heads) for row in report.all_rows]
    return [list(texts) for texts in zip(names, *[column.texts(report) for column in columns(report)], strict=True)]


def row_name(row: Row, heads: Sequence[str]) -> str:
    """The name of a row; one in parentheses is not the name of a group."""
    if row.kind is Kind.REST:
        return f"({row.count} more)"
    if row.kind is Kind.TOTAL:
        return "total"
    if row.kind is not Kind.GROUP:
        return f"({row.kind.value})"
    if not any(row.key):
        return f"(no {heads[-1]})"
    if heads[-1] in ("pod", "container"):  # as Owner.display_name
        return "/".join(part for part in row.key if part)
    return "/".join(part or f"(no {head})" for head, part in zip(heads, row.key, strict=True))


def _scaled(column: Column, unit: float) -> Callable[[Row], float | None]:
    def value(row: Row) -> float | None:
        amount = row.amounts.get(column)
        return None if amount is None else amount / unit

    return value


def _share(row: Row, total: Row) -> float | None:
    energy, whole = row.amounts.get(Column.ENERGY), total.amounts.get(Column.ENERGY)
    return None if energy is None or not whole else energy / whole
