"""`gpuledger fleet`: utilization of the GPUs in use across a cluster, from its Prometheus."""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import time
from typing import TYPE_CHECKING

from gpuledger.cli import logs, terminal, web
from gpuledger.errors import ConfigError
from gpuledger.tools.fleet.discovery import PATH as SD_PATH
from gpuledger.tools.fleet.discovery import Discovery
from gpuledger.tools.fleet.pages import Pages, families
from gpuledger.tools.fleet.refresh import Refresh
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.prometheus.client import Prometheus
from gpuledger.web.negotiate import Format
from gpuledger.web.text import Renderer

if TYPE_CHECKING:
    from gpuledger.tools.notify.notifier import Notifier

SETTINGS = FleetSettings

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument(
        "--notify",
        action="store_true",
        help="send messages to owners of GPUs that are not used, as --notify.config says",
    )
    parser.add_argument("--once", action="store_true", help="query once, print the metrics and exit")


def run(arguments: argparse.Namespace, settings: FleetSettings) -> int:
    """Serve until SIGTERM or SIGINT. With --once, exit code 1 if Prometheus does not answer."""
    plan = settings.plan()
    refresh = Refresh(Prometheus(settings.access()).query, plan)
    notifier = _notifier(arguments, settings)
    if arguments.once:
        logs.set_up("error", settings.log_format)
        if notifier is not None:
            return 0 if notifier.step() else 1
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
    pollers = [part.poller for part in (refresh, discovery, notifier) if part is not None]
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


def _notifier(arguments: argparse.Namespace, settings: FleetSettings) -> Notifier | None:
    """What sends messages; None without --notify. Raises ConfigError."""
    if not (arguments.notify or settings.notify_dry_run):
        return None
    if not settings.notify_config:
        raise ConfigError("--notify needs rules and receivers", "name a file with --notify.config")
    from gpuledger.tools.notify import config  # memory that few users need
    from gpuledger.tools.notify.notifier import Notifier

    server = Prometheus(settings.access())
    show = terminal.write_line if settings.notify_dry_run else None
    return Notifier(
        config.load(settings.notify_config), lambda promql, now_s: server.query(promql, now_s).series, time.time, show
    )
