"""`gpuledger report`: energy, GPU-hours and cost by owner over a span of time, from a Prometheus."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

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
from gpuledger.tools.report.mapfile import Departments, file_names, read
from gpuledger.tools.report.queries import Grouping
from gpuledger.tools.report.report import Report
from gpuledger.tools.report.rows import Kind, create_rows, split_by_department, spread
from gpuledger.tools.report.settings import FORMATS, ReportSettings
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
    paths = _paths(settings, departments, output_format)
    server = Prometheus(settings.access())
    try:
        with closing(Progress(f"querying {settings.prometheus_url}")) as progress:
            gatherer = Gatherer(server.query_range, settings.allow_partial, progress.show)
            if output_format == "focus":
                texts = {"": _focus(settings, gatherer, span)}
            else:
                reports = _reports(settings, gatherer, span, departments)
                to_file = bool(settings.output)
                texts = {name: _render(report, output_format, to_file=to_file) for name, report in reports.items()}
    except PrometheusError as error:
        return terminal.fail(str(error))
    for name, path in paths.items():
        if name in texts:
            _write(texts[name].encode(), path)
    return 0


def _paths(settings: ReportSettings, departments: Departments | None, output_format: str) -> dict[str, str]:
    """The file of the report, by the name ""; in a folder, also that of each department."""
    if not settings.output.endswith("/"):
        return {"": settings.output}
    if departments is None:
        raise ConfigError("--output: a folder has a file for each department of --map", "set --map, or name a file")
    files = file_names(["(all)", *departments.by_group.values()], FORMATS[output_format][0])
    paths = {name: settings.output + file for name, file in files.items()}
    try:
        Path(settings.output).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output: cannot create {settings.output}: {error.strerror}", "name a folder") from None
    return {"": paths.pop("(all)"), **paths}


def _reports(
    settings: ReportSettings, gatherer: Gatherer, span: Span, departments: Departments | None
) -> dict[str, Report]:
    """The whole report, by the name "", and that of each department."""
    grouping, prices, gap_ms = settings.grouping(), settings.prices(), round(settings.gap * 1000)
    intensity = gatherer.intensity(prices.carbon_query, span) if prices.carbon_query else None
    totals = gatherer.gather(grouping, span, gap_ms, prices.charged, by_model=bool(prices.models), intensity=intensity)
    shared = spread if settings.idle == "spread" else lambda rows: rows
    rows = create_rows(totals, grouping, settings.top or None, departments.by_group if departments else None)
    _check_prices(prices.unpriced(rows))
    notes = list(gatherer.notes)
    if not settings.is_month_over(span):
        notes.insert(0, f"{settings.month} is not over; the report ends at {span.end}")
    if grouping.needs and not any(row.kind is Kind.GROUP for row in rows.rows):
        notes.append(f"no container has {grouping.name}; {grouping.needs}")
    report = Report(span, grouping, prices, shared(rows), tuple(notes), departments.head if departments else "")
    if departments is None:
        return {"": report}
    own = split_by_department(shared(create_rows(totals, grouping)), departments.by_group)
    return {"": report} | {name: replace(report, rows=part, department="", of=name) for name, part in own.items()}


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
