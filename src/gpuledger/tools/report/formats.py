"""The report as a table for terminals, as CSV and as JSON, and the notes that all formats have. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any
from unicodedata import normalize

from gpuledger.config import durations
from gpuledger.model.plaintext import plain
from gpuledger.tools.report.queries import Quantity
from gpuledger.tools.report.rates import Rates
from gpuledger.tools.report.report import Report, ReportColumn, cells, columns, functional_unit
from gpuledger.tools.report.rows import UNRECORDED, Kind, ReportRow
from gpuledger.tools.report.span import MAX_POINTS
from gpuledger.tools.text import BOLD, FAINT, JOULES_PER_KWH, adds_up, aligned, decimals_of, grouped, short_name

FORMULA = ("=", "+", "-", "@", "\u2212")
"""Characters that a spreadsheet takes for the start of a formula."""
QUANTITIES = {
    "busy_gpu_hours": Quantity.BUSY,
    "resident_gpu_hours": Quantity.RESIDENT,
    "allocated_gpu_hours": Quantity.ALLOCATED,
    "entitled_gpu_hours": Quantity.ENTITLED,
    "larger_gpu_hours": Quantity.LARGER,
    "memory_gib_hours": Quantity.MEMORY,
}
"""Columns whose rows may not add up to the total, as those of energy and apportioned hours do."""
MUCH_UNRECORDED = 0.03
"""The share of unrecorded energy from which a shorter step is suggested."""
LISTED_NAMES = 10
"""The number of unmapped groups to name."""


def table(report: Report, *, colour: bool = False) -> str:
    """Aligned columns, without control characters from names."""
    head = ["/".join(report.heads), *(column.heading(report) for column in columns(report))]
    texts, styles = [head], [BOLD]
    for row, (name, *values) in zip(report.all_rows, cells(report), strict=True):
        texts.append([short_name(name), *values])
        styles.append("" if row.kind is Kind.GROUP else BOLD if row.kind is Kind.TOTAL else FAINT)
    lines = [f"{report.span.begin} to {report.span.end}", "", *aligned(texts, head[1:], styles if colour else ())]
    lines += ["", *(f"{name}: {plain(text)}" for name, text in facts(report))]
    return "\n".join(lines).rstrip() + "\n"


def to_csv(report: Report) -> str:
    """CSV with one record per row; unknown values are empty, and the total has the notes."""
    shown = columns(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["from", "to", "kind", *report.heads, *(column.key for column in shown), "note"])
    for row in report.all_rows:
        names = [escape_formula(part) for part in row.key] or [""] * len(report.heads)
        values = ["" if value is None else f"{value:.12g}" for value in (column.value(report, row) for column in shown)]
        note = escape_formula(" | ".join(all_notes(report))) if row.kind is Kind.TOTAL else ""
        writer.writerow([report.span.begin, report.span.end, row.kind.value, *names, *values, note])
    return out.getvalue()


def escape_formula(text: str) -> str:
    """A leading quote turns a formula into text: anyone who may start a pod chooses its name.

    Spreadsheets ignore spaces, take full-width characters for others, and may begin a cell after a line break.
    """
    text = plain(text)
    return f"'{text}" if normalize("NFKC", text).lstrip().startswith(FORMULA) else text


def to_json(report: Report) -> str:
    """One JSON object; unknown values are null."""
    shown, prices = columns(report), report.prices
    observed = report.rows.total.amounts.get(Quantity.OBSERVED)
    tree = {
        "from": report.span.begin,
        "to": report.span.end,
        "step_seconds": report.span.step_ms / 1000,
        "by": report.grouping.name,
        "prices": {
            "kwh": prices.kwh,
            "gpu_hour": prices.gpu_hour,
            "gpu_hour_by_model": dict(prices.models),
            "gpu_hours": prices.hours,
            "currency": prices.currency,
            "carbon_grams_per_kwh": prices.grams_per_kwh,
            "carbon_query": prices.carbon_query,
            "embodied_kg_per_gpu": None if prices.embodied is None else prices.embodied.kg_per_gpu,
            "pue": prices.pue,
        },
        "rows": [_row(report, row, shown) for row in report.rows.rows],
        "total": _row(report, report.rows.total, shown),
        "observed_gpu_hours": None if observed is None else observed / 3600,
        "unattributed_kwh_by_reason": {name: joules / JOULES_PER_KWH for name, joules in report.rows.reasons},
        "sci": sci_text(report),
        "notes": all_notes(report),
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _row(report: Report, row: ReportRow, shown: list[ReportColumn]) -> dict[str, Any]:
    names = dict(zip(report.heads, row.key, strict=True)) if row.kind is Kind.GROUP else {}
    return {"kind": row.kind.value, **names, **{column.key: column.value(report, row) for column in shown}}


# Notes: coverage, prices, and what a reader of the numbers must know


def facts(report: Report) -> list[tuple[str, str]]:
    """Names and texts below the table: coverage, unattributed energy, prices and notes."""
    lines: list[tuple[str, str]] = []
    observed, used = (report.rows.total.amounts.get(column) for column in (Quantity.OBSERVED, Quantity.RESIDENT))
    if observed is not None:
        idle = "" if used is None else f", {grouped(max(0.0, observed - used) / 3600, 2)} of them without a process"
        lines.append(("GPU-hours observed", f"{grouped(observed / 3600, 2)}{idle}"))
    if report.rows.reasons:
        parts = [f"{reason} {grouped(joules / JOULES_PER_KWH, 3)} kWh" for reason, joules in report.rows.reasons]
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
    units, energy = unit.count(report, total), total.amounts.get(Quantity.ENERGY)
    sci, operational = prices.sci(total, units), prices.carbon_kg(total.amounts)
    if sci is None or operational is None or units is None or not energy:
        return ""
    kwh = energy / JOULES_PER_KWH * prices.pue
    embodied = 1000 * (prices.embodied_kg(total) or 0.0)
    parts = f"E {grouped(kwh, 3)} kWh x I {grouped(1000 * operational / kwh, 1)} g/kWh"
    return (
        f"({parts} + M {grouped(embodied, 1)} g) / R {grouped(units, 3)} {unit.plural} = "
        f"{grouped(sci, 3)} g CO2e per {unit.name}"
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
        *values, total = [column.value(report, row) for row in report.all_rows]
        if quantity is None or total is None or adds_up(values, total):
            continue
        summed = sum([value or 0.0 for value in values])
        decimals = decimals_of(max(summed, total)) if column.decimals is None else column.decimals
        numbers = f"{column.heading(report)} ({summed:,.{decimals}f}, total {total:,.{decimals}f})"
        by_reason.setdefault(_why(quantity, report, more=summed > total), []).append(numbers)
    for reason, parts in by_reason.items():
        yield f"the rows do not add up to the total in {', '.join(parts)}: {reason}"


def _why(column: Quantity, report: Report, *, more: bool) -> str:
    if column is Quantity.BUSY:
        return "the driver samples processes and GPUs separately"
    if column is Quantity.MEMORY:
        return "the memory of processes and of GPUs is sampled separately"
    if more:
        apportioned = report.prices.charged is Quantity.SHARED
        fix = "the column apportioned h divides it" if apportioned else "--gpu-hours share divides it"
        return f"a GPU that several groups hold at the same time counts for each of them and once in the total; {fix}"
    if column is Quantity.ALLOCATED and not report.grouping.has_allocations:
        return f"allocations have no {report.grouping.name}"
    what = "allocated to" if column is Quantity.ALLOCATED else "used by"
    head = report.grouping.heads[-1]
    article = "an" if head[0] in "aeio" else "a"  # a user
    return f"some GPUs were {what} owners without {article} {head}"


def _unrecorded_notes(report: Report) -> Iterator[str]:
    total = report.rows.total.amounts.get(Quantity.ENERGY, 0.0)
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


def _spread(amounts: Mapping[Quantity, float]) -> Iterator[str]:
    if Quantity.ENERGY in amounts:
        yield f"{grouped(amounts[Quantity.ENERGY] / JOULES_PER_KWH, 3)} kWh of idle and unattributed energy"
    if Quantity.SHARED in amounts:
        yield f"{grouped(amounts[Quantity.SHARED] / 3600, 2)} idle GPU-hours"


def _rates(rates: Rates) -> list[str]:
    currency = f" {rates.currency}" if rates.currency else ""
    texts = []
    if rates.kwh is not None:
        texts.append(f"{rates.kwh:g}{currency} per kWh")
    for model, price in rates.models.items():
        texts.append(f"{price:g}{currency} per GPU-hour of {model} ({rates.hours})")
    if rates.gpu_hour is not None:
        other = " of other models" if rates.models else ""
        texts.append(f"{rates.gpu_hour:g}{currency} per GPU-hour{other} ({rates.hours})")
    if rates.grams_per_kwh is not None:
        texts.append(f"{rates.grams_per_kwh:g} g CO2e per kWh")
    if rates.carbon_query:
        texts.append(f"g CO2e per kWh by {rates.carbon_query}")
    if rates.embodied is not None:
        life = durations.show(rates.embodied.lifetime_s)
        texts.append(f"{rates.embodied.kg_per_gpu:g} kg CO2e per GPU over {life} ({rates.hours} GPU-hours)")
    return texts
