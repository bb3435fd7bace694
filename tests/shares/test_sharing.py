"""Energy of a shared GPU by fingerprints: on made-up processes whose shares are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import Activity, Device, ProcessUse, Reading, Resident, Slot, Tick
from gpuledger.shares.model import Model
from gpuledger.shares.shares import any_split
from tests.builders import parts_mj
from tests.shares.sharedgpu import COPY, DECODE, MATMUL, PARKED_MJ, Shared

HALVES = {1: 0.5, 2: 0.5}
Work = tuple[tuple[float, ...], int]
"""Activity of a program, and millijoules a second above parked power."""


def active(tick: Tick, before: Tick | None = None) -> dict[int, int]:
    """By pid, energy above parked power, since a tick before."""
    found = {use.resident.pid: _active(use) for use in tick.processes}
    was = {} if before is None else {use.resident.pid: _active(use) for use in before.processes}
    return {pid: mj - was.get(pid, 0) for pid, mj in found.items()}


def _active(use: ProcessUse) -> int:
    return sum(mj for method, mj in use.energy_mj if method not in ("parked", "exclusive", "edge"))


def methods(tick: Tick) -> set[str]:
    """Of all energy."""
    return {method for use in tick.processes for method, _ in use.energy_mj}


def share(gpu: Shared, here: list[int], amounts: dict[int, float], samples: dict[int, int], ticks: int = 8) -> Any:
    """Of each in the last of some seconds."""
    before = last = gpu.tick(here, amounts, samples)
    for _ in range(ticks):
        before, last = last, gpu.tick(here, amounts, samples)
    got = active(last, before)
    return {pid: got[pid] / sum(got.values()) for pid in here}


def test_activity_puts_samples_right() -> None:
    """The samples say 20 to 80; the activity says they had half each; one takes 570 W alone and the other 360."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    gpu.alone(1)
    gpu.alone(2)

    got = share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80})

    assert got[1] == pytest.approx(570 / 930, abs=0.04)


def test_by_samples_if_so_chosen() -> None:
    """The same with --energy.method=sm_time."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)}, Books(policy=Policy(method="sm_time")))
    gpu.alone(1)
    gpu.alone(2)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80})[1] == pytest.approx(0.2, abs=1e-3)


def test_strict_books_no_estimate() -> None:
    """However much is known of both processes, shared energy is unattributed, and no error is published."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)}, Books(policy=Policy(strict=True)))
    gpu.alone(1)
    gpu.alone(2)

    gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    last = gpu.tick([1, 2], {1: 0.5, 2: 0.5})

    assert not any(active(last).values())
    assert [use.energy_share_error for use in last.processes] == [None, None]


def test_three_at_once() -> None:
    """Samples that name only one of them do not hide the other two, once they were seen working."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000), 3: (DECODE, 520_000)})
    for pid in gpu.shapes:
        gpu.alone(pid)

    got = share(gpu, [1, 2, 3], {1: 0.3, 2: 0.3, 3: 0.4}, {1: 60, 2: 20, 3: 20})

    true = {1: 0.3 * 570, 2: 0.3 * 360, 3: 0.4 * 520}
    assert got == {pid: pytest.approx(w / sum(true.values()), abs=0.06) for pid, w in true.items()}


def test_twins_are_split_by_samples() -> None:
    """Activity does not tell two similar ones apart: as many samples of a steady state as count, and the fair share.

    At most 1 / ALIAS = 4 samples count next to 12 of the fair share, so that the deviation of 0.35 is
    sqrt(0.35 x 0.65 / 17) = 0.115, however long both work.
    """
    gpu = Shared({1: (MATMUL, 450_000), 2: (MATMUL, 450_000)})
    gpu.alone(1)
    gpu.alone(2)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 30, 2: 70})[1] == pytest.approx(0.35, abs=0.03)
    for _ in range(30):
        last = gpu.tick([1, 2], {1: 0.5, 2: 0.5}, {1: 30, 2: 70})
    assert [use.energy_share_error for use in last.processes] == [pytest.approx(0.115, abs=0.01)] * 2


def test_samples_above_the_time_alone_are_noise() -> None:
    """A process had the engine for a tenth of the time alone: next to its twin, samples of a fifth count little.

    If it works, its share is (4 x 0.2 + 12 x 0.1) / 16 = 0.125; with few samples, it may as well not work at all.
    """
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000)})
    gpu.alone(1, amount=0.1)
    gpu.alone(2)

    assert 0.07 < share(gpu, [1, 2], {1: 0.1, 2: 0.9}, {1: 20, 2: 80}, 20)[1] < 0.125


@pytest.mark.parametrize(
    ("other", "soon", "later"), [((MATMUL, 570_000), 0.19, 0.37), ((COPY, 360_000), 0.45, 0.49)], ids=["twin", "other"]
)
def test_little_work_alone_does_not_limit_a_bill(other: Work, soon: float, later: float) -> None:
    """A process that hides its work while it is alone pays for what it does next to others: a half of the engine.

    Next to its twin, its share is (4 x 0.5 + 12 cap) / 16: 0.2 with the tenth that it did alone as the cap, and 0.39
    with 0.5 - ALIAS_SD, which the samples of half a minute raise it to. Other activity than its own counts, too.
    """
    gpu = Shared({1: (MATMUL, 570_000), 2: other})
    gpu.alone(1, amount=0.1)
    gpu.alone(2)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50}, 10)[1] > soon
    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50}, 140)[1] > later


@pytest.mark.parametrize(
    ("work", "least"), [((COPY, 360_000), 0.35), ((MATMUL, 570_000), 0.16)], ids=["other work", "the same work"]
)
def test_many_workers_pay_for_what_their_program_did_not_do_alone(work: Work, least: float) -> None:
    """Eight workers with 6 % each, which the samples of one cannot tell from the 1 % of their program alone.

    If they do the same work as the other process, only their samples tell: 8 (4 x 0.06 + 12 x 0.01) / 16 = 0.18.
    """
    workers = list(range(11, 19))
    gpu = Shared({1: work, 2: (MATMUL, 570_000), **dict.fromkeys(workers, work)})
    gpu.world.names |= dict.fromkeys(workers, "one")
    gpu.alone(1, amount=0.01)
    gpu.alone(2, 12)

    amounts = {2: 0.52, **dict.fromkeys(workers, 0.06)}
    got = share(gpu, [2, *workers], amounts, {2: 52, **dict.fromkeys(workers, 6)}, 20)

    assert sum(got[pid] for pid in workers) > least


def test_a_stranger_pays_next_to_a_known_process_that_does_less_than_alone() -> None:
    """The samples say how busy the engine is; what the known process did alone adds nothing to that."""
    gpu = Shared({1: ((60.0, 30.0, 0.0, 20.0), 250_000), 2: ((90.0, 40.0, 0.0, 30.0), 330_000)})
    gpu.alone(1, 10, 0.6)

    assert share(gpu, [1, 2], {1: 0.1, 2: 0.5}, {1: 10, 2: 50}, 20)[2] > 0.5


def test_a_clock_that_rises_next_to_others() -> None:
    """Alone at the power limit, then with a lighter stranger: it does more work than its time is long."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    last = None
    for amounts, mhz in (({}, 1200), *[({1: 1.0}, 1200)] * 8, *[({1: 0.9, 2: 0.1}, 1980)] * 8):
        last = gpu.books.book(gpu.made([1, 2] if 2 in amounts else [1], amounts, **clocks(mhz)))

    assert last is not None
    assert active(last)[2] > 0
    assert all(use.activity is not None and use.activity.pct[1] for use in last.processes)


def test_a_stranger_has_what_is_left() -> None:
    """One was never alone: the other has its time times its power, the stranger the rest."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 0)})
    gpu.alone(1)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50})[2] < 0.4  # a half, if nothing were known


def test_strangers_are_split_by_samples() -> None:
    """Without any fingerprint: by time, between the samples and "only the second one works", with the same method.

    If both work, the time of the first is (4 x 0.2 + 12 x 0.5) / 16 = 0.42; five samples cannot tell. All slots are
    alike, so that the programs are not separated later.
    """
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})

    assert 0.1 < share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80})[1] < 0.3
    last = gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    assert methods(last) == {"fingerprint"}


NO_POWER = Slot(Activity(), utilization_pct=100, memory_utilization_pct=30)
NO_UTILIZATION = Slot(Activity(), power_mw=500_000)


@pytest.mark.parametrize("slots", [(), (NO_POWER,) * 5, (NO_UTILIZATION,) * 5], ids=["none", "no power", "no use"])
def test_by_samples_without_activity(slots: tuple[Slot, ...]) -> None:
    """Before Hopper there is no GPM; without samples of power and utilization, SM time is all that is known."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    gpu.alone(1)
    gpu.alone(2)
    before = last = gpu.books.book(gpu.made([1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80}, activity=None, slots=slots))
    for _ in range(3):
        made = gpu.made([1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80}, activity=None, slots=slots)
        before, last = last, gpu.books.book(made)
    got = active(last, before)

    assert got[1] / sum(got.values()) == pytest.approx(0.2, abs=1e-3)
    assert "sm_time" in methods(last)
    assert not methods(last) & {"fingerprint", "power"}


def older(gpu: Shared, here: list[int], *seconds: Mapping[int, float]) -> Tick:
    """Seconds of a GPU without GPM, whose driver buffers its power and utilization, after they are booked."""
    for amounts in seconds:
        power_mw = PARKED_MJ + round(sum(part * gpu.shapes[pid][1] for pid, part in amounts.items()))
        dram = sum(part * gpu.shapes[pid][0][3] for pid, part in amounts.items())
        slots = tuple(
            Slot(
                Activity(),
                power_mw=power_mw,
                ended_ms=800 - 200 * i,
                utilization_pct=round(100 * sum(amounts.values())),
                memory_utilization_pct=round(dram),
            )
            for i in range(5)
        )
        made = gpu.made(here, amounts, activity=None, slots=slots, power_limit_mw=700_000)
        last = gpu.books.book(made)
    return last


def test_power_stands_in_for_activity() -> None:
    """Before Hopper, with the power that the driver buffers: after a minute alone each, better than SM time."""
    gpu = Shared({1: (MATMUL, 500_000), 2: (DECODE, 250_000)})
    for pid in (1, 2):
        older(gpu, [pid], {}, {}, *[{pid: 1.0}] * 60)
    before = older(gpu, [1, 2], *[{1: 0.5, 2: 0.5}] * 5)
    last = older(gpu, [1, 2], *[{1: 0.5, 2: 0.5}] * 5)
    got = active(last, before)

    assert got[1] / sum(got.values()) == pytest.approx(2 / 3, abs=0.05)
    assert methods(last) & {"fingerprint", "sm_time", "power"} == {"power"}
    assert all(0 < (use.energy_share_error or 0) < 0.17 for use in last.processes)
    assert {dict(learned.workload)["signals"] for learned in last.learned} == {"power"}


def test_strict_books_no_estimate_by_power() -> None:
    """As with GPM."""
    gpu = Shared({1: (MATMUL, 500_000), 2: (DECODE, 250_000)}, Books(policy=Policy(strict=True)))
    older(gpu, [1], {}, {}, *[{1: 1.0}] * 6)

    last = older(gpu, [1, 2], *[{1: 0.5, 2: 0.5}] * 5)

    assert not any(active(last).values())
    assert [use.energy_share_error for use in last.processes] == [None, None]


def test_no_power_method_if_sm_time_is_chosen() -> None:
    """--energy.method=sm_time is SM time on all GPUs."""
    gpu = Shared({1: (MATMUL, 500_000), 2: (DECODE, 250_000)}, Books(policy=Policy(method="sm_time")))

    last = older(gpu, [1, 2], *[{1: 0.5, 2: 0.5}] * 5)

    assert "power" not in methods(last)


def test_a_stranger_that_pauses_gets_nothing_meanwhile() -> None:
    """A fifth of each second it works beside a known process: the slots in which it did not are the known one's."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 570_000)})
    gpu.alone(1, 20)
    alone, both = gpu.activity({1: 1.0}), gpu.activity({1: 0.5, 2: 0.5})
    before = last = gpu.tick([1, 2], {1: 1.0})
    for _ in range(10):
        made = gpu.made([1, 2], {1: 0.9, 2: 0.1}, {1: 90, 2: 10}, slots=tuple(map(Slot, [alone] * 4 + [both])))
        before, last = last, gpu.books.book(made)
    got = active(last, before)

    assert got[2] / sum(got.values()) == pytest.approx(0.1, abs=0.02)


def test_clients_of_mps_are_told_apart_by_activity() -> None:
    """Samples name only the server. Both clients were alone with it before; one copies, one multiplies."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    gpu.world.mps_servers[4] = "root"
    for pid in (1, 2):
        gpu.tick([4, pid], {})
        for _ in range(6):
            gpu.tick([4, pid], {pid: 1.0}, {4: 99})
    before = last = gpu.tick([4, 1, 2], {1: 0.8, 2: 0.2}, {4: 99})
    for _ in range(4):
        before, last = last, gpu.tick([4, 1, 2], {1: 0.8, 2: 0.2}, {4: 99})
    got = active(last, before)

    assert got[4] == 0
    assert got[1] / sum(got.values()) == pytest.approx(0.8 * 570 / (0.8 * 570 + 0.2 * 360), abs=0.05)
    assert {method for use in last.processes for method, _ in use.energy_mj if use.resident.pid < 4} >= {"mps"}


def test_unknown_clients_of_mps_have_equal_parts_and_a_wide_error() -> None:
    """Nothing tells them apart: the deviation of any split is 0.289."""
    gpu = Shared({1: (MATMUL, 450_000), 2: (COPY, 300_000)})
    gpu.world.mps_servers[4] = "root"
    gpu.tick([4, 1], {})
    gpu.tick([4, 1], {})
    for _ in range(5):
        made = gpu.made([4, 1, 2], {1: 0.8, 2: 0.2}, {4: 99}, power_limit_mw=700_000)
        last = gpu.books.book(made)
    got, errors = active(last), {use.resident.pid: use.energy_share_error for use in last.processes}

    assert got[1] == pytest.approx(got[2], abs=5)
    assert errors == {4: None, 1: pytest.approx(any_split(2), abs=0.02), 2: errors[1]}


@pytest.mark.parametrize("known", [0.96, 0.3, 0.04])
def test_a_known_client_that_explains_the_activity_has_it(known: float) -> None:
    """Another client did 2 %, which the known one may have done as well: it has next to nothing.

    The likelihood of an exact explanation is so much higher that the published error is too small for this.
    """
    gpu = Shared({1: (MATMUL, 450_000), 2: (MATMUL, 450_000)})
    gpu.world.mps_servers[4] = "root"
    gpu.tick([4, 1], {})
    gpu.tick([4, 1], {})
    for _ in range(7):
        gpu.tick([4, 1], {1: 1.0}, {4: 99})
    busy = {4: round(100 * (known + 0.02))}
    before = last = gpu.tick([4, 1, 2], {1: known, 2: 0.02}, busy)
    for _ in range(4):
        before, last = last, gpu.tick([4, 1, 2], {1: known, 2: 0.02}, busy)
    got = active(last, before)

    errors = {use.resident.pid: use.energy_share_error or 0.0 for use in last.processes}
    assert got[2] < 0.03 * got[1]
    assert errors[1] == errors[2] > 0


def test_a_behaviour_never_seen_is_believed_less() -> None:
    """Known as a copy, it now multiplies beside another: the samples decide, for the activity is not explained."""
    gpu = Shared({1: (COPY, 400_000), 2: (DECODE, 400_000)})
    gpu.alone(1)
    gpu.alone(2)
    gpu.shapes[1] = (MATMUL, 400_000)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50})[1] == pytest.approx(0.5, abs=0.15)


def test_a_known_change_of_behaviour_is_seen() -> None:
    """Training and evaluation were both seen alone: whichever it does beside another, its share is right."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (DECODE, 520_000)})
    gpu.alone(1)
    gpu.alone(2)
    gpu.shapes[1] = (COPY, 360_000)
    gpu.alone(1)

    evaluating = share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50})
    gpu.shapes[1] = (MATMUL, 570_000)
    training = share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50})

    assert evaluating[1] == pytest.approx(360 / 880, abs=0.06)
    assert training[1] == pytest.approx(570 / 1090, abs=0.06)


def test_a_restarted_process_is_known() -> None:
    """The same program under another pid, that was never alone itself."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000), 4: (COPY, 360_000)})
    gpu.alone(1)
    gpu.alone(2)
    gpu.world.names[4] = "two"

    assert share(gpu, [1, 4], {1: 0.5, 4: 0.5}, {1: 20, 4: 80})[1] == pytest.approx(570 / 930, abs=0.04)


def test_learns_beside_one_that_waits() -> None:
    """Another is there and does nothing: what is observed is that of the one that works, and kept when both leave."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    for pid in (1, 2):
        for _ in range(26):
            last = gpu.tick([1, 2], {pid: 1.0})
        gpu.tick([1, 2], {})

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80})[1] == pytest.approx(570 / 930, abs=0.04)
    for _ in range(2):
        last = gpu.tick([3], {})
    tensor = {dict(learned.workload)["process_name"]: dict(learned.activity)["tensor"] for learned in last.learned}
    assert tensor == {"one": pytest.approx(MATMUL[2] / 100, abs=0.05), "two": pytest.approx(0, abs=0.05)}


def test_a_failure_on_one_gpu_leaves_the_books_of_others_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU before it was booked already: its energy is with its process."""
    gpu, energy_mj = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)}), 0

    def book(pids: list[int]) -> Tick:
        nonlocal energy_mj
        energy_mj += 300_000
        other = Reading(Device(1, "GPU-1"), energy_mj=energy_mj, residents=(Resident(3, "compute"),))
        (reading,) = gpu.made(pids, dict.fromkeys(pids, 0.5)).readings
        return gpu.books.book(gpu.world.around(other, reading))

    book([1, 2])
    with monkeypatch.context() as patched:
        patched.setattr(Model, "step", lambda *_: 1 / 0)
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                book([1, 2])
    last = book([1, 2])

    assert {uuid: account.residual_mj for uuid, account in last.accounts.items()} == {"GPU-0": 0, "GPU-1": 0}


def test_a_process_that_stopped_gets_little_and_then_nothing() -> None:
    """With a good fingerprint of the same shape as the working process: only the samples tell that it stopped.

    Those of its last second are forgotten with a time constant of 30 s, and are noise below LEAST_PART of all samples:
    after 12 s its share is less than a tenth, and after a minute it is 0.
    """
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000)})
    gpu.alone(1)
    gpu.alone(2)
    gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    ticks = [gpu.tick([1, 2], {1: 1.0}) for _ in range(62)]

    assert active(ticks[12], ticks[11])[2] < 0.1 * 570_000
    assert active(ticks[61], ticks[60])[2] == 0


def clocks(mhz: int | None) -> dict[str, Any]:
    """Fields of a reading: the SM clock of an H200; None if the driver does not report it."""
    return {} if mhz is None else {"clocks_mhz": (("sm", mhz),), "max_clocks_mhz": (("sm", 1980),)}


NAN = float("nan")
PLAIN = Activity(sm_pct=90.0, occupancy_pct=40.0, tensor_pct=40.0, dram_pct=40.0)
ODD = {
    "NaN in one": (Slot(PLAIN), Slot(Activity(sm_pct=NAN)), Slot(PLAIN)),
    "NaN in all": (Slot(Activity(sm_pct=50.0, dram_pct=NAN)),) * 3,
    "nothing measured": (Slot(Activity()),) * 3,
    "one not measured": (Slot(Activity()), Slot(PLAIN)),
    "of the same time": (Slot(PLAIN, ended_ms=400),) * 5,
    "out of order": (Slot(PLAIN, ended_ms=0), Slot(PLAIN, ended_ms=800), Slot(PLAIN, ended_ms=10**7)),
    "after the reading": (Slot(PLAIN, ended_ms=-400),) * 5,
    "many": (Slot(PLAIN),) * 200,
    "no clock": (Slot(PLAIN, sm_clock_mhz=0), Slot(PLAIN, sm_clock_mhz=10)),
    "negative": (Slot(Activity(sm_pct=-5.0, dram_pct=-100.0)), Slot(PLAIN)),
    "only negative": (Slot(Activity(sm_pct=-50.0)), Slot(Activity(sm_pct=50.0))),
    "more than everything": (Slot(Activity(sm_pct=1e9, tensor_pct=1e9)),) * 5,
    "power without use": (Slot(Activity(), power_mw=400_000, utilization_pct=0),) * 5,
    "negative power": (Slot(Activity(), power_mw=-400_000, utilization_pct=100),) * 5,
    "power in one": (NO_POWER, Slot(Activity(), power_mw=300_000, utilization_pct=50)),
}


def totals(tick: Tick) -> dict[tuple[int, str], int]:
    """By pid and method; the books are balanced to the millijoule."""
    account = tick.accounts["GPU-0"]
    assert account.residual_mj == 0
    assert parts_mj(tick, "GPU-0") == account.energy_mj
    assert all(0 <= (use.energy_share_error or 0) <= 1 for use in tick.processes)
    return {(use.resident.pid, method): mj for use in tick.processes for method, mj in use.energy_mj}


def falls(before: Mapping[tuple[int, str], int], after: Mapping[tuple[int, str], int]) -> list[tuple[int, str]]:
    """Counters that are lower than before, or gone."""
    return [key for key, mj in before.items() if after.get(key, 0) < mj]


@pytest.mark.parametrize("limit_mw", [None, 0, 700_000])
@pytest.mark.parametrize("gpm", [True, False])
@pytest.mark.parametrize("slots", ODD.values(), ids=ODD)
def test_odd_slots_leave_the_books_balanced(slots: tuple[Slot, ...], limit_mw: int | None, *, gpm: bool) -> None:
    """In the middle of a shared load, with a power limit or without: nothing raises, and no counter falls."""
    gpu, before = Shared({1: (MATMUL, 450_000), 2: (COPY, 300_000)}), dict[tuple[int, str], int]()
    gpu.alone(1, 3)
    for second in range(12):
        more: dict[str, Any] = {"slots": slots} if 3 <= second < 6 else {}
        made = gpu.made([1, 2], HALVES, power_limit_mw=limit_mw, **more, **({} if gpm else {"activity": None}))
        after = totals(gpu.books.book(made))
        assert not falls(before, after)
        before = after

    assert before[1, "fingerprint" if gpm else "sm_time"] > 0


def test_a_gpu_recovers_from_odd_slots() -> None:
    """Three seconds of values that no GPU can have, next to programs that were alone: their shares are right at once.

    Programs that are known from times alone are not learned from slots with others.
    """
    gpu = Shared({1: (MATMUL, 450_000), 2: (COPY, 300_000)})
    gpu.alone(1)
    gpu.alone(2)
    for _ in range(3):
        gpu.books.book(gpu.made([1, 2], HALVES, slots=ODD["more than everything"]))

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50}, 2)[1] == pytest.approx(450 / 750, abs=0.02)


@pytest.mark.parametrize("late_s", [0, 1, 3, 20, -1])
@pytest.mark.parametrize("times", [1, 2])
def test_samples_that_come_late_or_twice(late_s: int, times: int) -> None:
    """No work is counted twice, and the books balance: late samples belong to an interval that is booked already."""
    gpu, before = Shared({1: (MATMUL, 450_000), 2: (COPY, 300_000)}), dict[tuple[int, str], int]()
    for _ in range(10):
        made = gpu.made([1, 2], HALVES, slots=tuple(Slot(PLAIN, ended_ms=800 - 200 * i) for i in range(5)))
        (reading,) = made.readings
        samples = [
            replace(sample, timestamp_us=sample.timestamp_us - late_s * 1_000_000) for sample in reading.samples or ()
        ]
        booked = gpu.books.book(replace(made, readings=(replace(reading, samples=tuple(samples * times)),)))
        after = totals(booked)
        assert not falls(before, after)
        assert sum(use.busy_ns or 0 for use in booked.processes) <= 11 * 10**9
        before = after


@pytest.mark.parametrize("by_slot", [True, False])
def test_an_sm_clock_that_halves(*, by_slot: bool) -> None:
    """At the power limit, in the middle of a shared load: books balance, and both processes still pay."""
    gpu, before = Shared({1: (MATMUL, 450_000), 2: (COPY, 300_000)}), dict[tuple[int, str], int]()
    gpu.alone(1)
    gpu.alone(2)
    for second in range(16):
        mhz = 1980 if second < 8 else 990
        more = clocks(1980 if by_slot else mhz)
        if by_slot:
            more["slots"] = tuple(Slot(gpu.activity(HALVES), mhz, ended_ms=800 - 200 * i) for i in range(5))
        after = totals(gpu.books.book(gpu.made([1, 2], HALVES, **more)))
        assert not falls(before, after)
        if second > 1:
            got = [after[pid, "fingerprint"] - before.get((pid, "fingerprint"), 0) for pid in (1, 2)]
            assert min(got) > 0.2 * sum(got)
        before = after


def test_the_order_of_samples_is_irrelevant_for_slots() -> None:
    """Three samples at the end of a slot that has room for two and a half: the driver's order must not decide."""
    results = []
    for order in ([0, 1, 2], [2, 1, 0]):
        gpu = Shared({1: (MATMUL, 450_000), 2: (COPY, 300_000), 3: (DECODE, 250_000)})
        slots = (Slot(gpu.activity({1: 0.5})), Slot(gpu.activity({2: 1.0})))
        for _ in range(4):
            made = gpu.made([1, 2, 3], {1: 0.3, 2: 0.3, 3: 0.4}, slots=slots)
            (reading,) = made.readings
            samples = reading.samples or ()
            last = gpu.books.book(replace(made, readings=(replace(reading, samples=tuple(samples[i] for i in order)),)))
        results.append(totals(last))

    assert results[0] == results[1]


SHAPE = st.tuples(*[st.floats(0, 100)] * 4)
AMOUNTS = st.dictionaries(st.integers(1, 4), st.floats(0, 1), max_size=4)
MHZ = st.none() | st.sampled_from([0, 300, 1400, 1980])
PCT = st.sampled_from([None, NAN, 0.0, 100.0]) | st.floats(-10, 1000)
SLOTS = st.lists(
    st.builds(
        Slot,
        st.builds(Activity, sm_pct=PCT, tensor_pct=PCT, dram_pct=PCT),
        sm_clock_mhz=MHZ,
        power_mw=st.none() | st.integers(0, 10**6),
        ended_ms=st.sampled_from([0, 0, 200, 800, 5000]),
        utilization_pct=st.none() | st.integers(0, 100),
        memory_utilization_pct=st.none() | st.integers(0, 100),
    ),
    max_size=4,
)
MEASURED = st.fixed_dictionaries(
    {"slots": SLOTS.map(tuple), "power_limit_mw": st.sampled_from([None, 700_000])},
    optional={"activity": st.none() | st.builds(Activity, sm_pct=PCT)},
)
"""Beyond the clock."""
LATE_US = st.sampled_from([0, 0, 300_000, 3_000_000])
STEPS = st.lists(
    st.tuples(AMOUNTS, st.dictionaries(st.integers(1, 3), st.integers(0, 100)), MHZ, MEASURED, LATE_US),
    min_size=1,
    max_size=8,
)


@settings(max_examples=37)
@given(
    st.fixed_dictionaries({pid: st.tuples(SHAPE, st.integers(0, 600_000)) for pid in (1, 2, 3, 4)}),
    st.tuples(st.sets(st.integers(1, 4)), MHZ),
    STEPS,
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_always_true_with_fingerprints(shapes: Any, alone: Any, steps: Any, apart: bool, random: Random) -> None:
    """Parts add up to the GPU, no total falls, a process without work gets nothing, and order is irrelevant.

    With several slots, that of samples is not: test_the_order_of_samples_is_irrelevant_for_slots.
    """
    policy = Policy(parked_apart=apart)
    known, mhz_alone = alone
    one, other = Shared(shapes, Books(policy=policy)), Books(policy=policy)
    gpu = Shared(shapes, world=one.world, books=one.books)
    for pid in sorted(known):
        for amounts in ({}, {}, *[{pid: 1.0}] * 5, {pid: 0.5}):
            made = gpu.made([pid], amounts, **clocks(mhz_alone))
            one.books.book(made)
            other.book(made)
    before: dict[tuple[int, str], int] = {}
    for amounts, samples, mhz, measured, late_us in steps:
        tick = gpu.made([1, 2, 3, 4], amounts, samples, **clocks(mhz), **measured)
        (reading,) = tick.readings
        late = [replace(sample, timestamp_us=sample.timestamp_us - late_us) for sample in reading.samples or ()]
        reading = replace(reading, samples=tuple(late))
        tick = replace(tick, readings=(reading,))
        shuffled = replace(
            reading,
            residents=tuple(random.sample(reading.residents or (), 4)),
            samples=tuple(random.sample(late, len(late))),
        )
        booked, same = one.books.book(tick), other.book(replace(tick, readings=(shuffled,)))
        now = totals(booked)
        assert not falls(before, now)
        assert now == {(use.resident.pid, method): mj for use in same.processes for method, mj in use.energy_mj}
        if 4 not in known:  # no sample ever named it
            assert active(booked)[4] == 0
        before = now
