"""The numbers of Slurm jobs whose cgroup has another id.

The cgroup proves the job: slurmd creates it and no job can leave it. Since Slurm 26.05 the cgroup has the job's SLUID
instead of its number; the number is in the title of the job's slurmstepd, which any user may read. The environment of a
job's processes is not used, because a job can write any text there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gpuledger.owners.kernel import cgroup
from gpuledger.owners.kernel.cgroupfs import CgroupTree

PROCS_MAX = 16 * 1024
TITLE_MAX = 256
STEPS_MAX = 64
"""Most steps of a job, and processes of a step, in which a slurmstepd is searched."""
CACHE_MAX = 4096

PID = re.compile(rb"\d{1,10}")
TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+\]]")
CUT_PREFIXES = ("", "system.slice")
"""In a private cgroup namespace the path lacks its first part."""


class SlurmNumbers:
    """Finds the numbers of jobs and caches them."""

    def __init__(self, tree: CgroupTree, procfs_root: Path = Path("/proc")) -> None:
        self._tree = tree
        self._procfs = procfs_root
        self._numbers: dict[str, str] = {}
        """By SLUID."""

    def number(self, cgroup_text: str, sluid: str) -> str:
        """The number of a job from its /proc/PID/cgroup and its SLUID; empty if it is not known."""
        number = self._numbers.get(sluid) or self._find(cgroup_text, sluid)
        if number and sluid not in self._numbers:
            if len(self._numbers) >= CACHE_MAX:
                del self._numbers[next(iter(self._numbers))]
            self._numbers[sluid] = number
        return number

    def _find(self, cgroup_text: str, sluid: str) -> str:
        """The number in the title of any slurmstepd of the job. Only slurmd can put a process into these cgroups."""
        for directory in self._job_directories(cgroup_text, sluid):
            for step in _steps(directory)[:STEPS_MAX]:
                pids = _read_start(step / "slurm" / "cgroup.procs", PROCS_MAX).split()
                for pid in filter(PID.fullmatch, pids[:STEPS_MAX]):
                    title = TITLE.match(_read_start(self._procfs / str(int(pid)) / "cmdline", TITLE_MAX))
                    if title:
                        return title[1].decode()
        return ""

    def _job_directories(self, cgroup_text: str, sluid: str) -> Iterator[Path]:
        """Possible directories of the job's cgroup, of which root chose the name."""
        for controllers, path in cgroup.split_lines(cgroup_text):
            names = cgroup.split_path(path)
            if sluid in names and names.index(sluid) < self._tree.bounds(controllers, path, names).end:
                job = "/".join(names[: names.index(sluid) + 1])
                for directory in self._tree.directories(controllers):
                    yield from (directory / prefix / job for prefix in CUT_PREFIXES)


def _steps(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith("step_"))
    except OSError:
        return []


def _read_start(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""
