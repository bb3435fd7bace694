"""The directory in which a scheduler's prolog and epilog say which job has which GPU, as dcgm-exporter reads it.

A file is named after a GPU's index, or after the index and a MIG instance's id as in `0.3`, and holds one job to a
line. It is for clusters whose jobs cannot be told from a cgroup.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from gpuledger.owners.names import Names
from gpuledger.owners.provider import ProviderError

FILE_NAME = re.compile(r"(0|[1-9]\d{0,3})(?:\.(0|[1-9]\d{0,3}))?", re.ASCII)
MOST_ENTRIES = 4096
FILE_LIMIT = 64 * 1024
MOST_JOBS = 256
LONGEST_JOB = 128
SETTLED_NS = 2_000_000_000
"""Within one tick of the kernel's clock a file can change again and look the same."""

Place = tuple[int, int | None]
"""A GPU's index, and the id of a GPU instance on it or None for the whole GPU."""
Signature = tuple[tuple[str, int, int, int], ...]


class HpcDirectory:
    """Reads the directory again when something in it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Signature | None = None
        self._jobs: dict[Place, tuple[str, ...]] = {}
        self.ignored = 0
        """Entries that are no such files, or cannot be read, when it was last read."""

    def read(self) -> Mapping[Place, tuple[str, ...]]:
        """The jobs of each GPU that has any; raises ProviderError."""
        try:
            signature = self._signature()
        except OSError as error:
            self._seen = None
            raise ProviderError(f"cannot read {self._path}: {error.strerror}; create the directory, as the prolog of "
                                "the scheduler must, or do not name it") from error  # fmt: skip
        if signature != self._seen:
            self._read(signature)
            newest_ns = max(mtime_ns for _, _, mtime_ns, _ in signature)
            self._seen = signature if time.time_ns() - newest_ns > SETTLED_NS else None
        return self._jobs

    def _signature(self) -> Signature:
        """The directory's own time tells that a file came or went, a file's that its jobs changed."""
        own = self._path.stat()
        found = [("", own.st_ino, own.st_mtime_ns, own.st_size)]
        with os.scandir(self._path) as entries:
            for entry in entries:
                if len(found) > MOST_ENTRIES:
                    raise OSError(None, f"more than {MOST_ENTRIES} files")
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:  # just removed
                    continue
                # A link could point at a secret, which would then be shown as a job; reading a pipe would wait.
                is_plain = stat.S_ISREG(info.st_mode)
                found.append((entry.name, info.st_ino if is_plain else -1, info.st_mtime_ns, info.st_size))
        return (found[0], *sorted(found[1:]))

    def _read(self, signature: Signature) -> None:
        jobs: dict[Place, tuple[str, ...]] = {}
        ignored = 0
        for name, inode, _, size in signature[1:]:
            found = FILE_NAME.fullmatch(name)
            listed = self._lines(name) if found and inode >= 0 and size <= FILE_LIMIT else None
            if found is None or listed is None:
                ignored += 1
            elif listed:
                jobs[int(found[1]), int(found[2]) if found[2] else None] = listed
        self._jobs, self.ignored = jobs, ignored

    def _lines(self, name: str) -> tuple[str, ...] | None:
        try:
            descriptor = os.open(self._path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
                data = file.read(FILE_LIMIT)
        except OSError:
            return None
        lines = (line.strip() for line in data.decode("utf-8", "replace").split("\n"))
        jobs = dict.fromkeys(line for line in lines if line and line.isprintable() and len(line) <= LONGEST_JOB)
        return tuple(jobs)[:MOST_JOBS]


class HpcProvider:
    """The directory as a provider: it may lie on a file system that hangs."""

    name = "hpcdir"
    interval_s = 5.0

    def __init__(self, path: Path) -> None:
        self._directory = HpcDirectory(path)

    def fetch(self) -> Names:
        """The jobs of each GPU."""
        return Names(jobs=dict(self._directory.read()))

    def wait(self, timeout_s: float, stop: threading.Event) -> bool:
        """Nobody tells of changes."""
        stop.wait(timeout_s)
        return False

    def close(self) -> None:
        """Nothing is open."""
