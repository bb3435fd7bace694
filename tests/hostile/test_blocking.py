"""Files and user names that never come: a tenant's process, or the network, must not stop the exporter."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuledger.runtime.threads import MOST_THREADS
from tests.cli.running import Running, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.hostile.preload import preloaded
from tests.owners.kernel.fakeproc import Proc

C = "4be1" * 16
HOSTILE, VICTIM = 71, 72
JOB = "0::/system.slice/slurmstepd.scope/job_{}/step_0/user/task_0\n"
MAPPED = "7f0000000000-7f0000001000 rw-s 00000000 00:05 612 /dev/nvidia0\n"
TICK = "--tick.interval=100ms"


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A /proc in which reads block where a file is a pipe."""
    (tmp_path / "proc").mkdir()
    return Proc(tmp_path / "proc")


@pytest.fixture(scope="module")
def slow_users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that blocks lookups of users."""
    return preloaded("slow_users", tmp_path_factory.mktemp("users"))


def block(proc: Proc, pid: int, file: str) -> None:
    """Let every read of a file of the process wait for ever."""
    os.mkfifo(proc.root / str(pid) / file)


def scenario_of(tmp_path: Path, pids: Iterable[int], memory_used: int | None = None) -> Path:
    """One GPU with these processes."""
    gpu = Gpu(0, uuid="GPU-a", memory_used=memory_used)
    scenario = Scenario([gpu], [Process(0, pid, memory=1 << 30, sm=5) for pid in pids])
    return scenario.write(tmp_path / "scenario")


def value(server: Running, name: str) -> float:
    """A sample without labels."""
    found = re.search(rf"^{name} (\S+)$", server.get("/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])


def ticks_go_on(server: Running, count: int = 20) -> None:
    """So many more ticks are made."""
    goal = value(server, "gpuledger_ticks_total") + count
    deadline = time.monotonic() + 60
    while value(server, "gpuledger_ticks_total") < goal:
        assert time.monotonic() < deadline, f"fewer than {count} ticks"
        time.sleep(0.05)


def test_user_directory_that_does_not_answer(tmp_path: Path, proc: Proc, slow_users: Path) -> None:
    """A tenant's uid is looked up in a directory server that is down: ticks go on, and other users have their names."""
    proc.add(HOSTILE, uid=54321)
    proc.add(VICTIM, uid=0)
    env = surroundings(scenario_of(tmp_path, (HOSTILE, VICTIM)), LD_PRELOAD=str(slow_users))
    with serving("serve", TICK, f"--path.procfs={proc.root}", "--environment=none", env=env) as server:
        server.metrics(rf'^gpu_process_info{{.*pid="{VICTIM}".*user="root"')
        ticks_go_on(server)
        assert f'pid="{HOSTILE}"' in server.get("/metrics")
        assert server.stop()[0] == 0


def test_environment_that_blocks(tmp_path: Path, proc: Proc) -> None:
    """Processes of a job block reads of their environments, which no tick needs: ticks go on, and exit works."""
    pids = range(100, 120)
    for pid in pids:
        proc.add(pid, cgroup=JOB.format(7))
        block(proc, pid, "environ")
    proc.add(VICTIM, cgroup=JOB.format(8))
    env = surroundings(scenario_of(tmp_path, (*pids, VICTIM)))
    with serving("serve", TICK, f"--path.procfs={proc.root}", "--environment=slurm", env=env) as server:
        server.metrics(rf'^gpu_process_info{{.*pid="{VICTIM}".*job="slurm/8"')
        ticks_go_on(server)
        names = [p.read_text() for p in Path(f"/proc/{server.process.pid}/task").glob("*/comm")]
        assert len(names) < 12 + MOST_THREADS
        assert server.stop()[0] == 0


def test_command_lines_that_block(tmp_path: Path, proc: Proc) -> None:
    """Processes block reads of their command lines, of which a tick needs hashes: ticks go on, and exit works."""
    pids = range(100, 120)
    for pid in pids:
        proc.add(pid, cgroup=JOB.format(7))
        block(proc, pid, "cmdline")
    proc.add(VICTIM, cgroup=JOB.format(8))
    env = surroundings(scenario_of(tmp_path, (*pids, VICTIM)))
    with serving("serve", TICK, f"--path.procfs={proc.root}", "--environment=none", env=env) as server:
        server.metrics(rf'^gpu_process_info{{.*pid="{VICTIM}".*job="slurm/8"')
        ticks_go_on(server)
        assert value(server, "gpuledger_tick_duration_seconds") < 0.1
        assert server.stop()[0] == 0


def test_memory_map_that_blocks(tmp_path: Path, proc: Proc) -> None:
    """A tenant blocks reads of its memory map: the holder of unlisted memory is still found."""
    proc.add(HOSTILE, cgroup="0::/system.slice/tenant.service\n")
    block(proc, HOSTILE, "maps")
    proc.add(VICTIM, cgroup=f"0::/system.slice/docker-{C}.scope\n")
    (proc.root / str(VICTIM) / "maps").write_text(MAPPED)
    env = surroundings(scenario_of(tmp_path, (), memory_used=9 << 30))
    with serving("serve", TICK, f"--path.procfs={proc.root}", "--environment=none", env=env) as server:
        server.metrics(rf'^container_gpu_detected{{.*container_id="{C}".*evidence="maps"', within_s=30)
        ticks_go_on(server)


def test_explaining_a_process_that_blocks(tmp_path: Path, proc: Proc) -> None:
    """An administrator examines a process that blocks its map, environment and command line: the command ends."""
    proc.add(HOSTILE, cgroup=JOB.format(7))
    block(proc, HOSTILE, "maps")
    block(proc, HOSTILE, "environ")
    block(proc, HOSTILE, "cmdline")
    env = surroundings(scenario_of(tmp_path, [HOSTILE]))

    done = gpuledger("explain", str(HOSTILE), f"--path.procfs={proc.root}", "--environment=none", env=env)

    assert "slurm/7" in done.stdout
