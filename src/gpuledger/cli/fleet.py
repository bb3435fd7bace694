"""`gpuledger fleet`: utilization of the GPUs in use across a cluster, from its Prometheus."""

from __future__ import annotations

import argparse
import gc
import logging
import sys

from gpuledger.cli import logs, terminal, web
from gpuledger.tools.fleet.discovery import PATH as SD_PATH
from gpuledger.tools.fleet.discovery import Discovery
from gpuledger.tools.fleet.pages import Pages, families
from gpuledger.tools.fleet.refresh import Refresh
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.prometheus.client import Prometheus
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

SETTINGS = FleetSettings

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("--once", action="store_true", help="query once, print the metrics and exit")


def run(arguments: argparse.Namespace, settings: FleetSettings) -> int:
    """Serve until SIGTERM or SIGINT. With --once, exit code 1 if Prometheus does not answer."""
    plan = settings.plan()
    refresh = Refresh(Prometheus(settings.access()).query, plan)
    if arguments.once:
        logs.set_up("error", settings.log_format)
        refresh.step()
        state = refresh.state
        for line in state.warnings if state.up else (state.reason,):
            print(f"gpuledger: {line}", file=sys.stderr)
        if state.up:
            terminal.write(b"".join(Renderer(families(plan.groupings)).chunks(state, Format.TEXT)))
        return 0 if state.up else 1
    logs.set_up(settings.log_level, settings.log_format)
    discovery = Discovery(Prometheus(settings.access()).query, settings.refresh) if settings.sd else None
    pages = Pages(
        lambda: refresh.state,
        lambda: refresh.since_refresh_s,
        groupings=plan.groupings,
        longest_s=3 * settings.refresh + 2 * (len(plan.queries.per_gpu()) + 2) * settings.prometheus_timeout,
        telemetry_path=settings.web_telemetry_path,
        more={SD_PATH: discovery.page} if discovery else {},
    )
    server = web.create_server(settings, pages)
    server.bind()
    stop = terminal.StopSignal()
    web.log_addresses(server)
    log.info("querying %s every %g s", settings.prometheus_url, settings.refresh)
    server.start()
    pollers = [refresh.poller, *([discovery.poller] if discovery else [])]
    for poller in pollers:
        poller.start()
    gc.freeze()  # everything so far is permanent: the collector need not visit it again
    gc.set_threshold(200_000)  # a refresh makes no cycles; collecting took a quarter of its time
    stop.wait()
    log.info("stopping")
    for poller in pollers:
        poller.stop()
    server.stop()
    return 0
