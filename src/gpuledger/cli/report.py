"""`gpuledger report`: who used how much over a time, and what it cost, from the cluster's Prometheus."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import closing

from gpuledger.cli import out
from gpuledger.cli.progress import Progress
from gpuledger.errors import PrometheusError
from gpuledger.fleet.prometheus import Prometheus
from gpuledger.report.ask import Asker
from gpuledger.report.document import document
from gpuledger.report.grouping import GROUPINGS
from gpuledger.report.lines import lines
from gpuledger.report.page import page
from gpuledger.report.report import Report
from gpuledger.report.settings import OPTIONS, Settings
from gpuledger.report.sheet import sheet
from gpuledger.report.table import table
from gpuledger.wholefile import replacing

__all__ = ["OPTIONS", "Settings", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All of them are settings."""
    del parser


def run(_arguments: argparse.Namespace, settings: Settings) -> int:
    """Write it; exit code 1 and one line when Prometheus does not give what it takes."""
    form, span, grouping = settings.form(), settings.span(time.time_ns() // 1_000_000), GROUPINGS[settings.by]
    server = Prometheus(settings.access())
    try:
        with closing(Progress(f"asking {settings.prometheus_url}")) as progress:
            asker = Asker(server, settings.allow_partial, progress.show)
            tally = asker.gather(grouping, span, round(settings.gap * 1000))
    except PrometheusError as error:
        print(f"gpuledger: {out.printable(str(error))}", file=sys.stderr)
        return 1
    found = lines(tally, grouping, settings.top or None)
    report = Report(span, grouping, settings.prices(), found, tuple(asker.notes))
    _write(_made(report, form, to_file=bool(settings.output)).encode(), settings.output)
    return 0


def _made(report: Report, form: str, *, to_file: bool) -> str:
    if form == "table":
        colour = not to_file and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return table(report, colour=colour)
    return {"csv": sheet, "json": document, "html": page}[form](report)


def _write(data: bytes, path: str) -> None:
    if not path:
        out.write(data)
        return
    with replacing(path) as file:
        file.write(data)
