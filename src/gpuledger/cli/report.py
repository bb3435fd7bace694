"""`gpuledger report`: energy, GPU-hours and cost by owner over a span of time, from a Prometheus."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing

from gpuledger.atomicfile import replacing
from gpuledger.cli import terminal
from gpuledger.cli.terminal import Progress
from gpuledger.errors import PrometheusError
from gpuledger.fleet.prometheus import Prometheus
from gpuledger.report.formats import table, to_csv, to_json
from gpuledger.report.gather import Gatherer
from gpuledger.report.html import to_html
from gpuledger.report.queries import GROUPINGS
from gpuledger.report.report import Report
from gpuledger.report.rows import create_rows
from gpuledger.report.settings import OPTIONS, Settings

__all__ = ["OPTIONS", "Settings", "add_arguments", "run"]


def add_arguments(_: argparse.ArgumentParser) -> None:
    """All flags of `report` are settings."""


def run(_: argparse.Namespace, settings: Settings) -> int:
    """Write the report; exit code 1 and one line if Prometheus does not return what it needs."""
    output_format = settings.output_format()
    span, grouping = settings.span(time.time_ns() // 1_000_000), GROUPINGS[settings.by]
    server = Prometheus(settings.access())
    try:
        with closing(Progress(f"querying {settings.prometheus_url}")) as progress:
            gatherer = Gatherer(server.query_range, settings.allow_partial, progress.show)
            totals = gatherer.gather(grouping, span, round(settings.gap * 1000))
    except PrometheusError as error:
        print(f"gpuledger: {terminal.printable(str(error))}", file=sys.stderr)
        return 1
    rows = create_rows(totals, grouping, settings.top or None)
    report = Report(span, grouping, settings.prices(), rows, tuple(gatherer.notes))
    _write(_render(report, output_format, to_file=bool(settings.output)).encode(), settings.output)
    return 0


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
