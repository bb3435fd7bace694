"""`gpuledger top`: who uses the GPUs, in a terminal; live, or once as text or JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

from gpuledger.cli import build, logs, out
from gpuledger.cli.demo import RECORDING
from gpuledger.errors import ConfigError, LostError, UsageError
from gpuledger.top.columns import BY_NAME, NUMBERS
from gpuledger.top.exporter import Exporter
from gpuledger.top.feed import Feed, Source, Ticks
from gpuledger.top.line import clean
from gpuledger.top.plain import write
from gpuledger.top.rows import GROUPINGS, Choice
from gpuledger.top.seen import PictureError, read
from gpuledger.top.settings import OPTIONS, Settings
from gpuledger.top.table import View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuledger.loop import Loop

__all__ = ["OPTIONS", "Settings", "add_arguments", "run"]

NARROWEST = 20
ELSEWHERE = (120, 24)
"""The size of what is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """All else are settings."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print it once as text and exit")
    form.add_argument("--json", action="store_true", help="print it once as JSON, as /api/v1/snapshot does, and exit")
    parser.add_argument("--demo", action="store_true", help="show the bundled recording; needs no GPU")
    parser.add_argument("--group", choices=GROUPINGS, default=GROUPINGS[0], help="what a row is")
    parser.add_argument("--sort", choices=tuple(BY_NAME), default="mem", help="column to sort by")
    parser.add_argument("--filter", default="", metavar="WORDS", help="show only rows with all of these words")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Exit code 1 when there is nothing to show: the exporter is not reached, or the driver not read."""
    view = _view(arguments)
    if arguments.demo:
        settings = replace(settings, source=f"replay:{RECORDING}")
    if settings.connect and settings.source != "nvml":
        raise ConfigError("--connect shows an exporter and the other flag a recording; give one of them")
    if arguments.once or arguments.json:
        logs.set_up("error", settings.log_format)
        return _once(arguments, settings, view)
    if not all(
        stream and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    ):  # textual draws on the last
        raise UsageError("top needs a terminal; for scripts there are top --once and top --json")
    try:
        from gpuledger.top.app import Top
    except ModuleNotFoundError as error:
        raise UsageError(f"the live view needs {error.name}; pip install 'gpuledger[top]', or use top --once") from None
    logs.Kept(settings.log_level)  # lines would tear the screen
    with _source(settings) as (source, _):
        app = Top(Feed(source, settings.tick_interval), view, utf8=_has_utf8(sys.stdout))
        app.run()
    return app.return_code or 0


def _view(arguments: argparse.Namespace) -> View:
    if not BY_NAME[arguments.sort].is_for(arguments.group):
        raise ConfigError(f"--sort {arguments.sort}: there is no such column with --group {arguments.group}")
    choice = Choice(arguments.group, filter=clean(arguments.filter))
    return View(choice, arguments.sort, falling=arguments.sort in NUMBERS)


@contextmanager
def _source(settings: Settings) -> Iterator[tuple[Source, Loop | None]]:
    """Where pictures come from, and the loop behind it where it is this host's."""
    if settings.connect:
        yield Exporter(settings.access()), None
        return
    loop = build.loop(settings)
    try:
        yield Ticks(loop.once, settings.kubernetes_node_name or os.uname().nodename), loop
    finally:
        loop.stop()


def _once(arguments: argparse.Namespace, settings: Settings, view: View) -> int:
    try:
        with _source(settings) as (source, loop):
            if loop is not None:  # shares and power are told since the reading before
                source()
                build.wait_for_names(loop, settings)
            picture = source()
        seen = read(picture)
    except LostError as error:
        return _failed(str(error))
    except PictureError as error:
        return _failed(f"what {settings.connect} says {error}")
    if arguments.json:
        out.write(json.dumps(picture, indent=2).encode() + b"\n")
    else:
        columns = max(NARROWEST, shutil.get_terminal_size(ELSEWHERE).columns)
        colour = _has_colour(sys.stdout, os.environ)
        out.write(write(seen, view, columns=columns, colour=colour, utf8=_has_utf8(sys.stdout)).encode())
    return 0 if seen.driver_up else _failed(f"the driver cannot be read: {seen.driver_reason}")


def _failed(reason: str) -> int:
    print(f"gpuledger: {out.printable(reason)}", file=sys.stderr)
    return 1


def _has_utf8(stream: IO[Any] | None) -> bool:
    return (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"


def _has_colour(stream: IO[Any] | None, environment: Mapping[str, str]) -> bool:
    """As no-color.org has it; a dumb terminal knows no codes, and a closed stream is none."""
    is_terminal = stream is not None and stream.isatty()
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
