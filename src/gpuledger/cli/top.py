"""`gpuledger top`: GPU usage by owner in a terminal; live, or once as text or JSON."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import IO, TYPE_CHECKING, Any

from gpuledger.cli import build, logs, terminal
from gpuledger.cli.demo import RECORDING
from gpuledger.config.exporter import Config
from gpuledger.config.settings import redeclared
from gpuledger.errors import ConfigError, LostError, SnapshotError
from gpuledger.model.plaintext import escaped
from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.tools.exporterclient import ExporterClient, ExporterSettings
from gpuledger.tools.top.columns import BY_NAME, NUMBERS, View
from gpuledger.tools.top.feed import Feed, Host, Source, Ticks
from gpuledger.tools.top.pages import once
from gpuledger.tools.top.rows import GROUPINGS, TREE, Choice
from gpuledger.web.snapshot.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuledger.loop import Loop


@dataclass(frozen=True)
class TopSettings(ExporterSettings, Config):
    """All settings; those of the exporter are included, so that both can share one file."""

    tick_interval: float = redeclared(Config, "tick_interval", aliases=("process-scan-interval", "interval"))


SETTINGS = TopSettings

MIN_COLUMNS = 20
DEFAULT_SIZE = (120, 24)
"""Columns and rows if standard output is not a terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not settings."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print one snapshot as text and exit")
    form.add_argument(
        "--json", action="store_true", help="print one snapshot as JSON, as /api/v1/snapshot does, and exit"
    )
    parser.add_argument("--demo", action="store_true", help="show the bundled recording; needs no GPU")
    parser.add_argument("--group", choices=(*GROUPINGS, TREE), default=GROUPINGS[0], help="group rows by")
    parser.add_argument("--sort", choices=tuple(BY_NAME), default="mem", help="column to sort by")
    parser.add_argument("--filter", default="", metavar="WORDS", help="show only rows that contain all of these words")


def run(arguments: argparse.Namespace, settings: TopSettings) -> int:
    """Exit code 1 if the exporter cannot be reached or the driver cannot be read."""
    if arguments.demo:
        settings = replace(settings, source=f"replay:{RECORDING}")
    view = _view(arguments, host=_is_local(settings))
    if settings.connect and settings.source != "nvml":
        raise ConfigError("--connect cannot be combined with a recording", "remove --connect, --source or --demo")
    reason = "" if arguments.once or arguments.json else _not_live()
    if arguments.once or arguments.json or reason:
        logs.set_up("error", settings.log_format)
        if reason:
            print(f"gpuledger: {reason}, so this is printed once, as by top --once", file=sys.stderr)
        return _once(arguments, settings, view)
    from gpuledger.tools.top.app import Top

    logs.CapturingHandler(settings.log_level)  # log lines would destroy the screen
    with _source(settings) as (source, _):
        app = Top(Feed(source, settings.tick_interval), view, utf8=_has_utf8(sys.stdout))
        app.run()
    return app.return_code or 0


def _not_live() -> str:
    """Why there can be no live view; empty if there can."""
    streams = (sys.stdin, sys.stdout, sys.stderr)  # textual draws on standard error
    if not all(stream and stream.isatty() for stream in streams):
        return "the live view needs a terminal"
    if find_spec("textual") is None:
        return "the live view needs textual (`pip install '.[top]'` in a checkout; not in the image)"
    return ""


def _is_local(settings: TopSettings) -> bool:
    """Whether the processes are those of this host."""
    return not settings.connect and settings.source == "nvml"


def _view(arguments: argparse.Namespace, *, host: bool) -> View:
    if not BY_NAME[arguments.sort].is_for(arguments.group):
        raise ConfigError(f"--sort {arguments.sort}: --group {arguments.group} has no such column")
    if not BY_NAME[arguments.sort].is_for(arguments.group, host=host):
        raise ConfigError(f"--sort {arguments.sort}: only the processes of this host have it")
    choice = Choice(arguments.group, filter=escaped(arguments.filter, in_columns=True))
    return View(choice, arguments.sort, descending=arguments.sort in NUMBERS, host=host)


@contextmanager
def _source(settings: TopSettings) -> Iterator[tuple[Source, Loop | None]]:
    """The source of snapshots, and its loop if it reads this host."""
    if settings.connect:
        yield ExporterClient(settings.exporter_access()), None
        return
    loop = build.loop(settings)
    try:
        host = Host(Procfs(build.proc_root(settings)).host_use) if _is_local(settings) else None
        yield Ticks(loop.once, settings.kubernetes_node_name or os.uname().nodename, host), loop
    finally:
        loop.stop()


def _once(arguments: argparse.Namespace, settings: TopSettings, view: View) -> int:
    try:
        with _source(settings) as (source, loop):
            if loop is not None:  # shares and power need an earlier tick
                source()
                build.wait_for_names(loop, settings)
            snapshot = source()
    except LostError as error:
        return terminal.fail(str(error))
    except SnapshotError as error:
        return terminal.fail(f"{settings.connect}: {error}")
    if arguments.json:
        terminal.write(encode(snapshot, indent=2) + b"\n")
    else:
        columns = max(MIN_COLUMNS, shutil.get_terminal_size(DEFAULT_SIZE).columns)
        terminal.write(
            once(snapshot, view, columns=columns, colour=terminal.has_colour(), utf8=_has_utf8(sys.stdout)).encode()
        )
    return 0 if snapshot.driver.up else terminal.fail(f"the driver cannot be read: {snapshot.driver.reason}")


def _has_utf8(stream: IO[Any] | None) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
