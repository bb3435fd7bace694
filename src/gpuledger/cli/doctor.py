"""`gpuledger doctor`: what this host needs, checked line by line, with how to fix what is missing."""

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
    """How to tell it."""
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--bundle", metavar="FILE", help="write an archive for a bug report, without names and secrets")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Exit code 0 when all is well, 1 with warnings, 2 with problems."""
    kept = logs.CapturingHandler(settings.log_level)
    found = examine(settings)
    if arguments.json:
        terminal.write(bundle.report(found.findings, found.versions).encode())
    else:
        _tell(found.findings)
    if arguments.bundle:
        metrics = b"" if found.tick is None else b"".join(Renderer().chunks(found.tick, Format.TEXT))
        contents = bundle.Contents(found.findings, settings, found.versions, metrics.decode(), tuple(kept.lines))
        bundle.write(arguments.bundle, contents)
        print(f"wrote {arguments.bundle}; look into it before you send it", file=sys.stderr)
    return exit_code(found.findings)


def _tell(findings: list[Finding]) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = max(len(terminal.printable(finding.name)) for finding in findings)
    for finding in findings:
        level = f"{finding.level:8}"
        if coloured:
            level = f"{COLOURS[finding.level]}{level}{PLAIN}"
        terminal.write(f"{level} {terminal.printable(f'{finding.name:{width}}  {finding.text}')}\n".encode())
        if finding.fix:
            terminal.write_line(f"{'':8} {'':{width}}  fix: {finding.fix}")
    counted = Counter(finding.level for finding in findings)
    terminal.write_line(
        ", ".join(f"{counted[level]} {level}{'s' * (level != OK and counted[level] != 1)}" for level in LEVELS)
    )
