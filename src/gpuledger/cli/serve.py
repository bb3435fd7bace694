"""`gpuledger serve`: the exporter."""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import threading
from contextlib import suppress

from gpuledger.cli import logs, terminal, web
from gpuledger.cli.build import Exporter
from gpuledger.config.exporter import Config
from gpuledger.config.parsers import LONGEST_TICK_S
from gpuledger.owners.kernel.procfs import raise_fd_limit

log = logging.getLogger(__name__)

M_ARENA_MAX, HEAPS = -8, 2
"""A parameter of glibc's malloc, from malloc.h, and its value."""


def add_arguments(_: argparse.ArgumentParser) -> None:
    """All flags of `serve` are settings."""


def run(_: argparse.Namespace, settings: Config) -> int:
    """Serve until SIGTERM or SIGINT."""
    logs.set_up(settings.log_level, settings.log_format)
    raise_fd_limit()
    limit_heaps()
    return serve(Exporter(settings), settings)


def limit_heaps() -> None:
    """Let threads share two heaps. By default glibc has eight per core, and each keeps what its threads once needed."""
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, HEAPS)


def serve(exporter: Exporter, settings: Config) -> int:
    """Run an exporter whose server is already bound, until SIGTERM or SIGINT."""
    stop = terminal.StopSignal()
    web.log_addresses(exporter.server)
    if settings.journal_path and settings.source != "nvml":
        log.warning("journal.path has no effect on a recording")
    if settings.tick_interval > LONGEST_TICK_S:
        log.warning("tick.interval is above 5s: utilization samples of short processes will be lost")
    threading.Thread(target=exporter.run, name="loop", daemon=True).start()
    gc.freeze()  # everything so far is permanent: the collector need not visit it again
    stop.wait()
    log.info("stopping")
    exporter.stop()
    return 0
