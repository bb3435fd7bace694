"""A complete report, and the columns that all formats show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuledger.model.tokens import per_token
from gpuledger.tools.report.queries import SERVED, Grouping, Quantity
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.rows import Kind, ReportRow, ReportRows
from gpuledger.tools.report.span import Span
from gpuledger.tools.text import GIB, JOULES_PER_KWH, UNKNOWN, decimals_of, rounded, sum_of_texts


@dataclass(frozen=True, slots=True)
class Report:
    """The settings of a report, and its content."""

    span: Span
    grouping: Grouping
    prices: Rates
    rows: ReportRows
    notes: tuple[str, ...] = ()
    department: str = ""
    """The heading of departments, in a report with `--map`."""
    of: str = ""
    """The only department in the report."""

    @property
    def heads(self) -> tuple[str, ...]:
        """The headings of the parts of a key."""
        return (self.department,) if self.department else self.grouping.heads

    @property
    def is_by_model(self) -> bool:
        """Whether rows are language models, which have tokens."""
        return self.grouping.name == SERVED

    @property
    def all_rows(self) -> Sequence[ReportRow]:
        """The rows, followed by the total."""
        return (*self.rows.rows, self.rows.total)


@dataclass(frozen=True, slots=True)
class FunctionalUnit:
    """R of SCI."""

    name: str
    plural: str
    count: Callable[[Report, ReportRow], float | None]


def functional_unit(report: Report) -> FunctionalUnit:
    """A million tokens in a report by language model, else a GPU-hour of the kind that is charged."""
    if report.is_by_model:
        return FunctionalUnit("million tokens", "million tokens", lambda _, row: _millions(row))
    hours = _scaled(report.prices.charged, 3600)
    return FunctionalUnit("GPU-hour", f"GPU-hours ({report.prices.hours})", hours)


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """One column: its key in files, its heading, its value in a row, and whether a report has it."""

    key: str
    head: str
    """`{money}` stands for the currency."""
    value: Callable[[Report, ReportRow], float | None]
    is_in: Callable[[Report], bool] = lambda _: True
    decimals: int | None = None
    """None if they fit the total."""
    parts: tuple[str, ...] = ()
    """The keys of the columns that this one is the sum of."""

    def heading(self, report: Report) -> str:
        """The heading with the currency, or with the word cost."""
        return self.head.format(money=report.prices.currency or "cost")

    def texts(self, report: Report) -> list[str]:
        """The rounded values of all rows and of the total. If the values add up, so do the rounded ones."""
        if self.parts:
            parts = [column.texts(report) for column in COLUMNS if column.key in self.parts]
            return [sum_of_texts(texts) for texts in zip(*parts, strict=True)]
        percent = 100 if self.key == "energy_share" else 1
        values = [self.value(report, row) for row in report.all_rows]
        *rows, total = [value if value is None else value * percent for value in values]
        largest = total if total is not None else max([value or 0.0 for value in rows], default=0.0)
        texts = rounded(rows, total, decimals_of(largest) if self.decimals is None else self.decimals)
        return [f"{text} %" if percent != 1 and text != UNKNOWN else text for text in texts]


def columns(report: Report) -> list[ReportColumn]:
    """The columns of a report; costs and emissions only if their rate is given."""
    return [column for column in COLUMNS if column.is_in(report)]


def _scaled(column: Quantity, unit: float) -> Callable[[Report, ReportRow], float | None]:
    def value(_: Report, row: ReportRow) -> float | None:
        amount = row.amounts.get(column)
        return None if amount is None else amount / unit

    return value


def _share(report: Report, row: ReportRow) -> float | None:
    energy, whole = row.amounts.get(Quantity.ENERGY), report.rows.total.amounts.get(Quantity.ENERGY)
    return None if energy is None or not whole else energy / whole


def _sci(report: Report, row: ReportRow) -> float | None:
    return report.prices.sci(row, functional_unit(report).count(report, row))


def _tokens(row: ReportRow, *columns: Quantity) -> float:
    return sum([row.amounts.get(column, 0.0) for column in columns or (Quantity.PROMPT, Quantity.OUTPUT)])


def _millions(row: ReportRow) -> float | None:
    return _tokens(row) / 1e6 or None


def _work_per_token(*columns: Quantity) -> Callable[[Report, ReportRow], float | None]:
    """Energy above parked power per token."""

    def value(_: Report, row: ReportRow) -> float | None:
        work = row.amounts.get(Quantity.WORK)
        return None if work is None else per_token(work, _tokens(row, *columns))

    return value


def _work_per_million(row: ReportRow, amount: float | None) -> float | None:
    """The part of an amount that is above parked power, per million tokens."""
    energy, work, millions = row.amounts.get(Quantity.ENERGY), row.amounts.get(Quantity.WORK), _millions(row)
    if row.kind is Kind.TOTAL or not energy or work is None or amount is None or not millions:
        return None
    return amount * work / energy / millions


def _cost_per_million(report: Report, row: ReportRow) -> float | None:
    cost, millions = report.prices.row_cost(row), _millions(row)
    return None if cost is None or not millions or row.kind is Kind.TOTAL else cost / millions


def _grams_per_million(report: Report, row: ReportRow) -> float | None:
    kg = report.prices.carbon_kg(row.amounts)
    return _work_per_million(row, None if kg is None else 1000 * kg)


def _phase(name: str, head: str) -> ReportColumn:
    """A column for a field of PhaseEnergy."""
    return ReportColumn(
        f"{name}_per_token",
        head,
        lambda _, row: None if row.phases is None else getattr(row.phases, name),
        lambda report: report.is_by_model and any(row.phases is not None for row in report.rows.rows),
    )


COLUMNS = (
    ReportColumn("energy_kwh", "energy kWh", _scaled(Quantity.ENERGY, JOULES_PER_KWH)),
    ReportColumn("energy_share", "share", _share, decimals=1),
    ReportColumn("busy_gpu_hours", "busy h", _scaled(Quantity.BUSY, 3600)),
    ReportColumn("resident_gpu_hours", "resident h", _scaled(Quantity.RESIDENT, 3600)),
    ReportColumn("allocated_gpu_hours", "allocated h", _scaled(Quantity.ALLOCATED, 3600)),
    ReportColumn("apportioned_gpu_hours", "apportioned h", _scaled(Quantity.SHARED, 3600),
                lambda report: report.prices.charged is Quantity.SHARED),
    ReportColumn("entitled_gpu_hours", "entitled h", _scaled(Quantity.ENTITLED, 3600),
                lambda report: report.prices.charged in (Quantity.ENTITLED, Quantity.LARGER)),
    ReportColumn("larger_gpu_hours", "larger h", _scaled(Quantity.LARGER, 3600),
                lambda report: report.prices.charged is Quantity.LARGER),
    ReportColumn("memory_gib_hours", "memory GiB h", _scaled(Quantity.MEMORY, 3600 * GIB)),
    ReportColumn("energy_cost", "energy {money}", lambda report, row: report.prices.energy_cost(row.amounts),
                lambda report: report.prices.kwh is not None, 2),
    ReportColumn("gpu_hours_cost", "GPU h {money}", lambda report, row: report.prices.hours_cost(row),
                lambda report: report.prices.has_hours, 2),
    ReportColumn("cost", "total {money}", lambda report, row: report.prices.row_cost(row),
                lambda report: report.prices.kwh is not None and report.prices.has_hours, 2,
                ("energy_cost", "gpu_hours_cost")),
    ReportColumn("carbon_kg", "CO2e kg", lambda report, row: report.prices.carbon_kg(row.amounts),
                lambda report: report.prices.has_carbon),
    ReportColumn("embodied_carbon_kg", "embodied kg", lambda report, row: report.prices.embodied_kg(row),
                lambda report: report.prices.embodied is not None),
    ReportColumn("sci_grams_per_gpu_hour", "SCI g/GPU h", _sci,
                lambda report: report.prices.has_sci and not report.is_by_model),
    ReportColumn("sci_grams_per_million_tokens", "SCI g/Mtoken", _sci,
                lambda report: report.prices.has_sci and report.is_by_model),
    ReportColumn("prompt_tokens", "prompt tokens", _scaled(Quantity.PROMPT, 1), lambda report: report.is_by_model),
    ReportColumn("output_tokens", "output tokens", _scaled(Quantity.OUTPUT, 1), lambda report: report.is_by_model),
    ReportColumn("parked_kwh", "parked kWh", _scaled(Quantity.PARKED, JOULES_PER_KWH),
                lambda report: report.is_by_model),
    ReportColumn("joules_per_output_token", "J/output token", _work_per_token(Quantity.OUTPUT),
                lambda report: report.is_by_model),
    ReportColumn("joules_per_token", "J/token", _work_per_token(), lambda report: report.is_by_model),
    ReportColumn("energy_cost_per_million_tokens", "energy {money}/Mtoken",
                lambda report, row: _work_per_million(row, report.prices.energy_cost(row.amounts)),
                lambda report: report.is_by_model and report.prices.kwh is not None, 4),
    ReportColumn("cost_per_million_tokens", "all {money}/Mtoken", _cost_per_million,
                lambda report: report.is_by_model and (report.prices.kwh is not None or report.prices.has_hours), 4),
    ReportColumn("carbon_grams_per_million_tokens", "CO2e g/Mtoken", _grams_per_million,
                lambda report: report.is_by_model and report.prices.has_carbon),
    _phase("prompt_j", "prefill J/token"),
    _phase("prompt_error_j", "error"),
    _phase("output_j", "decode J/token"),
    _phase("output_error_j", "error "),
)  # fmt: skip
"""All columns of all reports. Energy per token is above parked power, which has its own column."""


def cells(report: Report) -> list[list[str]]:
    """The texts of all rows and of the total, as people read them: the name, and a rounded number per column."""
    names = [row_name(row, report.heads) for row in report.all_rows]
    return [list(texts) for texts in zip(names, *[column.texts(report) for column in columns(report)], strict=True)]


def row_name(row: ReportRow, heads: Sequence[str]) -> str:
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
