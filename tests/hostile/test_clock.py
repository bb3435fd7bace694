"""A system clock that is set while the exporter runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.cli.running import Running, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.hostile.preload import preloaded
from tests.owners.kernel.fakeproc import Proc

C = "4be1" * 16
TOTAL = rf'^container_gpu_energy_joules_total{{.*container_id="{C}".*}} '
RETENTION_S = 300
HOUR_S = 3600
STAMP = "gpuledger_tick_timestamp_seconds"


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that sets the clock."""
    return preloaded("clock", tmp_path_factory.mktemp("clock"))


class Node:
    """A GPU with a process of a container; its energy counter does not depend on any clock."""

    def __init__(self, folder: Path) -> None:
        self.path, self.offset, self._joules = folder / "scenario", folder / "offset", 0
        (folder / "proc").mkdir()
        self.proc = Proc(folder / "proc")
        self.proc.add(7, cgroup=f"0::/system.slice/docker-{C}.scope\n")
        self.set_clock(0)
        self.draw(Process(gpu=0, pid=7, sm=50))

    def draw(self, *processes: Process, lines: tuple[str, ...] = ()) -> None:
        """Count 50 J more."""
        self._joules += 50
        gpu = Gpu(index=0, watts=0, energy_mj=1000 * self._joules)
        Scenario([gpu], [*processes], clock=1_700_000_000.0, extra=[*lines]).write(self.path)

    def set_clock(self, seconds: int) -> None:
        """So much after the right time; the file is never empty."""
        unfinished = self.offset.with_suffix(".new")
        unfinished.write_text(str(seconds))
        unfinished.replace(self.offset)

    def set_clock_and_wait(self, server: Running, seconds: int) -> None:
        """Until a tick has the new time."""
        self.set_clock(seconds)
        wait_for_tick(server)
        stamp = float(re.findall(rf"^{STAMP} (\S+)$", server.get("/metrics"), re.MULTILINE)[0])
        assert abs(stamp - time.time() - seconds) < HOUR_S / 2


def ticks(server: Running) -> int:
    """The number of ticks since the start."""
    return int(re.findall(r"^gpuledger_ticks_total (\d+)$", server.get("/metrics"), re.MULTILINE)[0])


def wait_for_tick(server: Running) -> None:
    """Two more ticks: the first may have begun before."""
    count, deadline = ticks(server), time.monotonic() + 20
    while ticks(server) < count + 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def total(server: Running) -> float | None:
    """The joules of the container; None if it has no series."""
    found: list[str] = re.findall(rf"{TOTAL}(\S+)$", server.get("/metrics"), re.MULTILINE)
    return sum(map(float, found)) if found else None


@pytest.mark.parametrize("lists_fail", [False, True], ids=["ended", "process lists fail"])
def test_the_clock_is_set_back_and_forth(tmp_path: Path, clock: Path, *, lists_fail: bool) -> None:
    """The clock is set back an hour and forth again, within the retention: totals of containers stay as they are."""
    node = Node(tmp_path)
    env = surroundings(node.path, LD_PRELOAD=str(clock), CLOCK_OFFSET=str(node.offset))
    flags = ("--tick.interval=100ms", f"--metric-retention={RETENTION_S}s", f"--path.procfs={node.proc.root}")
    with serving("serve", *flags, "--environment=none", env=env) as server:
        server.metrics("^gpuledger_ticks_total [3-9]")
        node.draw(Process(gpu=0, pid=7, sm=50))
        server.metrics(f"{TOTAL}[1-9]")
        if lists_fail:
            node.draw(Process(gpu=0, pid=7, sm=50), lines=("error nvmlDeviceGetComputeRunningProcesses_v3 code=999",))
        else:
            node.draw()
            node.proc.end(7)
            server.metrics(r"^container_gpu_processes{.*} 0$")
        wait_for_tick(server)
        before = total(server)
        node.set_clock_and_wait(server, -HOUR_S)
        during = total(server)
        node.set_clock_and_wait(server, 0)
        after = total(server)

    assert before is not None
    assert before >= 50
    assert (during, after) == (before, before)
