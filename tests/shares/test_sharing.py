"""Energy of a shared GPU by fingerprints: on made-up processes whose shares are known."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import Device, ProcessUse, Reading, Resident, Slot, Tick
from gpuledger.shares.sharing import Sharing
from tests.shares.sharedgpu import COPY, DECODE, MATMUL, Shared


def active(tick: Tick, before: Tick | None = None) -> dict[int, int]:
    """By pid, energy above parked power, since a tick before."""
    found = {use.resident.pid: _active(use) for use in tick.processes}
    was = {} if before is None else {use.resident.pid: _active(use) for use in before.processes}
    return {pid: mj - was.get(pid, 0) for pid, mj in found.items()}


def _active(use: ProcessUse) -> int:
    return sum(mj for method, mj in use.energy_mj if method not in ("parked", "exclusive", "edge"))


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
    """Activity does not tell two similar ones apart. A fair share is likely, and the published error is large."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000)})
    gpu.alone(1)
    gpu.alone(2)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 30, 2: 70})[1] == pytest.approx(0.35, abs=0.03)
    last = gpu.tick([1, 2], {1: 0.5, 2: 0.5}, {1: 30, 2: 70})
    assert all((use.energy_share_error or 0) > 0.12 for use in last.processes)


def test_samples_above_the_time_alone_are_noise() -> None:
    """A process had the engine for a tenth of the time alone: next to its twin, samples of a fifth count little."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000)})
    gpu.alone(1, amount=0.1)
    gpu.alone(2)

    assert share(gpu, [1, 2], {1: 0.1, 2: 0.9}, {1: 20, 2: 80}, 20)[1] == pytest.approx(0.11, abs=0.02)


def test_little_work_alone_does_not_limit_a_bill() -> None:
    """A process that hides its work while it is alone pays for what it does next to others, but for noise."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000), 3: (COPY, 360_000)})
    gpu.alone(1, amount=0.1)
    gpu.alone(2)
    gpu.alone(3)

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 50, 2: 50}, 20)[1] > 0.47
    assert share(gpu, [1, 3], {1: 0.5, 3: 0.5}, {1: 50, 3: 50}, 20)[1] == pytest.approx(570 / 930, abs=0.04)


@pytest.mark.parametrize(
    ("work", "least"), [((COPY, 360_000), 0.35), ((MATMUL, 570_000), 0.4)], ids=["other work", "the same work"]
)
def test_many_workers_pay_for_what_their_program_did_not_do_alone(work: tuple[Any, int], least: float) -> None:
    """Eight workers with 6 % each, which the samples of one cannot tell from the 1 % of their program alone."""
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
    """Without any fingerprint: SM time of the last seconds, drawn towards equal parts; the method says so."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})

    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80})[1] == pytest.approx(0.22, abs=0.03)
    last = gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    assert {method for use in last.processes for method, _ in use.energy_mj} == {"sm_time"}


def test_by_samples_without_activity() -> None:
    """Before Hopper there is no GPM."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    gpu.alone(1)
    gpu.alone(2)
    for _ in range(4):
        last = gpu.books.book(gpu.made([1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80}, activity=None))

    methods = {method for use in last.processes for method, _ in use.energy_mj}
    assert "sm_time" in methods
    assert "fingerprint" not in methods


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


def test_behaviours_of_a_client_are_not_counted_twice() -> None:
    """One client was observed in two behaviours, the other in one; together they have equal parts all the same."""
    gpu = Shared({1: (MATMUL, 300_000), 2: (MATMUL, 300_000)})
    gpu.world.mps_servers[4] = "root"
    for pid, shapes in ((1, [MATMUL]), (2, [MATMUL, COPY])):
        for shape in shapes:
            gpu.shapes[pid] = (shape, 300_000)
            for _ in range(7):
                gpu.tick([4, pid], {pid: 1.0}, {4: 99})
    gpu.shapes[2] = (MATMUL, 300_000)
    before = last = gpu.tick([4, 1, 2], {1: 0.5, 2: 0.5}, {4: 99})
    for _ in range(3):
        before, last = last, gpu.tick([4, 1, 2], {1: 0.5, 2: 0.5}, {4: 99})
    got = active(last, before)

    assert got[1] / sum(got.values()) == pytest.approx(0.5, abs=0.15)


def test_unknown_clients_of_mps_have_equal_parts_and_a_wide_error() -> None:
    """Nothing tells them apart."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    gpu.world.mps_servers[4] = "root"
    before = last = gpu.tick([4, 1, 2], {1: 0.8, 2: 0.2}, {4: 99})
    for _ in range(3):
        before, last = last, gpu.tick([4, 1, 2], {1: 0.8, 2: 0.2}, {4: 99})
    got = active(last, before)

    assert got[1] == pytest.approx(got[2], abs=1)
    assert {use.resident.pid: use.energy_share_error for use in last.processes} == {4: None, 1: 0.289, 2: 0.289}


@pytest.mark.parametrize(("known", "least", "most"), [(0.96, 0.02, 0.05), (0.3, 0.06, 0.15), (0.04, 0.3, 1.0)])
def test_a_known_client_explains_the_activity_but_not_for_certain(known: float, least: float, most: float) -> None:
    """Another client did 2 %, which the known one may have done as well: it gets nothing, and the error says so."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000)})
    gpu.world.mps_servers[4] = "root"
    for _ in range(7):
        gpu.tick([4, 1], {1: 1.0}, {4: 99})
    before = last = gpu.tick([4, 1, 2], {1: known, 2: 0.02}, {4: 99})
    for _ in range(3):
        before, last = last, gpu.tick([4, 1, 2], {1: known, 2: 0.02}, {4: 99})
    got = active(last, before)

    errors = {use.resident.pid: use.energy_share_error or 0.0 for use in last.processes}
    assert got[2] == 0
    assert least < errors[1] == errors[2] < most


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
    """Another is there and does nothing: what is seen is that of the one that works."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    for pid in (1, 2):
        for _ in range(26):
            last = gpu.tick([1, 2], {pid: 1.0})
        gpu.tick([1, 2], {})

    assert len(last.learned) == 2
    assert share(gpu, [1, 2], {1: 0.5, 2: 0.5}, {1: 20, 2: 80})[1] == pytest.approx(570 / 930, abs=0.04)


def test_learns_what_was_seen_before_another_began() -> None:
    """Another begins after 7 s, and the activity changes: it did nothing before."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    for _ in range(7):
        assert gpu.tick([1, 2], {1: 1.0}).learned == ()
    for _ in range(2):
        last = gpu.tick([1, 2], {1: 0.5, 2: 0.5})

    (learned,) = last.learned
    assert learned.behaviours[0].seconds == 5


def test_does_not_learn_the_second_in_which_another_began() -> None:
    """It began before its first sample; the activity of that second differs from the second before."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    for _ in range(6):
        gpu.tick([1, 2], {1: 1.0})
    gpu.tick([1, 2], {1: 0.8, 2: 0.2}, {1: 99})
    for _ in range(2):
        last = gpu.tick([1, 2], {1: 0.5, 2: 0.5})

    (learned,) = last.learned
    assert learned.behaviours[0].seconds == 4


def test_does_not_learn_beside_one_whose_samples_come_late() -> None:
    """Both work, the samples name only one of them for 9 s: what was seen then was not of that one."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    for _ in range(9):
        gpu.tick([1, 2], {1: 0.5, 2: 0.5}, {1: 99})
    for _ in range(12):
        last = gpu.tick([1, 2], {1: 0.5, 2: 0.5}, {2: 99})

    assert last.learned == ()


def test_does_not_learn_right_after_another_left() -> None:
    """The energy counter and the samples lag a little: the first second alone may hold some of the other's."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (COPY, 360_000)})
    gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    gpu.tick([1], {1: 1.0})
    assert gpu.tick([1], {1: 1.0}).learned == ()

    (learned,) = gpu.tick([1], {1: 1.0}).learned

    assert learned.behaviours[0].seconds == 1


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
        patched.setattr(Sharing, "_sampled_shares", lambda *_, **__: 1 / 0)
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                book([1, 2])
    last = book([1, 2])

    assert {uuid: account.residual_mj for uuid, account in last.accounts.items()} == {"GPU-0": 0, "GPU-1": 0}


def test_a_process_that_stopped_long_ago_gets_nothing() -> None:
    """With a good fingerprint of the same shape as the working process: ten seconds without a sample mean no work."""
    gpu = Shared({1: (MATMUL, 570_000), 2: (MATMUL, 570_000)})
    gpu.alone(1)
    gpu.alone(2)
    gpu.tick([1, 2], {1: 0.5, 2: 0.5})
    for _ in range(12):
        before = gpu.tick([1, 2], {1: 1.0})

    last = gpu.tick([1, 2], {1: 1.0})

    assert active(last, before)[2] == 0


def clocks(mhz: int | None) -> dict[str, Any]:
    """Fields of a reading: the SM clock of an H200; None if the driver does not report it."""
    return {} if mhz is None else {"clocks_mhz": (("sm", mhz),), "max_clocks_mhz": (("sm", 1980),)}


SHAPE = st.tuples(*[st.floats(0, 100)] * 4)
AMOUNTS = st.dictionaries(st.integers(1, 4), st.floats(0, 1), max_size=4)
MHZ = st.none() | st.sampled_from([0, 300, 1400, 1980])
STEPS = st.lists(
    st.tuples(AMOUNTS, st.dictionaries(st.integers(1, 3), st.integers(0, 100)), MHZ), min_size=1, max_size=8
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
    """Parts add up to the GPU, no total falls, a process without work gets nothing, and order is irrelevant."""
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
    for amounts, samples, mhz in steps:
        tick = gpu.made([1, 2, 3, 4], amounts, samples, **clocks(mhz))
        (reading,) = tick.readings
        shuffled = replace(
            reading,
            residents=tuple(random.sample(reading.residents or (), 4)),
            samples=tuple(random.sample(reading.samples or (), len(reading.samples or ()))),
        )
        booked, same = one.books.book(tick), other.book(replace(tick, readings=(shuffled,)))
        account = booked.accounts.get(booked.readings[0].device.uuid)
        assert account is not None
        assert account.residual_mj == 0
        now = {(use.resident.pid, method): mj for use in booked.processes for method, mj in use.energy_mj}
        assert all(mj >= before.get(key, 0) for key, mj in now.items())
        assert now == {(use.resident.pid, method): mj for use in same.processes for method, mj in use.energy_mj}
        assert all(0 <= (use.energy_share_error or 0) <= 1 for use in booked.processes)
        if 4 not in known:  # no sample ever named it
            assert active(booked)[4] == 0
        before = now
