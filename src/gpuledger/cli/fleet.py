"""`gpuledger fleet`: how busy the GPUs in use are, over a whole cluster, from its Prometheus."""

from __future__ import annotations

import argparse
import gc
import logging
import sys

from gpuledger.cli import listening, logs, out
from gpuledger.cli.stop import Stop
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer
from gpuledger.fleet.pages import Pages
from gpuledger.fleet.prometheus import Prometheus
from gpuledger.fleet.refresh import Refresh
from gpuledger.fleet.settings import OPTIONS, Settings
from gpuledger.fleet.shown import families

__all__ = ["OPTIONS", "Settings", "add_arguments", "run"]

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All else are settings."""
    parser.add_argument("--once", action="store_true", help="ask once, print the metrics and exit")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; a Prometheus that does not answer is asked again. Once, it is exit code 1."""
    plan = settings.plan()
    refresh = Refresh(Prometheus(settings.access()), plan)
    if arguments.once:
        logs.set_up("error", settings.log_format)
        refresh.step()
        shown = refresh.shown
        for line in shown.warnings if shown.up else (shown.reason,):
            print(f"gpuledger: {line}", file=sys.stderr)
        if shown.up:
            out.write(b"".join(Renderer(families(plan.groupings)).chunks(shown, Format.TEXT)))
        return 0 if shown.up else 1
    logs.set_up(settings.log_level, settings.log_format)
    pages = Pages(
        lambda: refresh.shown,
        lambda: refresh.tried_s_ago,
        groupings=plan.groupings,
        longest_s=3 * settings.refresh + 2 * (len(plan.queries.asked()) + 2) * settings.prometheus_timeout,
        telemetry_path=settings.web_telemetry_path,
    )
    server = listening.server(settings, pages)
    server.bind()
    stop = Stop()
    listening.announce(server)
    log.info("asking %s every %g s", settings.prometheus_url, settings.refresh)
    server.start()
    refresh.start()
    gc.freeze()  # what is there now stays: the collector need not look at it again
    gc.set_threshold(200_000)  # nor often at a refresh, which makes no cycles: a quarter of its time
    stop.wait()
    log.info("stopping")
    refresh.stop()
    server.stop()
    return 0
