"""Numbers of Slurm jobs on made-up trees of /proc and of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.model import Facts, Owner
from gpuledger.owners.kernel.cgroupfs import CgroupTree
from gpuledger.owners.kernel.slurm import CACHE_MAX, SlurmNumbers
from gpuledger.owners.resolver import Resolver
from tests.owners.kernel.processes import Source, facts, tick_of

SLUID = "s5K1KKYAYG5D00"
SCOPE = "system.slice/slurmstepd.scope"


class Host:
    """A made-up host."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.slurm = SlurmNumbers(CgroupTree(self.proc, self.cgroups), self.proc)

    def stepd(self, pid: int, title: str, step: str = "step_0", job: str = f"{SCOPE}/{SLUID}") -> None:
        """A slurmstepd beside the processes of a step."""
        (self.proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (self.proc / str(pid) / "cmdline").write_bytes(title.encode() + b"\0")
        folder = self.cgroups / job / step / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text(f"{pid}\n")

    def owner(self, path: str, **names: object) -> Owner:
        """The owner of a process in this cgroup, or with this text of /proc/PID/cgroup."""
        process: Facts = facts(path if ":" in path else f"0::{path}\n")
        return Resolver([Source(**names)], slurm=self.slurm).resolve(tick_of(process)).owners.by_pid[7]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host without processes."""
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/slurm/uid_1000/job_1009248/step_0/task_0", ("slurm/1009248", "0", "0")),
        ("/slurm_host1/uid_1000/job_211/step_batch", ("slurm/211", "batch", "")),
        (f"/{SCOPE}/job_1009249/step_extern/user/task_special", ("slurm/1009249", "extern", "special")),
        (f"/{SCOPE}/job_7/step_3+1/user/task_2", ("slurm/7", "3+1", "2")),
        ("9:devices:/slurm/uid_0/job_5/step_1\n0::/system.slice/slurmd.service\n", ("slurm/5", "1", "")),
        ("/system.slice/ollama.service", ("", "", "")),
        ("/", ("", "", "")),
    ],
)
def test_job_in_the_path(host: Host, path: str, expected: tuple[str, str, str]) -> None:
    """The path alone names the job where it holds the number, on v1 and v2, also when nothing else can be read."""
    owner = host.owner(path)

    assert (owner.job, owner.step, owner.task) == expected


@pytest.mark.parametrize("title", ["3385.0", "3385.extern", "3385.batch", "3385.interactive", "3385+1.0"])
def test_sluid(host: Host, title: str) -> None:
    """The number of a job whose path holds a SLUID stands in the title of its slurmstepd."""
    host.stepd(50, f"slurmstepd: [{title}]")

    owner = host.owner(f"/{SCOPE}/{SLUID}/step_0/user/task_4")

    assert (owner.job, owner.step, owner.task) == ("slurm/3385", "0", "4")


@pytest.mark.parametrize(
    ("cgroup_text", "job"),
    [
        (f"0::/{SCOPE}/{SLUID}/step_0/user/task_0\n", f"{SCOPE}/{SLUID}"),
        (f"0::/../slurmstepd.scope/{SLUID}/step_0/user/task_0\n", f"{SCOPE}/{SLUID}"),
        (f"0::/gpu.slice/n1_slurmstepd.scope/{SLUID}/step_0\n", f"gpu.slice/n1_slurmstepd.scope/{SLUID}"),
        (f"4:cpu,cpuacct:/\n0::/{SCOPE}/{SLUID}/step_0\n", f"unified/{SCOPE}/{SLUID}"),
        (f"4:memory:/slurm/{SLUID}/step_0\n0::/\n", f"memory/slurm/{SLUID}"),
        (f"1:name=systemd:/slurm/{SLUID}/step_0\n", f"systemd/slurm/{SLUID}"),
    ],
)
def test_mount_points(host: Host, cgroup_text: str, job: str) -> None:
    """v2, a private cgroup namespace, another slice, a hybrid tree and v1 are all found."""
    host.stepd(50, "slurmstepd: [3385.0]", job=job)

    assert host.owner(cgroup_text).job == "slurm/3385"


def test_sluid_by_another_step(host: Host) -> None:
    """Any slurmstepd of the job tells the number; junk among the pids and titles is passed over."""
    host.stepd(50, "slurmstepd infinity", step="step_0")
    host.stepd(51, "slurmstepd: [3385.extern]", step="step_extern")
    (host.cgroups / SCOPE / SLUID / "step_batch" / "slurm").mkdir(parents=True)
    (host.cgroups / SCOPE / SLUID / "step_batch" / "slurm" / "cgroup.procs").write_text("../../x\n0\n-1\n77\n")

    assert host.owner(f"/{SCOPE}/{SLUID}/step_0/user/task_0").job == "slurm/3385"


def test_sluid_in_a_directory_of_a_user(host: Host) -> None:
    """A job that enters a cgroup of its user's own in another hierarchy cannot choose the number."""
    manager = "user.slice/user-7.slice/user@7.service"
    host.stepd(50, "slurmstepd: [88.0]", job=f"systemd/{manager}/{SLUID}")

    owner = host.owner(f"4:memory:/slurm/{SLUID}/step_0\n1:name=systemd:/{manager}/{SLUID}/step_0\n")

    assert owner.job == f"slurm-sluid/{SLUID}"


def test_sluid_that_is_found_later(host: Host) -> None:
    """Until a slurmstepd shows the number, the SLUID is the id."""
    assert host.owner(f"/{SCOPE}/{SLUID}/step_0").job == f"slurm-sluid/{SLUID}"
    host.stepd(50, "slurmstepd: [3385.0]")

    assert host.owner(f"/{SCOPE}/{SLUID}/step_0").job == "slurm/3385"


def test_account_from_the_prolog(host: Host) -> None:
    """The account of a job comes from a file of the prolog; other schedulers' jobs with the same id have none."""
    accounts = {"211": "physics", "SLOT": "x"}

    assert host.owner("/slurm/uid_1000/job_211/step_0", accounts=accounts).account == "physics"
    assert host.owner("/slurm/uid_1000/job_212/step_0", accounts=accounts).account == ""
    assert host.owner("/oar/someone_211", accounts=accounts).account == ""


def test_memory_is_bounded(host: Host) -> None:
    """After thousands of jobs only the latest are cached."""
    for number in range(CACHE_MAX + 10):
        sluid = f"s{number:013d}"
        host.slurm._numbers[sluid] = str(number)
    host.stepd(50, "slurmstepd: [3385.0]")
    host.slurm._numbers = dict(list(host.slurm._numbers.items())[-CACHE_MAX:])
    host.owner(f"/{SCOPE}/{SLUID}/step_0")

    assert len(host.slurm._numbers) == CACHE_MAX
