"""Slurm jobs on made-up trees of /proc and of cgroups: every form of path, and jobs that lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import Facts, Owner
from gpuledger.owners import cgroup
from gpuledger.owners.slurm import CACHE_MAX, ENVIRON_MAX, KEYS, SlurmJob, SlurmResolver, _slurm_variables

SLUID = "s5K1KKYAYG5D00"
SCOPE = "system.slice/slurmstepd.scope"
ENV = {
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_ACCOUNT": "physics",
}
DETAILS = {"user": "ada", "account": "physics"}


def facts_of(pid: int, start_ticks: int, cgroup_text: str) -> Facts:
    """What the kernel says about a process."""
    return Facts(pid=pid, start_ticks=start_ticks, start_time_ms=0, cgroup=cgroup_text)


class Host:
    """A made-up host."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.resolver = SlurmResolver(self.proc, self.cgroups)

    def process(self, pid: int, path: str = "", env: dict[str, str] | bytes | None = None, title: str = "x") -> Facts:
        """A process in the cgroup with this path, or with this text of /proc/PID/cgroup."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = " ".join(["0"] * 18)
        (folder / "stat").write_text(f"{pid} (a) b) S {fields} {pid * 10} 0 0\n")
        (folder / "cmdline").write_bytes(title.encode() + b"\0")
        if env is not None:
            data = env if isinstance(env, bytes) else b"".join(f"{k}={v}\0".encode() for k, v in env.items())
            (folder / "environ").write_bytes(data)
        return facts_of(pid, pid * 10, path if ":" in path else f"0::{path}\n")

    def stepd(self, pid: int, title: str, step: str = "step_0", job: str = f"{SCOPE}/{SLUID}") -> None:
        """A slurmstepd beside the processes of a step."""
        self.process(pid, title=title)
        folder = self.cgroups / job / step / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text(f"{pid}\n")

    def job(self, facts: Facts) -> SlurmJob | None:
        """What the resolver says."""
        return self.resolver.job(facts, cgroup.parse(facts.cgroup))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A host without processes."""
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/slurm/uid_1000/job_1009248/step_0/task_0", SlurmJob("1009248", "0", "0")),
        ("/slurm_host1/uid_1000/job_211/step_batch", SlurmJob("211", "batch")),
        (f"/{SCOPE}/job_1009249/step_extern/user/task_special", SlurmJob("1009249", "extern", "special")),
        (f"/{SCOPE}/job_7/step_3+1/user/task_2", SlurmJob("7", "3+1", "2")),
        ("9:devices:/slurm/uid_0/job_5/step_1\n0::/system.slice/slurmd.service\n", SlurmJob("5", "1")),
        ("/system.slice/ollama.service", None),
        ("/oar/someone_55", None),
        ("/", None),
    ],
)
def test_job_in_the_path(host: Host, path: str, expected: SlurmJob | None) -> None:
    """The path alone names the job where it holds the number, on v1 and v2, also when nothing else can be read."""
    assert host.job(host.process(1, path)) == expected


def test_details(host: Host) -> None:
    """What the job's environment adds; nothing else of it is kept."""
    env = ENV | {"SLURM_JOB_ID": "9", "AWS_SECRET_ACCESS_KEY": "hush", "SLURM_STEP_ID": "7", "SLURM_JOB_NODELIST": "x"}
    facts = host.process(1, f"/{SCOPE}/job_9/step_0/user/task_1", env)

    assert host.job(facts) == SlurmJob("9", "0", "1", **DETAILS)
    kept = repr(host.resolver.__dict__)
    assert "hush" not in kept
    assert "SECRET" not in kept
    assert "NODELIST" not in kept


def test_the_cgroup_wins(host: Host) -> None:
    """A process that says it is of another job is not believed, neither its id nor the account it names."""
    assert host.job(host.process(1, f"/{SCOPE}/job_9/step_0", ENV | {"SLURM_JOB_ID": "7"})) == SlurmJob("9", "0")


def test_details_are_kept_for_the_job(host: Host) -> None:
    """All processes of a job share what any of them told, each with its own step and task."""
    path = f"/{SCOPE}/job_9/step_0/user/task_"
    silent, speaking = host.process(1, path + "0"), host.process(2, path + "1", ENV | {"SLURM_JOB_ID": "9"})
    assert host.job(silent) == SlurmJob("9", "0", "0")
    assert host.job(speaking) == SlurmJob("9", "0", "1", **DETAILS)
    (host.proc / "2" / "environ").unlink()

    assert host.job(silent) == SlurmJob("9", "0", "0", **DETAILS)


def test_environments_are_read_once(host: Host) -> None:
    """A process that told nothing is not asked again."""
    facts = host.process(1, f"/{SCOPE}/job_9/step_0", {"HOME": "/"})
    host.job(facts)
    host.process(1, env=ENV | {"SLURM_JOB_ID": "9"})

    assert host.job(facts) == SlurmJob("9", "0")


@pytest.mark.parametrize("title", ["3385.0", "3385.extern", "3385.batch", "3385.interactive", "3385+1.0"])
def test_sluid(host: Host, title: str) -> None:
    """The number of a job whose path holds a SLUID stands in the title of its slurmstepd."""
    host.stepd(50, f"slurmstepd: [{title}]")
    facts = host.process(1, f"/{SCOPE}/{SLUID}/step_0/user/task_0")

    assert host.job(facts) == SlurmJob("3385", "0", "0")


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
def test_where_the_cgroup_lies(host: Host, cgroup_text: str, job: str) -> None:
    """v2, a private cgroup namespace, another slice, a hybrid tree and v1 are all found."""
    host.stepd(50, "slurmstepd: [3385.0]", job=job)

    found = host.job(host.process(1, cgroup_text))
    assert found is not None
    assert found.id == "3385"


def test_sluid_by_another_step(host: Host) -> None:
    """Any slurmstepd of the job tells the number; junk among the pids and titles is passed over."""
    host.stepd(50, "slurmstepd infinity", step="step_0")
    host.stepd(51, "slurmstepd: [3385.extern]", step="step_extern")
    (host.cgroups / SCOPE / SLUID / "step_batch" / "slurm").mkdir(parents=True)
    (host.cgroups / SCOPE / SLUID / "step_batch" / "slurm" / "cgroup.procs").write_text("../../x\n0\n-1\n77\n")

    assert host.job(host.process(1, f"/{SCOPE}/{SLUID}/step_0/user/task_0")) == SlurmJob("3385", "0", "0")


def test_sluid_with_details(host: Host) -> None:
    """The environment adds to the number that slurmstepd tells, if it is of the same job."""
    host.stepd(50, "slurmstepd: [3385.0]")
    path = f"/{SCOPE}/{SLUID}/step_0"
    assert host.job(host.process(1, path, ENV | {"SLURM_JOB_ID": "1"})) == SlurmJob("3385", "0")

    assert host.job(host.process(2, path, ENV | {"SLURM_JOB_ID": "3385"})) == SlurmJob("3385", "0", **DETAILS)


def test_sluid_by_the_environment(host: Host) -> None:
    """Without a slurmstepd the environment tells the number, unless it speaks of another SLUID."""
    path = f"/{SCOPE}/{SLUID}/step_0"
    other = {"SLURM_JOB_ID": "1", "SLURM_JOB_SLUID": "s000000000000X"}
    assert host.job(host.process(1, path, ENV | other)) == SlurmJob(SLUID, "0")

    same = {"SLURM_JOB_ID": "3385", "SLURM_JOB_SLUID": SLUID}
    assert host.job(host.process(2, path, ENV | same)) == SlurmJob("3385", "0", **DETAILS)
    assert host.job(host.process(3, path)) == SlurmJob("3385", "0", **DETAILS)


def test_sluid_that_is_found_later(host: Host) -> None:
    """Where nobody tells the number, the SLUID is the id, until somebody does."""
    facts = host.process(1, f"/{SCOPE}/{SLUID}/step_0")
    assert host.job(facts) == SlurmJob(SLUID, "0")
    host.stepd(50, "slurmstepd: [3385.0]")

    assert host.job(facts) == SlurmJob("3385", "0")


def test_without_cgroups(host: Host) -> None:
    """A cluster that does not track by cgroups leaves only the environment; inside a container it proves nothing."""
    env = ENV | {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5"}
    assert host.job(host.process(1, "/system.slice/slurmd.service", env)) == SlurmJob("7", "2", "5", **DETAILS)

    assert host.job(host.process(2, f"/docker/{'a' * 64}", env)) is None
    assert host.job(host.process(3, "/", {"SLURM_JOB_ID": "seven"})) is None
    assert host.job(host.process(4, "/", ENV)) is None


def test_process_that_ended(host: Host) -> None:
    """One that is gone, or whose pid is somebody else's now, says nothing, unless its job is known already."""
    path = f"/{SCOPE}/job_9/step_0"
    assert host.job(facts_of(404, 1, f"0::{path}\n")) is None
    host.process(1, path, ENV | {"SLURM_JOB_ID": "9"})
    assert host.job(facts_of(1, 11, f"0::{path}\n")) is None
    assert host.job(facts_of(1, 11, "0::/\n")) is None
    (host.proc / "1" / "stat").write_text("junk")
    assert host.job(facts_of(1, 10, f"0::{path}\n")) is None

    host.job(host.process(2, path, ENV | {"SLURM_JOB_ID": "9"}))
    assert host.job(facts_of(404, 1, f"0::{path}\n")) == SlurmJob("9", "0", **DETAILS)


def test_large_and_odd_environments(host: Host) -> None:
    """Only so much is read, a value that was cut is not believed, and of two with one name the first counts."""
    path = f"/{SCOPE}/job_9/step_0"
    start = b"SLURM_JOB_ID=9\0SLURM_JOB_ID=8\0SLURM_JOB_ACCOUNT=a\nb\0SLURM_JOB_USER=\xff\0noequals\0=\0"
    cut = b"SLURM_JOB_ACCOUNT=physics"
    padding = b"X=" + b"x" * (ENVIRON_MAX - len(start) - len(cut)) + b"\0"  # three bytes of the account do not fit
    data = start + padding + cut

    assert host.job(host.process(1, path, data)) == SlurmJob("9", "0", user="\N{REPLACEMENT CHARACTER}")


def test_memory_is_bounded(host: Host) -> None:
    """After thousands of jobs only the latest are remembered."""
    host.process(1)
    for number in range(CACHE_MAX + 10):
        assert host.job(facts_of(1, 10, f"0::/{SCOPE}/job_{number}/step_0\n")) is not None

    assert len(host.resolver._jobs) == CACHE_MAX


def test_describe(host: Host) -> None:
    """An owner learns the number of its job; who the kernel says it is stays."""
    host.stepd(50, "slurmstepd: [3385.0]")
    facts = host.process(1, f"/{SCOPE}/{SLUID}/step_0/user/task_4", ENV | {"SLURM_JOB_ID": "3385"})
    ref = cgroup.parse(facts.cgroup)

    owner = host.resolver.describe(facts, ref, Owner(job=f"slurm-sluid/{SLUID}", user="uid1000"))
    assert owner == Owner(job="slurm/3385", step="0", task="4", user="uid1000", account="physics")
    assert host.resolver.describe(facts, ref, Owner()).user == "ada"
    other = host.process(2, f"/{SCOPE}/sEKNKTV3WPV500/step_0")
    assert host.resolver.describe(other, cgroup.parse(other.cgroup), Owner()).job == "slurm-sluid/sEKNKTV3WPV500"
    gone = facts_of(404, 1, f"0::/{SCOPE}/job_9/step_0\n")
    assert host.resolver.describe(gone, cgroup.parse(gone.cgroup), Owner(job="slurm/9")) == Owner(job="slurm/9")


@given(
    st.lists(st.one_of(st.binary(), st.builds(lambda key, v: key + b"=" + v, st.sampled_from([*KEYS]), st.binary())))
)
def test_any_environment(entries: list[bytes]) -> None:
    """Whatever stands in an environment, only named keys come out, with values that can be printed."""
    found = _slurm_variables(b"\0".join(entries))

    assert set(found) <= set(KEYS.values())
    assert all(value.isprintable() and len(value) <= 256 for value in found.values())
