"""A Slurm node on the fake driver: jobs in the files of the prolog, and their processes in cgroups."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from tests.cli.running import Running, serving, surroundings
from tests.deploy.slurmscripts import run
from tests.fakedriver import Gpu, Process, Scenario
from tests.real.nodes import GIB, uuid


class Node:
    """A Slurm node: what the prolog wrote, and the processes of jobs in their cgroups."""

    def __init__(self, folder: Path, *, unlisted: int = GIB) -> None:
        self.folder, self.proc, self.jobs = folder, folder / "proc", folder / "gpu-jobs"
        (self.proc / "1").mkdir(parents=True)
        (self.proc / "stat").write_text("cpu 0\nbtime 1690000000\n")
        random = self.proc / "sys" / "kernel" / "random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text("0f7e3e0c-0000-4000-8000-000000000001\n")
        used = (8, 2, 5, 0)  # GiB of processes
        self.unlisted = unlisted
        self.scenario = Scenario(gpus=[
            Gpu(index=n, uuid=uuid(n), watts=200 + n, temperature=40 + n, memory_total=64 * GIB,
                memory_used=gib * GIB + unlisted, memory_reserved=0,
                util=util)
            for n, (gib, util) in enumerate(zip(used, (40, 10, 50, 0), strict=True))
        ])  # fmt: skip
        for job, gpus in (("211", "0,1"), ("212", "2"), ("213", "2"), ("214", "3")):
            run("prolog.sh", self.jobs, JOB_ID=job, JOB_GPUS=gpus, JOB_ACCOUNT="physics", JOB_UID="1001")
        for pid, (job, gpu, gib, sm) in enumerate(
            (("211", 0, 8, 40), ("211", 1, 2, 10), ("212", 2, 2, 30), ("213", 2, 3, 20)), 5000
        ):
            self.scenario.processes.append(Process(gpu=gpu, pid=pid, memory=gib * GIB, sm=sm))
            home = self.proc / str(pid)
            home.mkdir()
            (home / "stat").write_text(f"{pid} (python3) S " + " ".join(["0"] * 18) + " 12345 0\n")
            (home / "status").write_text("Name:\tpython3\nUid:\t1001\t1001\t1001\t1001\n")
            (home / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n")

    def exporter(self, *more: str) -> AbstractContextManager[Running]:
        """An exporter, with more flags."""
        flags = ["--tick.interval=200ms", "--environment=slurm", f"--slurm.job-mapping-dir={self.jobs}",
                 f"--path.procfs={self.proc}"]  # fmt: skip
        return serving("serve", *flags, *more, env=surroundings(self.scenario.write(self.folder / "scenario")))

    def kill(self, pid: int) -> None:
        """A process ends; its job goes on."""
        process = next(process for process in self.scenario.processes if process.pid == pid)
        self.scenario.processes.remove(process)
        gpu = self.scenario.gpus[process.gpu]
        gpu.util, gpu.memory_used = 0, self.unlisted
        self.scenario.write(self.folder / "scenario")
        shutil.rmtree(self.proc / str(pid))
