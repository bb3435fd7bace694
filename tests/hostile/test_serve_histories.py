"""Random histories of a node, each from a seed, around a real `gpuledger serve` that is killed and restarted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.cli.running import Running, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.kernel.fakeproc import Proc
from tests.seeds import seeds

LIVES, CHANGES = 3, 5
"""Lives of the exporter, and changes of the node in each of them."""
GPUS = tuple(f"GPU-{number:08x}-0000-4000-8000-000000000000" for number in range(3))
CONTAINERS = tuple(f"{number:064x}" for number in range(1, 5))
SAMPLE = re.compile(r"^(\w+)({.*})? (\S+)$", re.MULTILINE)
PARTS = ("gpu_process_energy", "gpu_idle_energy", "gpu_retired_energy", "gpu_unattributed_energy")
LASTING = ("gpu_energy_joules_total", "gpu_idle", "gpu_retired", "gpu_unattributed")
"""Totals of a GPU, which continue after it was lost."""
TICK = "gpuledger_tick_timestamp_seconds"
Scrape = dict[str, float]
"""Series with their labels, and their values."""


class Node:
    """Three GPUs to which things happen at random."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._random, self.path, self._pids = random, folder / "scenario", 1
        (folder / "proc").mkdir()
        self.proc = Proc(folder / "proc")
        boot = folder / "proc" / "sys" / "kernel" / "random" / "boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("6f4f2a0e-0001\n")  # a journal is of one boot
        self._scenario = Scenario([Gpu(n, uuid=uuid, watts=100, energy_mj=10**6) for n, uuid in enumerate(GPUS)])
        self._scenario.write(self.path)

    def change(self) -> None:
        """Processes start and end, power changes, a GPU is reset or lost, lists fail, the driver is reloaded."""
        chance, scenario = self._random.random, self._scenario
        for process in [process for process in scenario.processes if chance() < 0.3]:
            scenario.processes.remove(process)
            if all(other.pid != process.pid for other in scenario.processes):
                self.proc.end(process.pid)
        for _ in range(self._random.randint(0, 3)):
            self._pids += 1
            self.proc.add(self._pids, cgroup=f"0::/system.slice/docker-{self._random.choice(CONTAINERS)}.scope\n")
            for gpu in self._random.sample(range(len(GPUS)), self._random.choice([1, 1, 2])):
                scenario.processes.append(Process(gpu, self._pids, sm=self._random.choice([0, 20, 60])))
        for device in scenario.gpus:
            scenario.set_watts(device.index, self._random.uniform(0, 700))
            if chance() < 0.1:
                device.energy_mj, device.energy_at = 0, scenario.now()
        scenario.extra = [f"lost {number}" for number in range(len(GPUS)) if chance() < 0.15]
        scenario.extra += ["error nvmlDeviceGetComputeRunningProcesses_v3 code=999"] if chance() < 0.1 else []
        scenario.extra += ["unloaded"] if chance() < 0.05 else []
        scenario.write(self.path)


def scrape(server: Running) -> Scrape:
    """All series."""
    return {name + labels: float(value) for name, labels, value in SAMPLE.findall(server.get("/metrics"))}


def scrapes(server: Running, node: Node) -> Iterator[Scrape]:
    """Some scrapes after each change of the node."""
    server.metrics("^gpuledger_ticks_total")
    for _ in range(CHANGES):
        node.change()
        for _ in range(4):
            time.sleep(0.08)
            yield scrape(server)


def counters(found: Scrape) -> Scrape:
    """Counters of energy, which a restart continues."""
    return {series: value for series, value in found.items() if "energy_joules_total" in series}


def check_balance(found: Scrape) -> None:
    """The residual of each GPU is 0, and its parts add up to its counter."""
    for uuid in GPUS:
        series = {name: value for name, value in found.items() if f'uuid="{uuid}"' in name}
        whole = [value for name, value in series.items() if name.startswith("gpu_energy_joules_total{")]
        if whole:
            parts = sum(value for name, value in series.items() if name.startswith(PARTS) and "_joules_total{" in name)
            assert parts == pytest.approx(whole[0], abs=1e-6)
    assert {value for name, value in found.items() if name.startswith("gpuledger_ledger_residual_joules{")} <= {0.0}


@pytest.mark.parametrize("seed", seeds(2))
def test_the_totals_of_a_server_hold_in_every_history(tmp_path: Path, seed: int) -> None:
    """Processes, GPUs and the driver do what they like, and a server is killed: totals balance and never decrease."""
    random = Random(seed)
    node = Node(tmp_path, random)
    flags = (
        "--tick.interval=100ms", "--environment=none", f"--metric-retention={random.choice(['1s', '1h'])}",
        f"--path.procfs={node.proc.root}", f"--journal.path={tmp_path / 'journal'}",
    )  # fmt: skip
    before: Scrape = {}
    written: Scrape = {}
    checked = 0
    for _ in range(LIVES):
        with serving("serve", *flags, env=surroundings(node.path)) as server:
            for found in scrapes(server, node):
                check_balance(found)
                now = counters(found)
                assert {series: now[series] for series in now if now[series] < before.get(series, 0)} == {}
                before = {series: value for series, value in before.items() if series.startswith(LASTING)} | now
                checked += bool(now)
                if found.get("gpuledger_journal_written_timestamp_seconds", 0) >= found[TICK]:
                    written = before  # else the disk was too slow for this tick
            server.process.kill()
            server.process.wait()
            before = written

    assert checked > LIVES * CHANGES
    assert written
