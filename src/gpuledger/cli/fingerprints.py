"""`gpuledger fingerprints export FILE` and `import FILE`: share learned fingerprints between nodes."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from gpuledger.cli import terminal
from gpuledger.config.exporter import Config
from gpuledger.errors import ConfigError, JournalError, UsageError
from gpuledger.storage.atomicfile import replacing
from gpuledger.storage.fingerprints import WorkloadState, decode, encode, export, merge, parse_export
from gpuledger.storage.journalfile import JournalFile

LARGEST_BYTES = 1 << 24
"""Limit of an imported file. An export of 1000 workloads has about 1 MB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("action", choices=("export", "import"), metavar="ACTION", help="export or import")
    parser.add_argument("file", metavar="FILE", help="the JSON file to write or read; - is standard output or input")


def run(arguments: argparse.Namespace, settings: Config) -> int:
    """Export the fingerprints beside the journal, or merge a file into them."""
    if not settings.journal_path:
        raise ConfigError("--journal.path is not set", "set it to the journal of the exporter")
    with closing(JournalFile(settings.journal_path)) as journal:
        if arguments.action == "export":
            _export(journal, arguments.file)
        else:
            _import(journal, arguments.file)
    return 0


def _export(journal: JournalFile, name: str) -> None:
    workloads = _stored(journal)
    if workloads is None:
        fix = "the exporter writes it once it has observed a workload alone"
        raise UsageError(f"{journal.fingerprints_path} does not exist", fix)
    data = export(workloads)
    if name == "-":
        terminal.write(data)
        return
    with replacing(name) as file:
        file.write(data)


def _import(journal: JournalFile, name: str) -> None:
    data = _read(name)
    try:
        imported = parse_export(data)
    except (ValueError, TypeError) as error:
        fix = "name a file that `gpuledger fingerprints export` wrote"
        raise UsageError(f"cannot import {_shown(name)}: {error}", fix) from None
    _lock(journal)
    merged = merge(_stored(journal) or (), imported)
    journal.write_fingerprints(merged.workloads)
    dropped = len(merged.workloads) - len(decode(encode(merged.workloads)))
    terminal.write_line(
        f"{journal.fingerprints_path}: {merged.added} added, {merged.replaced} replaced, {merged.left} left"
        + (f"; {dropped} dropped, because the file is full" if dropped else "")
    )


def _stored(journal: JournalFile) -> tuple[WorkloadState, ...] | None:
    try:
        return journal.read_fingerprints()
    except JournalError as error:
        what = f"cannot read {journal.fingerprints_path}: {error.problem.what}"
        raise UsageError(what, "delete it, and the exporter will learn again") from None


def _lock(journal: JournalFile) -> None:
    try:
        journal.lock()
    except ConfigError:
        what = f"--journal.path: {journal.path} is in use by a running gpuledger"
        raise ConfigError(what, "stop gpuledger, or import on a node where it does not run", "locked") from None
    except OSError as error:
        what = f"--journal.path: cannot lock {journal.path}: {error.strerror}"
        raise ConfigError(what, "create its directory, or run as the user of the exporter") from None


def _read(name: str) -> bytes:
    try:
        if name == "-":
            if sys.stdin is None:  # closed before we started, as by `<&-`
                raise UsageError("standard input is closed", "redirect it from a file or a pipe")
            data = sys.stdin.buffer.read(LARGEST_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {_shown(name)}: {error.strerror}", "name a readable file") from None
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"cannot import {_shown(name)}: larger than {LARGEST_BYTES >> 20} MiB", "name a smaller file")
    return data


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name
