"""Slurm jobs: which job a process belongs to, and what the job is called.

The cgroup is the proof: slurmd makes it and no job can leave it. Since Slurm 26.05 it holds the job's SLUID instead
of its number; the number stands in the title of the slurmstepd beside it, which anybody may read. Whose account the
job runs on, its partition and its name stand only in the environment of its processes. Reading that needs rights, and
a job can write there what it likes: it is believed about its own job and about no other.
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
"""Steps of a job, and processes of a step, that are looked at for a slurmstepd."""
KEPT_MAX = 4096

KEYS = {
    b"SLURM_JOB_ID": "id", b"SLURM_JOB_SLUID": "sluid", b"SLURM_STEP_ID": "step", b"SLURM_PROCID": "task",
    b"SLURM_JOB_USER": "user", b"SLURM_JOB_ACCOUNT": "account", b"SLURM_JOB_PARTITION": "partition",
    b"SLURM_JOB_NAME": "name",
}  # fmt: skip
"""All that is ever taken from an environment, which may also hold secrets."""
TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})[.+\]]")
JOB_ID = re.compile(r"[0-9]{1,10}")
CUT_PREFIXES = ("", "system.slice")
"""In a private cgroup namespace the common beginning of the path is missing."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, and the part of it that a process is. Empty means not known."""

    id: str
    """The number; the SLUID where nobody tells the number."""
    step: str = ""
    task: str = ""
    user: str = ""
    """As the job says; the kernel's uid is the proof."""
    account: str = ""
    partition: str = ""
    name: str = ""


class SlurmResolver:
    """Finds jobs and remembers them."""

    def __init__(self, procfs_root: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> None:
        self._procfs = procfs_root
        self._cgroups = cgroup_root
        self._jobs: dict[tuple[str, str], SlurmJob] = {}
        self._claims: dict[tuple[int, int], Mapping[str, str]] = {}

    def job(self, facts: Facts, ref: CgroupRef) -> SlurmJob | None:
        """The job of a process; None where there is none, or the process ended before it could be asked."""
        try:
            if ref.job is None:  # a cluster that tracks processes without cgroups
                return None if ref.container_id else _claimed(self._claim(facts))
            if ref.job[0] not in ("slurm", "slurm-sluid"):
                return None
            job = self._jobs.get(ref.job)
            if job is None or job == SlurmJob(job.id):  # only its id is known: this process may tell more
                job = self._look(facts, ref.job)
                _keep(self._jobs, ref.job, job)
        except ProcessLookupError:
            return None
        return replace(job, step=ref.step or "", task=ref.task or "")

    def describe(self, facts: Facts, ref: CgroupRef, owner: Owner) -> Owner:
        """The owner with what is known of the job."""
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

    def _look(self, facts: Facts, key: tuple[str, str]) -> SlurmJob:
        kind, proven = key
        claim = self._claim(facts)
        job_id = proven if kind == "slurm" else self._number(facts.cgroup, proven)
        if not job_id and claim.get("sluid", proven) == proven:
            job_id = claim.get("id", "")
        job = _claimed(claim)
        return job if job is not None and job.id == job_id else SlurmJob(job_id or proven)

    def _number(self, cgroup: str, sluid: str) -> str:
        """From the title of any slurmstepd of the job. Only slurmd can put a process into these cgroups."""
        for directory in self._job_directories(cgroup, sluid):
            for number, step in enumerate(_listed(directory)):
                if number == STEPS_MAX:
                    break
                pids = _start(step / "slurm" / "cgroup.procs", PROCS_MAX).split()
                for pid in pids[:STEPS_MAX]:
                    title = (
                        TITLE.match(_start(self._procfs / str(int(pid)) / "cmdline", TITLE_MAX)) if _pid(pid) else None
                    )
                    if title:
                        return title[1].decode()
        return ""

    def _job_directories(self, cgroup: str, sluid: str) -> Iterator[Path]:
        """Where the job's cgroup may lie: v2, the v2 part of a hybrid tree, or a controller of v1."""
        for line in cgroup.split("\n"):
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            names = [name for name in path.split("/") if name not in ("", ".", "..")]
            if sluid not in names:
                continue
            job = "/".join(names[: names.index(sluid) + 1])
            for tree in [controllers.removeprefix("name=")] if controllers else ["", "unified"]:
                yield from (self._cgroups / tree / prefix / job for prefix in CUT_PREFIXES)

    def _claim(self, facts: Facts) -> Mapping[str, str]:
        """What the process's environment says; ProcessLookupError when the process is gone."""
        process = (facts.pid, facts.start_ticks)
        claim = self._claims.get(process)
        if claim is None:
            claim = _named(self._environ(facts.pid))
            if self._start_ticks(facts.pid) != facts.start_ticks:
                raise ProcessLookupError
            _keep(self._claims, process, claim)
        return claim

    def _environ(self, pid: int) -> bytes:
        try:
            with (self._procfs / str(pid) / "environ").open("rb") as file:
                data = file.read(ENVIRON_MAX + 1)
        except OSError:  # not ours to read; whether the process lives is asked next
            return b""
        return data if len(data) <= ENVIRON_MAX else data[:ENVIRON_MAX].rpartition(b"\0")[0]

    def _start_ticks(self, pid: int) -> int:
        try:
            return parse_stat((self._procfs / str(pid) / "stat").read_bytes())[1]
        except (OSError, ValueError, IndexError):
            raise ProcessLookupError from None


def _named(environ: bytes) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        key, _, value = entry.partition(b"=")
        text = value[:VALUE_MAX].decode("utf-8", "replace")
        if key in KEYS and text.isprintable():
            found.setdefault(KEYS[key], text)  # of two with one name, getenv sees the first
    return found if JOB_ID.fullmatch(found.get("id", "")) else {}


def _claimed(claim: Mapping[str, str]) -> SlurmJob | None:
    return SlurmJob(**{key: value for key, value in claim.items() if key != "sluid"}) if claim else None


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.name.startswith("step_"))
    except OSError:
        return []


def _start(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _pid(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 10


def _keep(known: dict[K, V], key: K, value: V) -> None:
    if key not in known and len(known) >= KEPT_MAX:
        del known[next(iter(known))]
    known[key] = value
