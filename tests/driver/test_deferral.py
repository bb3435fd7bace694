"""Energy and utilization of processes: read rarely while nobody shares a GPU, at once when something changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.books import Books
from gpuledger.driver.deferral import SETTLED_S, Deferral
from gpuledger.driver.source import NvmlSource
from gpuledger.model import Tick
from tests.driver.conftest import Bench, process
from tests.fakedriver import Gpu, Scenario

INTERVAL_S = 5.0


def due_s(deferral: Deferral, seconds: int, *, start_s: int = 0, pids: set[int] | None, **values: int) -> list[int]:
    """The seconds in which the counters were due."""
    known = {"power_mw": 100_000, "utilization_pct": 0} | values
    return [s for s in range(start_s, start_s + seconds) if deferral.is_due(pids, now_s=float(s), **known)]


@pytest.mark.parametrize("pids", [set(), {7}], ids=["nobody", "alone"])
def test_every_five_seconds_once_settled(pids: set[int]) -> None:
    """On the same seconds for every GPU, whenever its processes changed."""
    deferral = Deferral(INTERVAL_S)
    assert due_s(deferral, 5, start_s=102, pids=pids) == [102, 103, 104, 105, 106]
    assert due_s(deferral, 20, start_s=107, pids=pids) == [110, 115, 120, 125]


@pytest.mark.parametrize("pids", [None, {7, 8}], ids=["unknown", "shared"])
def test_in_every_tick_if_shared(pids: set[int] | None) -> None:
    """Also if the driver does not list processes."""
    assert len(due_s(Deferral(INTERVAL_S), 20, pids=pids)) == 20


def test_in_every_tick_if_so_configured() -> None:
    """An interval of 0."""
    assert len(due_s(Deferral(0.0), 20, pids={7})) == 20


def test_changes_are_read_at_once() -> None:
    """Of processes, of power, and work of processes that the driver does not list."""
    deferral = Deferral(INTERVAL_S)
    due_s(deferral, 11, start_s=100, pids=set())
    assert due_s(deferral, 1, start_s=111, pids=set()) == []
    assert due_s(deferral, 1, start_s=112, pids=set(), power_mw=140_000) == [112]
    assert due_s(deferral, 1, start_s=113, pids=set(), power_mw=140_000) == []
    assert due_s(deferral, 1, start_s=114, pids=set(), power_mw=140_000, utilization_pct=3) == [114]
    assert due_s(deferral, int(SETTLED_S), start_s=116, pids={7}) == [116, 117, 118, 119, 120]
    assert due_s(deferral, 4, start_s=121, pids={7}) == []


class Day:
    """A GPU that is read and booked every second of a clock turned by hand."""

    def __init__(self, bench: Bench, interval_s: float) -> None:
        self._bench = bench
        self.now_s = 1000.0
        self.read_often = 0
        """Ticks in which the counters were read."""
        bench.scenario = Scenario(gpus=[Gpu(index=0)], clock=self.now_s)
        bench.write()
        self.source = NvmlSource(
            energy_interval_s=interval_s, now_ns=lambda: int(self.now_s * 1e9), monotonic=lambda: self.now_s
        )
        self._books = Books()

    def pass_by(self, seconds: int, watts: float, *pids: int) -> Tick:
        """The last of this many ticks, in which these processes are on the GPU."""
        self._bench.scenario.set_watts(0, watts)
        self._bench.scenario.processes = [process(pid, sm=80 // len(pids)) for pid in pids]
        for _ in range(seconds):
            self.now_s += 1.0
            self._bench.scenario.clock = self.now_s
            self._bench.write()
            tick = replace(self.source.read(), time_ns=int(self.now_s * 1e9), monotonic_ns=int(self.now_s * 1e9))
            tick = self._books.book(tick)
            self.read_often += not tick.readings[0].deferred
        return tick


def test_the_books_are_those_of_readings_in_every_tick(bench: Bench) -> None:
    """Nobody for 20 s, a process for 21 s, two for 7 s, one for 17 s: fewer calls and the same energy and time."""
    reads, energy_mj, busy_s = [], [], []
    for interval_s in (0.0, INTERVAL_S):
        day = Day(bench, interval_s)
        day.pass_by(20, 80)
        day.pass_by(21, 300, 7)
        day.pass_by(7, 500, 7, 8)
        tick = day.pass_by(17, 300, 7)
        day.source.close()
        account = tick.accounts[tick.readings[0].device.uuid]
        assert (account.residual_mj, account.unbooked_ns) == (0, 0)
        assert (account.energy_mj, account.idle_mj) == (16_500_000, 1_600_000)
        reads.append(day.read_often)
        energy_mj.append({use.resident.pid: sum(mj for _, mj in use.energy_mj) for use in tick.processes})
        busy_s.append({use.resident.pid: (use.busy_ns or 0) / 1e9 for use in tick.processes})

    assert reads == [65, 31]
    a_second_mj, a_second_s = 300_000, 0.8
    assert energy_mj[1] == pytest.approx(energy_mj[0], abs=a_second_mj)
    assert busy_s[1] == pytest.approx(busy_s[0], abs=a_second_s)


def test_short_pauses_of_a_program_are_no_change(bench: Bench) -> None:
    """Power of an instant from 330 to 880 W, as matrix products with pauses of 20 ms have it, and 600 W on average."""
    day = Day(bench, INTERVAL_S)
    day.pass_by(int(SETTLED_S), 600, 7)
    day.read_often = 0
    for second in range(20):
        bench.scenario.gpus[0].extra["power_instant_mw"] = (330_000, 880_000)[second % 2]
        day.pass_by(1, 600, 7)
    day.source.close()
    assert day.read_often == 20 / INTERVAL_S
