"""`gpuledger serve`: the exporter."""

from __future__ import annotations

import argparse
import gc
import logging
import threading

from gpuledger.cli import logs
from gpuledger.cli.build import Exporter
from gpuledger.cli.listening import announce
from gpuledger.cli.stop import Stop
from gpuledger.config import Config
from gpuledger.owners.procfs import raise_fd_limit

log = logging.getLogger(__name__)

SLOWEST_S = 5.0
"""The driver keeps 10 s of utilization samples; ticks must come well before they are lost."""


def add_arguments(_: argparse.ArgumentParser) -> None:
    """All of serve's flags are settings."""


def run(_: argparse.Namespace, settings: Config) -> int:
    """Serve until SIGTERM or SIGINT."""
    logs.set_up(settings.log_level, settings.log_format)
    raise_fd_limit()
    return serve(Exporter(settings), settings)


def serve(exporter: Exporter, settings: Config) -> int:
    """Serve what is already listening until SIGTERM or SIGINT."""
    stop = Stop()
    _announce(exporter, settings)
    thread = threading.Thread(target=exporter.run, name="loop", daemon=True)
    thread.start()
    gc.freeze()  # what is there now stays: the collector need not look at it again
    stop.wait()
    log.info("stopping")
    exporter.stop()
    return 0


def _announce(exporter: Exporter, settings: Config) -> None:
    announce(exporter.server)
    if settings.journal_path and settings.source != "nvml":
        log.warning("journal.path has no effect: a recording has no totals to go on from")
    if settings.tick_interval > SLOWEST_S:
        log.warning("tick.interval is over 5s: utilization samples of short processes will be lost")
