"""`gpuledger doctor`: checks this host and prints how to fix what is missing."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

from gpuledger.cli import logs, terminal
from gpuledger.cli.examine import examine
from gpuledger.config import Config
from gpuledger.doctor import bundle
from gpuledger.doctor.finding import LEVELS, OK, PROBLEM, WARNING, Finding, exit_code
from gpuledger.export.negotiate import Format
from gpuledger.export.text import Renderer

COLOURS = {OK: "\x1b[32m", WARNING: "\x1b[33m", PROBLEM: "\x1b[31m"}
PLAIN = "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not settings."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--bundle", metavar="FILE", help="also write an archive for a bug report, without names and secrets"
    )


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 0 if all checks passed, 1 with warnings, 2 with problems."""
    log = logs.CapturingHandler(settings.log_level)
    result = examine(settings)
    if arguments.json:
        terminal.write(bundle.report(result.findings, result.versions).encode())
    else:
        _print(result.findings)
    if arguments.bundle:
        metrics = b"" if result.tick is None else b"".join(Renderer().chunks(result.tick, Format.TEXT))
        contents = bundle.Contents(result.findings, settings, result.versions, metrics.decode(), tuple(log.lines))
        bundle.write(arguments.bundle, contents)
        print(f"wrote {arguments.bundle}; inspect it before you send it", file=sys.stderr)
    return exit_code(result.findings)


def _print(findings: list[Finding]) -> None:
    has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = max(len(terminal.printable(finding.name)) for finding in findings)
    for finding in findings:
        level = f"{finding.level:8}"
        if has_colour:
            level = f"{COLOURS[finding.level]}{level}{PLAIN}"
        terminal.write(f"{level} {terminal.printable(f'{finding.name:{width}}  {finding.text}')}\n".encode())
        if finding.fix:
            terminal.write_line(f"{'':8} {'':{width}}  fix: {finding.fix}")
    counts = Counter(finding.level for finding in findings)
    terminal.write_line(
        ", ".join(f"{counts[level]} {level}{'s' * (level != OK and counts[level] != 1)}" for level in LEVELS)
    )
