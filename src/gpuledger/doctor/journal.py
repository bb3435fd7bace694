"""The journal: whether it can be written and gone on from. Nothing is left behind, and nobody else's is touched."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from gpuledger.doctor.finding import Finding, ok, problem, unused, warning
from gpuledger.errors import JournalError
from gpuledger.journalfile import JournalFile

NAME = "journal"


def journal(path: str, boot_id: str, *, running: bool) -> list[Finding]:
    """`running` says that a gpuledger answers at the address of this one."""
    if not path:
        return [unused(NAME, "--journal.path is not given")]
    file = JournalFile(path)
    return [_locked(file, running=running) or _unwritable(file) or _left(file, boot_id)]


def _locked(file: JournalFile, *, running: bool) -> Finding | None:
    if not _is_locked(file.path.with_name(f"{file.path.name}.lock")):
        return None
    if running:
        return ok(NAME, f"{file.path} is written by the gpuledger that runs")
    fix = "name another file with --journal.path, or end the other one"
    return problem(NAME, f"{file.path} is the journal of another gpuledger that runs", fix)


def _unwritable(file: JournalFile) -> Finding | None:
    if file.path.exists() and not file.path.is_file():
        return problem(NAME, f"{file.path} is no regular file", "name another file with --journal.path")
    try:
        with tempfile.TemporaryFile(dir=file.path.parent) as trial:
            trial.write(b"gpuledger")
    except OSError as error:
        make = f"`sudo install -d -o {os.getuid()} -g {os.getgid()} {file.path.parent}`"
        fix = f"{make}; under systemd `RuntimeDirectory=gpuledger`; name a folder that is no read-only one"
        return problem(NAME, f"{file.path} cannot be written: {error.strerror}", fix)
    return None


def _left(file: JournalFile, boot_id: str) -> Finding:
    try:
        state = file.read(boot_id)
    except JournalError as error:
        text = f"{file.path} cannot be gone on from: {error}; totals will begin anew"
        return warning(NAME, text, f"`rm {file.path}`, or start gpuledger, which writes it anew")
    return ok(NAME, f"{file.path} can be written{' and gone on from' if state else ', and is not there yet'}")


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
