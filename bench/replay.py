"""Replays recordings of tests/data/h200 through the books, and through the other estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from bench import truth
from tests import h200

from gpuledger.books import Books
from gpuledger.driver.rounds import Plan, Rounds
from gpuledger.ledger.split import Policy
from gpuledger.model import DIVIDED, Activity, Slot, Tick

ESTIMATED = ("sm_time", "mps", "mig", "fingerprint", "power", "edge")
"""Methods for energy above parked power."""
ALONE = "exclusive"
"""The method for all energy of a process that has the GPU to itself, with parked power."""
BETWEEN_S = 30.0
MIG_SAMPLE_S = 0.015
"""Time of a GPM sample with two MIG instances."""
BUFFER_S = 10.0
ROUNDING_S = 0.001
"""Times in seconds and in nanoseconds differ by less."""
IDLE_MW = 80_000
"""Idle power of the recorded GPU. All estimators use it, so it hardly affects the shares."""

Shares = dict[int, float]
ACTIVITY = {"sm": "2", "tensor": "5", "dram": "10"}
"""The scored activities, and their metrics of GPM."""
DEVICE = -1


@dataclass(frozen=True, slots=True)
class Step:
    """The books after one tick."""

    time_s: float
    """In the time of the recording."""
    joules: dict[str, Shares]
    """Energy above parked power so far, by estimator and pid. The unit differs between estimators."""
    errors: Shares
    """Published errors of the shares, by pid."""
    active_s: dict[str, Shares] = field(default_factory=dict)
    """Activity x time so far, by unit and pid; that of the whole device under the pid DEVICE."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How recordings are replayed."""

    books: Callable[[], Books] = Books
    """Makes the books with the estimate under test."""
    gpm: bool = True
    """Whether the GPU reports activity; GPUs before Hopper do not."""
    slots: Callable[[list[Any]], tuple[Slot, ...]] | None = None
    """Makes the slots of a tick from its rows, see h200.ticks."""
    others: bool = True
    """Whether the other estimators are replayed too."""


WITHOUT_GPM = Setup(gpm=False, slots=h200.power_slots)
"""A GPU before Hopper."""


class Player:
    """Replays recordings one after another through the same books."""

    def __init__(self, setup: Setup = Setup()) -> None:  # noqa: B008 - immutable
        self._setup = setup
        self._now_s = 0.0
        self._counter_mj = 0  # continues in the next recording; it would jump otherwise
        self._ours = setup.books()
        self._by_time = Books(policy=Policy(method="sm_time")) if setup.others else None

    def play(self, recording: Any, every: int = 10) -> list[Step]:
        """Replay a recording of a whole GPU."""
        later_s = self._now_s + BETWEEN_S - recording["rows"][0]["t"] if self._now_s else 0.0
        ticks = h200.ticks(recording, every, later_s=later_s, slots=self._setup.slots, gpm=self._setup.gpm)
        return self._steps(recording, ticks, later_s, Kepler(recording).power)

    def play_mig(self, recording: Any) -> list[Step]:
        """Replay a recording of MIG instances. Kepler splits equally there: the driver has no samples."""
        pids = truth.pids(recording)
        ticks = _in_rounds(h200.mig_ticks(recording))
        return self._steps(recording, ticks, 0.0, lambda _: dict.fromkeys(pids, 1.0))

    def _steps(
        self, recording: Any, ticks: Iterable[Tick], later_s: float, kepler_mw: Callable[[float], Shares]
    ) -> list[Step]:
        pids = truth.pids(recording)
        parked_mw = 1000 * (recording.get("parked_w") or truth.PARKED_W)
        steps: list[Step] = []
        ours, by_time = Booked(pids, parked_mw), Booked(pids, parked_mw)
        kepler, equal = dict.fromkeys(pids, 0.0), dict.fromkeys(pids, 0.0)
        active_s: dict[str, Shares] = {unit: dict.fromkeys((*pids, DEVICE), 0.0) for unit in ACTIVITY}
        earlier_mj = self._counter_mj - recording["rows"][0]["energy_mj"]
        for original in ticks:
            gpu, *instances = original.readings
            before_mj, self._counter_mj = self._counter_mj, (gpu.energy_mj or 0) + earlier_mj
            tick = replace(original, readings=(replace(gpu, energy_mj=self._counter_mj), *instances))
            seconds = tick.time_ns / 1e9 - self._now_s if steps else 0.0
            self._now_s = tick.time_ns / 1e9
            now = self._now_s - later_s
            booked = self._ours.book(tick)
            joules = {"ours": ours.add(booked, seconds)}
            if self._by_time is not None:
                _increase(kepler, kepler_mw(now))
                active_mj = max(0.0, self._counter_mj - before_mj - parked_mw * seconds)
                _increase(equal, _equally(active_mj, tick))
                joules |= {"equal": dict(equal), "kepler": dict(kepler)}
                joules["sm_time"] = by_time.add(self._by_time.book(tick), seconds)
            active_s = {unit: _active_s(unit, booked, before, seconds) for unit, before in active_s.items()}
            steps.append(Step(now, joules, _published(booked), active_s))
        return steps


class Booked:
    """Energy above parked power in the books of one recording, in millijoules by pid."""

    def __init__(self, pids: list[int], parked_mw: float) -> None:
        self._parked_mw = parked_mw
        self._above_mj = dict.fromkeys(pids, 0.0)
        self._estimated_mj = dict.fromkeys(pids, 0)
        self._alone_mj = dict.fromkeys(pids, 0)
        self._device_mj: int | None = None
        self._waiting_s = 0.0  # since energy was booked last

    def add(self, tick: Tick, seconds: float) -> Shares:
        """Add the energy that was booked in one tick; returns the sum so far."""
        account = tick.accounts.get(tick.readings[0].device.uuid)
        assert account is not None
        assert account.residual_mj == 0
        self._waiting_s += seconds
        for use in tick.processes:  # the row of a process that left is dropped later; its sum remains
            pid, by_method = use.resident.pid, dict(use.energy_mj)
            if pid not in self._above_mj:
                continue
            estimated_mj = sum(by_method.get(method, 0) for method in ESTIMATED)
            alone_mj = by_method.get(ALONE, 0)
            self._above_mj[pid] += estimated_mj - self._estimated_mj[pid]
            if alone_mj > self._alone_mj[pid]:
                self._above_mj[pid] += alone_mj - self._alone_mj[pid] - self._parked_mw * self._waiting_s
            self._estimated_mj[pid], self._alone_mj[pid] = estimated_mj, alone_mj
        if account.energy_mj != self._device_mj:
            self._device_mj, self._waiting_s = account.energy_mj, 0.0
        return dict(self._above_mj)


class Kepler:
    """Kepler's formula: power above idle, by the utilization in the driver's buffer."""

    def __init__(self, recording: Any) -> None:
        self._rows = recording["rows"]
        self._first = self._next = 0
        """The rows in the buffer."""

    def power(self, now: float) -> Shares:
        """Milliwatts by pid at one instant, later than the one before; equal if the driver reports no utilization."""
        while self._next < len(self._rows) and self._rows[self._next]["t"] <= now + ROUNDING_S:
            self._next += 1
        while self._rows[self._first]["t"] <= now - BUFFER_S:
            self._first += 1
        rows = self._rows[self._first : self._next]
        pct: Shares = {}
        for pid, _, sm_pct, _ in (sample for row in rows for sample in row.get("proc_util") or ()):
            pct[pid] = pct.get(pid, 0.0) + sm_pct
        if not any(pct.values()):
            pct = {pid: 1.0 for pid, _ in rows[-1]["procs"]}
        active_mw = max(0, rows[-1]["power_mw"] - IDLE_MW)
        return {pid: active_mw * part / (sum(pct.values()) or 1.0) for pid, part in pct.items()}


def _increase(totals: Shares, parts: Shares) -> None:
    for pid, part in parts.items():
        totals[pid] = totals.get(pid, 0.0) + part


def _equally(total: float, tick: Tick) -> Shares:
    """Equal parts for all processes on the GPU and its instances."""
    pids = {resident.pid for reading in tick.readings for resident in reading.residents or ()}
    return dict.fromkeys(pids, total / len(pids)) if pids else {}


def _published(tick: Tick) -> Shares:
    return {use.resident.pid: use.energy_share_error for use in tick.processes if use.energy_share_error is not None}


def _in_rounds(ticks: Iterable[Tick]) -> Iterator[Tick]:
    """Ticks with the activity of MIG instances as the exporter measures it; the recording has it for every second."""
    rounds, plan = Rounds(), Plan(at_once=True, late=False, outdated=False)
    since: dict[str, list[Activity]] = {}
    measured: dict[str, Activity | None] = {}
    for tick in ticks:
        gpu, *instances = tick.readings
        since = {} if plan.at_once else since
        for reading in instances:
            uuid = reading.device.uuid
            since.setdefault(uuid, []).extend([reading.activity] if reading.activity else [])
            if plan.late:
                measured[uuid], since[uuid] = _mean(since[uuid]), []
        is_held = not plan.late
        processes = {r.device.uuid: frozenset(resident.pid for resident in r.residents or ()) for r in instances}
        plan = rounds.plan(processes, gpu.power_mw, len(instances) * MIG_SAMPLE_S, tick.time_ns / 1e9)
        yield replace(tick, readings=(gpu, *(
            replace(r, activity=measured.get(r.device.uuid), activity_held=is_held, activity_outdated=plan.outdated)
            for r in instances
        )))  # fmt: skip


def _mean(activities: list[Activity]) -> Activity | None:
    """The activity over several seconds."""
    if not activities:
        return None
    names = [unit.name for unit in fields(Activity) if getattr(activities[0], unit.name) is not None]
    return Activity(**{name: sum(getattr(a, name) for a in activities) / len(activities) for name in names})


def _active_s(unit: str, tick: Tick, before: Shares, seconds: float) -> Shares:
    """The activity of one unit x time, with that of this tick."""
    number = DIVIDED.index(f"{unit}_pct")
    pct = {use.resident.pid: use.activity.pct[number] for use in tick.processes if use.activity}
    whole = tick.readings[0].activity
    pct[DEVICE] = getattr(whole, f"{unit}_pct") if whole is not None else 0.0
    return {pid: total + (pct.get(pid) or 0.0) / 100 * seconds for pid, total in before.items()}
