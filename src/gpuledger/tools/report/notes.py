"""Texts below a report: coverage, prices, and what a reader of the numbers must know. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuledger.config import durations
from gpuledger.tools.report.queries import Column
from gpuledger.tools.report.report import JOULES_PER_KWH, Prices, Report, columns, functional_unit, show_number
from gpuledger.tools.report.rounding import adds_up, decimals_of
from gpuledger.tools.report.rows import UNRECORDED
from gpuledger.tools.report.span import MAX_POINTS

QUANTITIES = {
    "busy_gpu_hours": Column.BUSY,
    "resident_gpu_hours": Column.RESIDENT,
    "allocated_gpu_hours": Column.ALLOCATED,
    "memory_gib_hours": Column.MEMORY,
}
"""Columns whose rows may not add up to the total, as those of energy and apportioned hours do."""
MUCH_UNRECORDED = 0.03
"""The share of unrecorded energy from which a shorter step is suggested."""
LISTED_NAMES = 10
"""The number of unmapped groups to name."""


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
    if report.rows.spread:
        lines.append(("spread by use", ", ".join(_spread(report.rows.spread))))
    if rates := _rates(report.prices):
        lines.append(("prices", f"{', '.join(rates)}; PUE {report.prices.pue:g}"))
    if sci := sci_text(report):
        lines.append(("SCI", sci))
    return lines + [("note", note) for note in all_notes(report)]


def sci_text(report: Report) -> str:
    """SCI of the total with its components; empty if emissions or the functional unit are unknown."""
    if not report.prices.has_sci:
        return ""
    total, prices, unit = report.rows.total, report.prices, functional_unit(report)
    units, energy = unit.count(total), total.amounts.get(Column.ENERGY)
    sci, operational = prices.sci(total, units), prices.carbon_kg(total.amounts)
    if sci is None or operational is None or units is None or not energy:
        return ""
    kwh = energy / JOULES_PER_KWH * prices.pue
    embodied = 1000 * (prices.embodied_kg(total) or 0.0)
    parts = f"E {show_number(kwh, 3)} kWh x I {show_number(1000 * operational / kwh, 1)} g/kWh"
    return (
        f"({parts} + M {show_number(embodied, 1)} g) / R {show_number(units, 3)} {unit.plural} = "
        f"{show_number(sci, 3)} g CO2e per {unit.name}"
    )


def all_notes(report: Report) -> list[str]:
    """What a reader of the numbers must know; every format has it."""
    return [*report.notes, *_sum_notes(report), *_unrecorded_notes(report), *_unmapped_notes(report)]


def _sum_notes(report: Report) -> Iterator[str]:
    """Why the rows of columns do not add up to the total; one note for each reason."""
    by_reason: dict[str, list[str]] = {}
    for column in columns(report):
        is_cost = column.key in ("gpu_hours_cost", "cost")
        quantity = report.prices.charged if is_cost else QUANTITIES.get(column.key)
        values, total = [column.value(row) for row in report.rows.rows], column.value(report.rows.total)
        if quantity is None or total is None or adds_up(values, total):
            continue
        summed = sum([value or 0.0 for value in values])
        decimals = decimals_of(max(summed, total)) if column.decimals is None else column.decimals
        numbers = f"{column.head} ({summed:,.{decimals}f}, total {total:,.{decimals}f})"
        by_reason.setdefault(_why(quantity, report, more=summed > total), []).append(numbers)
    for reason, parts in by_reason.items():
        yield f"the rows do not add up to the total in {', '.join(parts)}: {reason}"


def _why(column: Column, report: Report, *, more: bool) -> str:
    if column is Column.BUSY:
        return "the driver samples processes and GPUs separately"
    if column is Column.MEMORY:
        return "the memory of processes and of GPUs is sampled separately"
    if more:
        apportioned = report.prices.charged is Column.SHARED
        fix = "the column apportioned h divides it" if apportioned else "--gpu-hours share divides it"
        return f"a GPU that several groups hold at the same time counts for each of them and once in the total; {fix}"
    if column is Column.ALLOCATED and not report.grouping.has_allocations:
        return f"allocations have no {report.grouping.name}"
    what = "allocated to" if column is Column.ALLOCATED else "used by"
    head = report.grouping.heads[-1]
    article = "an" if head[0] in "aeio" else "a"  # a user
    return f"some GPUs were {what} owners without {article} {head}"


def _unrecorded_notes(report: Report) -> Iterator[str]:
    total = report.rows.total.amounts.get(Column.ENERGY, 0.0)
    missing = dict(report.rows.reasons).get(UNRECORDED, 0.0)
    if missing <= MUCH_UNRECORDED * total:
        return
    shorter = report.span.finer_step_s(MAX_POINTS)
    fix = "check that the exporters have a journal and expose all processes (--process.max)"
    if shorter:
        fix = f"--step {durations.show(float(shorter))} may record more, because less of counters that restart is lost"
    yield f"{100 * missing / total:.1f} % of the energy is unrecorded; {fix}"


def _unmapped_notes(report: Report) -> Iterator[str]:
    names = [name or f"(no {report.grouping.heads[-1]})" for name in report.rows.unmapped]
    if names:
        more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
        yield f"not in the file of --map: {', '.join(names[:LISTED_NAMES])}{more}"


def _spread(amounts: Mapping[Column, float]) -> Iterator[str]:
    if Column.ENERGY in amounts:
        yield f"{show_number(amounts[Column.ENERGY] / JOULES_PER_KWH, 3)} kWh of idle and unattributed energy"
    if Column.SHARED in amounts:
        yield f"{show_number(amounts[Column.SHARED] / 3600, 2)} idle GPU-hours"


def _rates(prices: Prices) -> list[str]:
    currency = f" {prices.currency}" if prices.currency else ""
    rates = []
    if prices.kwh is not None:
        rates.append(f"{prices.kwh:g}{currency} per kWh")
    for model, price in prices.models.items():
        rates.append(f"{price:g}{currency} per GPU-hour of {model} ({prices.hours})")
    if prices.gpu_hour is not None:
        other = " of other models" if prices.models else ""
        rates.append(f"{prices.gpu_hour:g}{currency} per GPU-hour{other} ({prices.hours})")
    if prices.grams_per_kwh is not None:
        rates.append(f"{prices.grams_per_kwh:g} g CO2e per kWh")
    if prices.carbon_query:
        rates.append(f"g CO2e per kWh by {prices.carbon_query}")
    if prices.embodied is not None:
        life = durations.show(prices.embodied.lifetime_s)
        rates.append(f"{prices.embodied.kg_per_gpu:g} kg CO2e per GPU over {life} ({prices.hours} GPU-hours)")
    return rates
