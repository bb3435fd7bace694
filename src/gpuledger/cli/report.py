"""`gpuledger report`: energy, GPU-hours and cost by owner over a span of time, from a Prometheus."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from gpuledger.cli import terminal
from gpuledger.cli.terminal import Progress
from gpuledger.errors import ConfigError, PrometheusError
from gpuledger.model.plaintext import escaped
from gpuledger.storage.atomicfile import replacing
from gpuledger.tools.prometheus.client import Prometheus
from gpuledger.tools.report.focus import Issuer, gather_hours, to_focus, whole_hours
from gpuledger.tools.report.formats import table, to_csv, to_json
from gpuledger.tools.report.gather import Gatherer
from gpuledger.tools.report.html import to_html
from gpuledger.tools.report.mapfile import Departments, read
from gpuledger.tools.report.queries import Grouping
from gpuledger.tools.report.report import Report
from gpuledger.tools.report.rows import Kind, create_rows, spread
from gpuledger.tools.report.settings import ReportSettings
from gpuledger.tools.report.span import Span

SETTINGS = ReportSettings


def add_arguments(_: argparse.ArgumentParser) -> None:
    """All flags of `report` are settings."""


def run(_: argparse.Namespace, settings: ReportSettings) -> int:
    """Write the report; exit code 1 and one line if Prometheus does not return what it needs."""
    output_format, span = settings.output_format(), settings.span(time.time_ns() // 1_000_000)
    departments = _departments(settings.map, settings.grouping())
    settings.check_hours()
    if output_format == "focus":
        settings.check_focus()
    server = Prometheus(settings.access())
    try:
        with closing(Progress(f"querying {settings.prometheus_url}")) as progress:
            gatherer = Gatherer(server.query_range, settings.allow_partial, progress.show)
            if output_format == "focus":
                text = _focus(settings, gatherer, span)
            else:
                report = _report(settings, gatherer, span, departments)
                text = _render(report, output_format, to_file=bool(settings.output))
    except PrometheusError as error:
        return terminal.fail(str(error))
    _write(text.encode(), settings.output)
    return 0


def _report(settings: ReportSettings, gatherer: Gatherer, span: Span, departments: Departments | None) -> Report:
    grouping, prices, gap_ms = settings.grouping(), settings.prices(), round(settings.gap * 1000)
    intensity = gatherer.intensity(prices.carbon_query, span) if prices.carbon_query else None
    totals = gatherer.gather(grouping, span, gap_ms, prices.charged, by_model=bool(prices.models), intensity=intensity)
    rows = create_rows(totals, grouping, settings.top or None, departments.by_group if departments else None)
    _check_prices(prices.unpriced(rows))
    if settings.idle == "spread":
        rows = spread(rows)
    notes = list(gatherer.notes)
    if not settings.is_month_over(span):
        notes.insert(0, f"{settings.month} is not over; the report ends at {span.end}")
    if grouping.needs and not any(row.kind is Kind.GROUP for row in rows.rows):
        notes.append(f"no container has {grouping.name}; {grouping.needs}")
    return Report(span, grouping, prices, rows, tuple(notes), departments.head if departments else "")


def _focus(settings: ReportSettings, gatherer: Gatherer, span: Span) -> str:
    """The rows of FOCUS; notes go to standard error, because the file has no place for them."""
    prices, grouping = settings.prices(), settings.grouping()
    hours = list(gather_hours(gatherer, grouping, whole_hours(span), round(settings.gap * 1000)))
    _check_prices(sorted({hour.model for hour in hours if prices.has_hours and prices.price_of(hour.model) is None}))
    for note in gatherer.notes:
        print(f"gpuledger: note: {escaped(note)}", file=sys.stderr)
    return to_focus(hours, prices, grouping.heads, Issuer(settings.billing_account, settings.provider_name))


def _check_prices(unpriced: Sequence[str]) -> None:
    if unpriced:
        what = f"--price-model: no price for {', '.join(model or 'GPUs of an unknown model' for model in unpriced)}"
        raise ConfigError(what, "add one, or --price-gpu-hour for all other models")


def _departments(path: str, grouping: Grouping) -> Departments | None:
    if not path:
        return None
    if len(grouping.heads) != 1:
        raise ConfigError(
            f"--map: a report by {grouping.name} has no departments", "use --by user, account or namespace"
        )
    return read(path, grouping.name)


def _render(report: Report, output_format: str, *, to_file: bool) -> str:
    if output_format == "table":
        return table(report, colour=not to_file and terminal.has_colour())
    return {"csv": to_csv, "json": to_json, "html": to_html}[output_format](report)


def _write(data: bytes, path: str) -> None:
    if not path:
        terminal.write(data)
        return
    with replacing(path) as file:
        file.write(data)
