"""The job mapping directory: which batch job has which GPU, in the format that dcgm-exporter reads.

The scheduler's prolog and epilog write it. A file is named after the index of a GPU, or after the index and the id of a
MIG instance as in `0.3`, and contains one job per line. For clusters whose cgroups do not identify jobs.

Files that dcgm-exporter ignores: `account.211` contains the account of job 211, and `user.211` the uid of its user.
"""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from gpuledger.errors import ProviderError
from gpuledger.owners.names import Names
from gpuledger.owners.providers.provider import Provider

FILE_NAME = re.compile(r"(0|[1-9]\d{0,3})(?:\.(0|[1-9]\d{0,3}))?", re.ASCII)
JOB_FILE = re.compile(r"(account|user)\.(\d{1,10})", re.ASCII)
UID = re.compile(r"\d{1,10}", re.ASCII)
MOST_ENTRIES = 4096
FILE_LIMIT = 64 * 1024
MOST_JOBS = 256
LONGEST_LINE = 128
SETTLED_NS = 2_000_000_000
"""A file may change twice within one tick of the kernel's clock and keep its time stamp."""

Slot = tuple[int, int | None]
"""The index of a GPU, and the id of a GPU instance on it or None for the whole GPU."""
Signature = tuple[tuple[str, int, int, int], ...]
"""Name, inode (-1 if it is no regular file), time of change and size of the directory and of each entry."""


class HpcProvider(Provider):
    """The jobs of each GPU. The files are read again when one has changed, in a thread: the file system may hang."""

    name = "hpcdir"
    interval_s = 5.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: Signature | None = None
        self._names = Names()

    def fetch(self) -> Names:
        """The jobs of each GPU, and the accounts and users of jobs; raises ProviderError."""
        try:
            signature = self._stat()
        except OSError as error:
            self._signature = None
            fix = "create the directory, as the scheduler's prolog must, or drop --slurm.job-mapping-dir"
            kind = {FileNotFoundError: "missing", PermissionError: "permission"}.get(type(error), "unreadable")
            raise ProviderError(f"cannot read {self._path}: {error.strerror}", fix, kind) from error
        if signature != self._signature:
            self._names = self._read(signature)
            newest_ns = max(mtime_ns for _, _, mtime_ns, _ in signature)
            self._signature = signature if time.time_ns() - newest_ns > SETTLED_NS else None
        return self._names

    def _stat(self) -> Signature:
        """The directory's time changes when a file is added or removed, a file's time when its jobs change."""
        folder = self._path.stat()
        signature = [("", folder.st_ino, folder.st_mtime_ns, folder.st_size)]
        with os.scandir(self._path) as entries:
            for entry in entries:
                if len(signature) > MOST_ENTRIES:
                    raise OSError(None, f"more than {MOST_ENTRIES} files")
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:  # just removed
                    continue
                # A link could point at a secret, which would then be shown as a job; reading a pipe would block.
                is_regular = stat.S_ISREG(info.st_mode)
                signature.append((entry.name, info.st_ino if is_regular else -1, info.st_mtime_ns, info.st_size))
        return (signature[0], *sorted(signature[1:]))

    def _read(self, signature: Signature) -> Names:
        jobs: dict[Slot, tuple[str, ...]] = {}
        accounts: dict[str, str] = {}
        uids: dict[str, str] = {}
        for name, inode, _, size in signature[1:]:
            gpu, job = FILE_NAME.fullmatch(name), JOB_FILE.fullmatch(name)
            lines = self._lines(name) if (gpu or job) and inode >= 0 and size <= FILE_LIMIT else ()
            if lines and gpu:
                jobs[int(gpu[1]), int(gpu[2]) if gpu[2] else None] = lines
            elif lines and job and job[1] == "account":
                accounts[job[2]] = lines[0]
            elif lines and job and UID.fullmatch(lines[0]):
                uids[job[2]] = lines[0]
        return Names(jobs=jobs, accounts=accounts, job_uids=uids)

    def _lines(self, name: str) -> tuple[str, ...]:
        try:
            descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
                data = file.read(FILE_LIMIT)
        except OSError:
            return ()
        lines = (line.strip() for line in data.decode("utf-8", "replace").split("\n"))
        unique = dict.fromkeys(line for line in lines if line and line.isprintable() and len(line) <= LONGEST_LINE)
        return tuple(unique)[:MOST_JOBS]
