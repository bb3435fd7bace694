"""Containers that come, go and hide: totals stay while the container runs, and the number of series is limited."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuledger.books import Books
from gpuledger.model import Device, Driver, Facts, Owner, Owners, Reading, Resident, Tick
from tests.cli.running import Running, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.kernel.fakeproc import Proc

C = "4be1" * 16
DOCKER = "0::/system.slice/docker-{}.scope\n"
TOTAL = rf'^container_gpu_energy_joules_total{{.*container_id="{C}".*}} (\S+)$'
KEPT_S = 1.0
MUCH_LATER_S = 2.5
"""After the retention, and after a scan of the processes."""


class Node:
    """A GPU, a process of a container on it, and the container's shell."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "scenario"
        self.scenario = Scenario(gpus=[Gpu(index=0, watts=100)], processes=[Process(gpu=0, pid=7, sm=50)])
        (folder / "proc").mkdir()
        self.proc = Proc(folder / "proc")
        for pid in (7, 8):
            self.proc.add(pid, cgroup=DOCKER.format(C))
        self.change()

    def change(self, *lines: str) -> None:
        """Put the scenario in place, with these lines."""
        self.scenario.extra = list(lines)
        self.scenario.write(self.path)

    @contextmanager
    def serving(self, *words: str) -> Iterator[Running]:
        """A server of this node."""
        flags = ("--tick.interval=100ms", f"--metric-retention={KEPT_S:.0f}s", f"--path.procfs={self.proc.root}")
        with serving("serve", *flags, *words, env=surroundings(self.path)) as server:
            yield server


def total(server: Running) -> float | None:
    """The joules of the container; None if it has no series."""
    found: list[str] = re.findall(TOTAL, server.get("/metrics"), re.MULTILINE)
    return sum(map(float, found)) if found else None


def test_a_lost_gpu_takes_no_total(tmp_path: Path) -> None:
    """A tenant makes the GPU fall off the bus for longer than the retention: the totals on it stay and go on."""
    node = Node(tmp_path)
    with node.serving() as server:
        server.metrics(TOTAL)
        node.change("lost 0")
        server.metrics(r"^gpu_up{.*} 0$")
        before = total(server)
        time.sleep(MUCH_LATER_S)
        during = total(server)
        node.change()
        server.metrics(r"^gpu_up{.*} 1$")
        after = total(server)

    assert before is not None
    assert during == before
    assert after is not None
    assert after >= before


def test_a_container_leaves_the_gpu_to_shed_its_total(tmp_path: Path) -> None:
    """It runs on without the GPU for longer than the retention: its total stays until the container has ended."""
    node = Node(tmp_path)
    with node.serving() as server:
        server.metrics(TOTAL)
        node.scenario.processes.clear()
        node.proc.end(7)
        node.change()
        # The counter moves every 100 ms: energy from before the process ended may be booked after it.
        server.metrics(r"^gpu_idle_energy_joules_total{.*} [1-9]")
        before = total(server)
        time.sleep(MUCH_LATER_S)
        assert total(server) == before
        node.proc.end(8)
        deadline = time.monotonic() + 20
        while total(server) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_the_number_of_containers_is_limited(tmp_path: Path) -> None:
    """A tenant starts ever new containers: those that left first are summed as one, and no joule is lost."""
    node, most = Node(tmp_path), 3
    with node.serving(f"--container.max={most}", "--metric-retention=1h") as server:
        before = 0.0
        for number in range(10):
            pid, container_id = 1000 + number, f"{number:064x}"
            node.proc.add(pid, cgroup=DOCKER.format(container_id))
            node.scenario.processes = [Process(gpu=0, pid=pid, sm=50)]
            node.change()
            body = server.metrics(rf'^gpu_process_energy_joules_total{{.*container_id="{container_id}".*}} [1-9]')
            containers = joules(body, "container_gpu_energy_joules_total")
            assert len([labels for labels in containers if 'container_id=""' not in labels]) <= most
            assert sum(containers.values()) >= before
            before = sum(containers.values())
    (others,) = [value for labels, value in containers.items() if 'container="other",container_id=""' in labels]
    accounts = ("gpu_idle_energy_joules_total", "gpu_unattributed_energy_joules_total")
    outside = sum(sum(joules(body, name).values()) for name in accounts)

    assert others > 0
    assert sum(containers.values()) + outside == pytest.approx(sum(joules(body, "gpu_energy_joules_total").values()))


def joules(body: str, name: str) -> dict[str, float]:
    """The series of a metric without the method, by labels."""
    found: dict[str, float] = {}
    for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", body, re.MULTILINE):
        place = labels.partition(',method="')[0]
        found[place] = found.get(place, 0.0) + float(value)
    return found


def test_containers_that_ended_cost_nothing() -> None:
    """A tenant leaves 500 ended containers behind: a tick builds only the rows of the container that still works."""
    books, gpu, works = Books(), Device(0, "GPU-0"), 1000
    ticks: list[Tick] = []
    for second, pid in enumerate((*range(1, 501), works, works, works)):
        tick = Tick(
            second * 10**9,
            Driver(up=True),
            (Reading(gpu, energy_mj=100_000 * second, residents=(Resident(pid, "compute"),)),),
            monotonic_ns=second * 10**8,
            facts={pid: Facts(pid, 1, 0)},
            owners=Owners(by_pid={pid: Owner(container_id=f"c{pid}")}),
        )
        ticks.append(books.book(tick))
    *_, previous, booked = ticks
    built = {id(use) for use in (*previous.containers, *previous.processes)}

    assert len(booked.containers) == len(booked.processes) == 501
    assert [use.owner.container_id for use in booked.containers if id(use) not in built] == [f"c{works}"]
    assert [use.resident.pid for use in booked.processes if id(use) not in built] == [works]
