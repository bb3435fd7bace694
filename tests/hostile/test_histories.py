"""Random histories of a node, each from a seed, for the books alone: they balance, and no counter decreases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import Activity, Device, Driver, Facts, Owner, Owners, Reading, Resident, Sample, Tick
from gpuledger.storage.journal import decode, encode
from tests.seeds import seeds

TICKS = 150
S = 10**9
FOREVER_NS = 10**6 * S
LIMIT_MW = 700_000
GPUS = tuple(Device(index, f"GPU-{index}") for index in range(3))
MIGS = tuple(
    Device(2, f"MIG-{number}", parent_uuid=GPUS[2].uuid, gpu_instance_id=number, multiprocessors=16)
    for number in range(2)
)
"""The last GPU is partitioned."""
PLACES = (*GPUS[:2], *MIGS)


@dataclass(frozen=True)
class Program:
    """A process; it is on a device or waits beside it."""

    pid: int
    start: int
    container: str
    place: Device | None


@dataclass
class Node:
    """A node to which things happen at random."""

    random: Random
    now_ns: int = 1_700_000_000 * S
    monotonic_ns: int = 0
    counters_mj: dict[str, int] = field(default_factory=lambda: {gpu.uuid: 10**6 for gpu in GPUS})
    programs: list[Program] = field(default_factory=list)
    started: int = 0
    lost: set[str] = field(default_factory=set)
    stuck_mj: dict[str, int] = field(default_factory=dict)
    """The value at which a counter stands still."""

    def ticks(self) -> Iterator[Tick]:
        """What the source and the owners report."""
        for _ in range(TICKS):
            self._pass_time()
            self._change_programs()
            self._change_gpus()
            yield self._tick()

    def _pass_time(self) -> None:
        elapsed_s = self.random.choice([0.1, 1.0, 1.0, 1.0, 1.0, 4.0, 15.0])
        self.monotonic_ns += int(elapsed_s * S)
        self.now_ns += int(elapsed_s * S)
        if self.random.random() < 0.05:  # the clock is set
            self.now_ns += self.random.choice([-3600, -5, 5, 3600]) * S
        for gpu in GPUS:
            self.counters_mj[gpu.uuid] += int(elapsed_s * self.random.randint(0, LIMIT_MW))

    def _change_programs(self) -> None:
        self.programs = [program for program in self.programs if self.random.random() > 0.05]
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 3])):
            self.started += 1
            container = self.random.choice(["", *(f"c{number}" for number in range(self.started // 10, 6))])
            pid = self.random.randint(1, 30)  # soon used again
            if all(program.pid != pid for program in self.programs):
                self.programs.append(Program(pid, self.started, container, self.random.choice(PLACES)))
        for number, program in enumerate(self.programs):
            if self.random.random() < 0.1:
                self.programs[number] = replace(program, place=self.random.choice([None, program.place or PLACES[0]]))

    def _change_gpus(self) -> None:
        for gpu in GPUS:
            if self.random.random() < (0.3 if gpu.uuid in self.lost else 0.05):
                self.lost ^= {gpu.uuid}
            if self.random.random() < 0.05:
                stuck_mj = self.stuck_mj.pop(gpu.uuid, None)
                if stuck_mj is None:
                    self.stuck_mj[gpu.uuid] = self.counters_mj[gpu.uuid]
                elif self.random.random() < 0.5:  # it continues where it stopped
                    self.counters_mj[gpu.uuid] = stuck_mj
            if self.random.random() < 0.01:  # the GPU is reset
                self.counters_mj[gpu.uuid] = self.random.randint(0, 1000)

    def _tick(self) -> Tick:
        driver = Driver(up=self.random.random() > 0.03)
        readings = [reading for gpu in GPUS for reading in self._readings(gpu, driver)]
        by_pid = {program.pid: Owner(container_id=program.container) for program in self.programs}
        facts = {program.pid: Facts(program.pid, program.start, 0) for program in self.programs}
        known = {pid for pid in facts if self.random.random() > 0.02}  # a process may end between two reads
        return Tick(
            self.now_ns,
            driver,
            tuple(readings),
            monotonic_ns=self.monotonic_ns,
            facts={pid: facts[pid] for pid in known},
            owners=Owners(by_pid={pid: by_pid[pid] for pid in known}, running=self.running()),
        )

    def running(self) -> frozenset[str]:
        """The containers with a process."""
        return frozenset(program.container for program in self.programs if program.container)

    def _readings(self, gpu: Device, driver: Driver) -> Iterator[Reading]:
        if gpu.uuid in self.lost or not driver.up:
            yield Reading(gpu, up=False)
            return
        chance, counter_mj = self.random.random, self.stuck_mj.get(gpu.uuid, self.counters_mj[gpu.uuid])
        if chance() < 0.02:  # misread
            counter_mj = self.random.choice([0, counter_mj // 2, 10**14, 2**63, 2**64 - 1])
        parts = MIGS if gpu is GPUS[2] else ()
        on_gpu = [program for program in self.programs if program.place in (gpu, *parts)]
        yield Reading(
            gpu,
            energy_mj=None if chance() < 0.03 else counter_mj,
            power_mw=None if chance() < 0.03 else self.random.randint(0, LIMIT_MW),
            power_limit_mw=LIMIT_MW,
            residents=None if chance() < 0.05 else tuple(Resident(program.pid, "compute") for program in on_gpu),
            samples=None if parts else tuple(
                Sample(program.pid, self.now_ns // 1000, self.random.randint(0, 100), 0) for program in on_gpu
            ),
        )  # fmt: skip
        for part in parts:
            if chance() > 0.03:  # else the instance is being made anew
                inside = tuple(Resident(program.pid, "compute") for program in on_gpu if program.place == part)
                yield Reading(
                    part, residents=inside, activity=Activity(sm_pct=100 * chance(), tensor_pct=100 * chance())
                )


def counters(tick: Tick) -> dict[tuple[object, ...], int]:
    """Every published counter, by its labels."""
    found: dict[tuple[object, ...], int] = {}
    for uuid, account in tick.accounts.items():
        found["gpu", uuid, "energy"] = account.energy_mj or 0
        found["gpu", uuid, "idle"] = account.idle_mj
        found["gpu", uuid, "retired"] = account.retired_mj
        found["gpu", uuid, "unowned"] = account.unowned_mj
        found |= {("gpu", uuid, reason): mj for reason, mj in account.unattributed_mj}
    for process in tick.processes:
        start = process.facts.start_ticks if process.facts is not None else None
        labels = (process.device.uuid, process.resident.pid, start)
        found |= {("process", *labels, method): mj for method, mj in process.energy_mj}
    for container in tick.containers:
        place = (container.device.uuid, container.owner.container_id)
        found |= {("container", *place, method): mj for method, mj in container.energy_mj}
    return found


def container_mj(tick: Tick) -> dict[tuple[str, str], int]:
    """Energy of each container on each device."""
    return {(use.owner.container_id, use.device.uuid): sum(mj for _, mj in use.energy_mj) for use in tick.containers}


def check_balance(tick: Tick) -> None:
    """Processes + retired + idle + unattributed = device >= containers >= their processes."""
    assert len({reading.device.uuid for reading in tick.readings}) == len(tick.readings)
    for uuid, account in tick.accounts.items():
        processes = [use for use in tick.processes if use.device.gpu_uuid == uuid]
        parts_mj = sum(mj for use in processes for _, mj in use.energy_mj)
        parts_mj += account.retired_mj + account.idle_mj + sum(mj for _, mj in account.unattributed_mj)
        containers_mj = sum(mj for use in tick.containers if use.device.gpu_uuid == uuid for _, mj in use.energy_mj)
        assert account.residual_mj == 0
        assert parts_mj == (account.energy_mj or 0)
        assert containers_mj <= parts_mj
    totals_mj = container_mj(tick)
    for use in tick.processes:
        place = (use.owner.container_id, use.device.uuid)
        if place in totals_mj and use.owner.container_id:
            totals_mj[place] -= sum(mj for _, mj in use.energy_mj)
    assert min(totals_mj.values(), default=0) >= 0  # a container has what its processes have


@pytest.mark.parametrize("seed", seeds(60))
def test_the_books_hold_in_every_history(seed: int) -> None:
    """Processes, GPUs, clocks and counters do what they like, and books come from a journal: they always balance."""
    random = Random(seed)
    settings = {
        "policy": Policy(random.random() < 0.2, random.random() < 0.2, random.choice(["fingerprint", "sm_time"])),
        "keep_ns": random.choice([S, 10 * S, 300 * S, FOREVER_NS]),
        "max_containers": random.choice([None, None, 0, 2, 5]),
    }
    books, node = Books(**settings), Node(random)  # type: ignore[arg-type]  # the settings of Books
    before: dict[tuple[object, ...], int] = {}
    last = Tick(0, Driver(up=True))
    for tick in node.ticks():
        booked = books.book(tick)
        check_balance(booked)
        now = counters(booked)
        assert {labels: mj for labels, mj in now.items() if mj < before.get(labels, 0)} == {}
        before = now | {labels: mj for labels, mj in before.items() if labels[0] == "gpu" and labels not in now}
        up = {reading.device.uuid for reading in tick.readings if reading.up}
        unknown = {(use.device.uuid, use.resident.pid) for use in last.processes if use.device.gpu_uuid not in up}
        was_mj, is_mj = container_mj(last), container_mj(booked)
        if settings["max_containers"] is None:
            assert unknown <= {(use.device.uuid, use.resident.pid) for use in booked.processes}
            assert {place for place in was_mj.keys() - is_mj.keys() if place[0] in node.running()} == set()
        if settings["keep_ns"] == FOREVER_NS:
            assert sum(was_mj.values()) <= sum(is_mj.values())  # what one container loses another has
        last = booked
        if random.random() < 0.1:
            state = decode(encode(books.state("boot", tick.time_ns)))
            books = Books(**settings)  # type: ignore[arg-type]
            books.resume(state, tick.time_ns)


@pytest.mark.parametrize("seed", seeds(20))
def test_counters_of_unknown_pids_never_fall(seed: int) -> None:
    """Processes with the same pid cannot be told apart without start times: they share a series, which only grows."""
    books, busy_ns, before_mj = (
        Books(keep_ns=FOREVER_NS),
        dict[tuple[str, int, str], int](),
        dict[tuple[str, str], int](),
    )
    for tick in Node(Random(seed)).ticks():
        booked = books.book(replace(tick, facts={}))
        check_balance(booked)
        last, busy_ns = (
            busy_ns,
            {(use.device.uuid, use.resident.pid, use.owner.container_id): use.busy_ns or 0 for use in booked.processes},
        )
        assert {labels: ns for labels, ns in busy_ns.items() if ns < last.get(labels, 0)} == {}
        last_mj, before_mj = before_mj, container_mj(booked)
        assert {labels: mj for labels, mj in before_mj.items() if labels[0] and mj < last_mj.get(labels, 0)} == {}
