"""Jobs, steps, arrays, users and a requeue of a real Slurm, as the exporter finds them, compared with Slurm itself."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest

from tests.cli.running import gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.real.slurmcluster import CRED_EXPIRE_S, IS_V1, cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch", "root", "cgroups")

GPUS = 4
ACCOUNTS = ("physics", "chemistry", "biology")
NOBODY = "65534"
POLL_S = 5
"""How often the exporter reads the files of the prolog."""


class World:
    """A job with a step, an array of two and a job of another user, each with a GPU; then one is requeued, one ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.slurm = slurm = stack.enter_context(cluster(GPUS, ACCOUNTS))
        self.scenario, self.path = (
            Scenario(gpus=[Gpu(index=n, uuid=f"GPU-{n}", util=0) for n in range(GPUS)]),
            folder / "s",
        )
        flags = ["--tick.interval=200ms", "--environment=slurm", f"--slurm.job-mapping-dir={slurm.jobs}"]
        self.exporter = stack.enter_context(serving("serve", *flags, env=surroundings(self.scenario.write(self.path))))
        command = f'{sys.executable} -m gpuledger "$@" --connect={self.exporter.url} | tee {slurm.folder}/used.$2'
        (slurm.folder / "gpuledger").write_text(f"#!/bin/sh\n{command}\n")
        (slurm.folder / "gpuledger").chmod(0o755)
        self.first = slurm.submit("--gres=gpu:1", "--account=physics")
        array = slurm.submit("--gres=gpu:1", "--account=chemistry", "--array=1-2")
        self.other = slurm.submit("--gres=gpu:1", "--account=biology", f"--uid={NOBODY}")
        wait_until(lambda: slurm.run("squeue", "-h", "-t", "R", "-o", "%i").count("\n") == 4, 20)
        lines = slurm.run("squeue", "-h", "-o", "%i %A").splitlines()
        self.tasks = {task: raw for task, raw in map(str.split, lines) if task.startswith(f"{array}_")}
        for gpu, job in enumerate((self.first, *self.tasks.values(), self.other)):
            for step in ("batch", "0"):
                self.scenario.processes.append(Process(gpu=gpu, pid=slurm.pid(job, step), sm=10))
        self.scenario.write(self.path)
        self.running = {job: slurm.show(job) for job in (self.first, *self.tasks.values(), self.other)}
        self.exporter.metrics(f'gpu_job_allocation_info.*batch_job="{self.other}"')
        time.sleep(1)
        self.body = self.exporter.get("/metrics")
        self._restart()
        self._requeue()
        self._end()

    def _restart(self) -> None:
        for name in ("slurmd", "slurmctld", "slurmdbd"):
            self.slurm.stop(name)
        time.sleep(POLL_S + 1)  # the exporter reads the files of the prolog
        self.without_slurm = self.exporter.get("/metrics")
        for name in ("slurmdbd", "slurmctld", "slurmd"):
            self.slurm.start(name)

    def _requeue(self) -> None:
        self.slurm.run("scontrol", "requeue", self.first)
        wait_until(lambda: self.slurm.show(self.first)["JobState"] == "PENDING", 20)
        time.sleep(CRED_EXPIRE_S + 2)  # before that, slurmd would not run the prolog again
        self.slurm.run("scontrol", "update", f"JobId={self.first}", "StartTime=now")
        self.pid_again = self.slurm.pid(self.first, "batch", run=1)
        self.scenario.processes = [Process(gpu=0, pid=self.pid_again, sm=10)]
        self.scenario.write(self.path)
        self.after_requeue = self.exporter.metrics(
            rf'gpu_process_info\{{pid="{self.pid_again}".*batch_account="physics"'
        )

    def _end(self) -> None:
        self.slurm.run("scancel", self.other)
        wait_until(lambda: self.slurm.show(self.other)["JobState"] == "CANCELLED", 20)
        wait_until(lambda: not (self.slurm.jobs / f"account.{self.other}").exists(), 20)
        self.used = (self.slurm.folder / f"used.{self.other}").read_text()
        self.at_end = self.exporter.get("/metrics")
        wait_until(lambda: self.slurm.accounted(self.other).get("State", "").startswith("CANCELLED"), 20)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """When all is over; Slurm and the exporter still run."""
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("slurm"), stack)


def labels(body: str, name: str) -> list[dict[str, str]]:
    """The labels of all series of a metric."""
    return [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in body.splitlines() if line.startswith(f"{name}{{")]


if IS_V1:  # without systemd, slurmd creates cgroups only in cgroup v1

    def test_processes_have_job_step_user_and_account(world: World) -> None:
        """As scontrol shows them; a task of an array has the raw id of its job."""
        found = {
            (series["batch_job"], series["batch_step"]): (series["user"], series["uid"], series["batch_account"])
            for series in labels(world.body, "gpu_process_info")
        }
        expected = {}
        for job, shown in world.running.items():
            match = re.fullmatch(r"(\w+)\((\d+)\)", shown["UserId"])
            assert match
            for step in ("batch", "0"):
                expected[f"slurm/{job}", step] = (match[1], match[2], shown["Account"])

        assert found == expected
        assert len(world.tasks) == 2
        assert {account for _, _, account in found.values()} == set(ACCOUNTS)


def test_scripts_of_the_site_still_run(world: World) -> None:
    """Linked into the directories of the prolog and epilog, as docs/slurm.md says."""
    began, ended = ((world.slurm.folder / f"site-{name}").read_text().split() for name in ("prolog", "epilog"))

    assert set(world.running) <= set(began)
    assert set(ended) <= set(began)
    assert ended


def test_allocations_are_those_of_scontrol(world: World) -> None:
    """The GPU of each job, with its account, from the prolog that slurmd ran."""
    found = {
        series["batch_job"]: (series["gpu"], series["batch_account"])
        for series in labels(world.body, "gpu_job_allocation_info")
    }
    expected = {}
    for job, shown in world.running.items():
        index = re.search(r"\(IDX:(\d+)\)", shown["GRES"])
        assert index
        expected[job] = (index[1], shown["Account"])

    assert found == expected


def test_an_allocation_starts_with_the_job(world: World) -> None:
    """At most one poll of the files after the StartTime of scontrol, which is in whole seconds."""
    starts = re.findall(
        r'^gpu_allocation_start_timestamp_seconds\{.*batch_job="(\d+)"\} (\S+)$', world.body, re.MULTILINE
    )
    for job, start in starts:
        slurm = datetime.strptime(world.running[job]["StartTime"], "%Y-%m-%dT%H:%M:%S").astimezone().timestamp()
        assert -1 <= float(start) - slurm <= POLL_S + 3

    assert {job for job, _ in starts} == set(world.running)


if IS_V1:  # without systemd, slurmd creates cgroups only in cgroup v1

    def test_a_requeued_job_keeps_its_id(world: World) -> None:
        """Its new process belongs to the same job."""
        (series,) = (s for s in labels(world.after_requeue, "gpu_process_info") if s["pid"] == str(world.pid_again))

        assert world.slurm.show(world.first)["Restarts"] == "1"
        assert (series["batch_job"], series["batch_account"]) == (f"slurm/{world.first}", "physics")


def test_jobs_keep_their_names_while_slurm_is_down(world: World) -> None:
    """All daemons stop and start again, and the jobs go on: the same series, and counters only increase."""
    names = ("gpu_process_info", "gpu_job_allocation_info")
    for name in names:
        assert labels(world.without_slurm, name) == labels(world.body, name)
    before, after = (
        dict(re.findall(r"^(gpu_\w+_energy_joules_total\{.*\}) (\S+)$", body, re.MULTILINE))
        for body in (world.body, world.without_slurm)
    )

    assert all(float(after[series]) >= float(value) for series, value in before.items())


def test_the_epilog_writes_what_the_job_used(world: World) -> None:
    """It runs `gpuledger job` before it removes the job. sacct shows the line, which sacctmgr wrote in lower case."""
    assert re.fullmatch(r"1 GPU, 0\.\d\d GPU-h, busy \d+%, 0\.\d{3} kWh, .*idle tail \S+\n", world.used), (
        world.slurm.log()
    )
    assert world.slurm.accounted(world.other)["Comment"] == world.used.strip().lower()
    assert "drain" not in world.slurm.run("sinfo", "-h", "-o", "%T")


def test_jobs_are_those_of_sacct(world: World) -> None:
    """Accounts and GPUs of running jobs, and the users of scontrol; tasks of the array are jobs of their own."""
    found = {(series["batch_job"], series["batch_account"]) for series in labels(world.body, "gpu_job_allocation_info")}
    rows = [world.slurm.accounted(job) for job in world.running]

    assert {(row["JobIDRaw"], row["Account"]) for row in rows} == found
    users = {job: shown["UserId"].partition("(")[0] for job, shown in world.running.items()}
    assert {row["JobIDRaw"]: row["User"] for row in rows} == users
    assert {row["AllocTRES"].partition("gres/gpu=")[2][0] for row in rows} == {"1"}


def test_allocated_time_is_that_of_sacct(world: World) -> None:
    """Of the job that ended, to the seconds in which the exporter reads the files of the prolog."""
    allocated = re.findall(
        rf'^gpu_allocation_seconds_total\{{.*batch_job="{world.other}".*\}} (\S+)$', world.at_end, re.MULTILINE
    )
    elapsed = float(world.slurm.accounted(world.other)["ElapsedRaw"])

    assert elapsed > POLL_S + 3
    assert sum(map(float, allocated)) == pytest.approx(elapsed, abs=POLL_S + 2)


def test_gpuledger_job_shows_a_running_job(world: World) -> None:
    """A task of the array by its raw id."""
    raw = next(iter(world.tasks.values()))
    done = gpuledger("job", raw, f"--connect={world.exporter.url}")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"job {raw}: 1 GPU ")
