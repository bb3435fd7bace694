"""Slurm jobs: the job of a process, with its account and user.

The cgroup proves the job: slurmd creates it and no job can leave it. Since Slurm 26.05 the cgroup has the job's SLUID
instead of its number; the number is in the title of the job's slurmstepd, which any user may read. Account and user are
only in the environment of the job's processes. Reading that needs capabilities, and a job can write any text there, so
an environment is used for its own job only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpuledger.model import Facts, Owner
from gpuledger.owners.cgroup import CgroupRef
from gpuledger.owners.procfs import parse_stat

ENVIRON_MAX = 256 * 1024
PROCS_MAX = 16 * 1024
TITLE_MAX = 256
VALUE_MAX = 256
STEPS_MAX = 64
"""Most steps of a job, and processes of a step, in which a slurmstepd is searched."""
CACHE_MAX = 4096

KEYS = {
    b"SLURM_JOB_ID": "id", b"SLURM_JOB_SLUID": "sluid", b"SLURM_STEP_ID": "step", b"SLURM_PROCID": "task",
    b"SLURM_JOB_USER": "user", b"SLURM_JOB_ACCOUNT": "account",
}  # fmt: skip
"""Only these variables are read: an environment may contain secrets."""
TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+\]]")
JOB_ID = re.compile(r"[0-9]{1,10}")
CUT_PREFIXES = ("", "system.slice")
"""In a private cgroup namespace the path lacks its first part."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, and the step and task of a process. Empty fields are not known."""

    id: str
    """The number; the SLUID if the number is not known."""
    step: str = ""
    task: str = ""
    user: str = ""
    """From the environment, so not proven; the uid of the process is."""
    account: str = ""


class SlurmResolver:
    """Finds jobs and caches them. The files of a process may block, so no tick calls it; several threads do."""

    def __init__(self, procfs_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._procfs = procfs_root
        self._cgroups = cgroup_root
        self._jobs: dict[tuple[str, str], SlurmJob] = {}
        self._environments: dict[tuple[int, int], Mapping[str, str]] = {}

    def job(self, facts: Facts, ref: CgroupRef) -> SlurmJob | None:
        """The job of a process; None if there is none, or the process has ended."""
        try:
            if ref.job is None:  # a cluster that tracks processes without cgroups
                return None if ref.container_id else _job_of(self._variables(facts))
            if ref.job[0] not in ("slurm", "slurm-sluid"):
                return None
            job = self._jobs.get(ref.job)
            if job is None or job == SlurmJob(job.id):  # the environment of this process may have more than the id
                job = self._find_job(facts, ref.job)
                _cache(self._jobs, ref.job, job)
        except ProcessLookupError:
            return None
        return replace(job, step=ref.step or "", task=ref.task or "")

    def describe(self, facts: Facts, ref: CgroupRef, owner: Owner) -> Owner:
        """The owner with the fields of its job."""
        job = self.job(facts, ref)
        if job is None:
            return owner
        kind = "slurm" if job.id.isdigit() else "slurm-sluid"
        return replace(
            owner,
            job=f"{kind}/{job.id}",
            step=job.step,
            task=job.task,
            user=owner.user or job.user,
            account=job.account,
        )

    def _find_job(self, facts: Facts, key: tuple[str, str]) -> SlurmJob:
        kind, cgroup_id = key
        variables = self._variables(facts)
        job_id = cgroup_id if kind == "slurm" else self._number(facts.cgroup, cgroup_id)
        if not job_id and variables.get("sluid", cgroup_id) == cgroup_id:
            job_id = variables.get("id", "")
        job = _job_of(variables)
        return job if job is not None and job.id == job_id else SlurmJob(job_id or cgroup_id)

    def _number(self, cgroup: str, sluid: str) -> str:
        """The number in the title of any slurmstepd of the job. Only slurmd can put a process into these cgroups."""
        for directory in self._job_directories(cgroup, sluid):
            for step in _steps(directory)[:STEPS_MAX]:
                pids = _read_start(step / "slurm" / "cgroup.procs", PROCS_MAX).split()
                for pid in filter(_is_pid, pids[:STEPS_MAX]):
                    title = TITLE.match(_read_start(self._procfs / str(int(pid)) / "cmdline", TITLE_MAX))
                    if title:
                        return title[1].decode()
        return ""

    def _job_directories(self, cgroup: str, sluid: str) -> Iterator[Path]:
        """Possible directories of the job's cgroup: v2, the v2 part of a hybrid tree, or a controller of v1."""
        for line in cgroup.split("\n"):
            controllers, _, path = line.partition(":")[2].partition(":")
            names = [name for name in path.split("/") if name not in ("", ".", "..")]
            if sluid not in names:
                continue
            job = "/".join(names[: names.index(sluid) + 1])
            for tree in [controllers.removeprefix("name=")] if controllers else ["", "unified"]:
                yield from (self._cgroups / tree / prefix / job for prefix in CUT_PREFIXES)

    def _variables(self, facts: Facts) -> Mapping[str, str]:
        """The Slurm variables in the process's environment; ProcessLookupError if the process has ended."""
        process = (facts.pid, facts.start_ticks)
        variables = self._environments.get(process)
        if variables is None:
            variables = _slurm_variables(self._environ(facts.pid))
            if self._start_ticks(facts.pid) != facts.start_ticks:
                raise ProcessLookupError
            _cache(self._environments, process, variables)
        return variables

    def _environ(self, pid: int) -> bytes:
        try:
            with (self._procfs / str(pid) / "environ").open("rb") as file:
                data = file.read(ENVIRON_MAX + 1)
        except OSError:  # no permission; whether the process lives is checked next
            return b""
        return data if len(data) <= ENVIRON_MAX else data[:ENVIRON_MAX].rpartition(b"\0")[0]

    def _start_ticks(self, pid: int) -> int:
        try:
            return parse_stat((self._procfs / str(pid) / "stat").read_bytes())[1]
        except (OSError, ValueError, IndexError):
            raise ProcessLookupError from None


def _slurm_variables(environ: bytes) -> Mapping[str, str]:
    variables: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        key, _, value = entry.partition(b"=")
        text = value[:VALUE_MAX].decode("utf-8", "replace")
        if key in KEYS and text.isprintable():
            variables.setdefault(KEYS[key], text)  # like getenv, which returns the first of two
    return variables if JOB_ID.fullmatch(variables.get("id", "")) else {}


def _job_of(variables: Mapping[str, str]) -> SlurmJob | None:
    return SlurmJob(**{key: value for key, value in variables.items() if key != "sluid"}) if variables else None


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


def _is_pid(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 10


def _cache(cache: dict[K, V], key: K, value: V) -> None:
    if key not in cache and len(cache) >= CACHE_MAX:
        cache.pop(next(iter(tuple(cache))), None)  # several threads use the cache
    cache[key] = value
