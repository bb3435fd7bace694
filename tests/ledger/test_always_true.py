"""What is always true of the books, for any ticks: resets, gaps, failures, reused pids, missing lists and samples."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import Device, Tick
from tests.builders import (
    CUT,
    GPU,
    KEEP,
    MOST,
    POLICIES,
    World,
    accounts,
    never_falls,
    parts_mj,
    published,
    sequences,
)


@settings(max_examples=30)
@given(sequences() | sequences(may_stick=True), POLICIES, KEEP, MOST)
def test_parts_and_accounts_are_the_device(
    steps: list[tuple[Tick, int | None]], policy: Policy, keep_ns: int, most: int | None
) -> None:
    """After every tick, to the millijoule, from what is published alone; so no joule can be counted twice."""
    books = Books(max_containers=most, policy=policy, keep_ns=keep_ns)
    for tick, _ in steps:
        booked = books.book(tick)
        assert most is None or len({use for use in booked.containers if use.owner.container_id}) <= most
        for uuid, account in accounts(booked).items():
            assert parts_mj(booked, uuid) == (account.energy_mj or 0)
            assert account.residual_mj == 0


@settings(max_examples=30)
@given(sequences(), POLICIES)
def test_nothing_is_lost_or_invented(steps: list[tuple[Tick, int | None]], policy: Policy) -> None:
    """The device's total is what its counter counted, whatever failed: all of it once two good ticks have passed.

    A counter that falls or jumps is believed after two more readings; one that falls and comes back did not fall.
    """
    books = Books(policy=policy)
    now_ns, counted = 0, None
    cut_mj, cut_counted_mj = 0, 0
    for tick, counted in steps:
        booked = accounts(books.book(tick))
        now_ns = max(now_ns, tick.time_ns)
        if counted is not None and GPU.uuid in booked:
            check_counted(books, GPU, counted, falls=not never_falls(steps))
        for reading in tick.readings:
            if reading.device == CUT and reading.energy_mj is not None:
                cut_counted_mj += reading.energy_mj - (cut_mj if reading.energy_mj >= cut_mj else 0)
                cut_mj = reading.energy_mj
                check_counted(books, CUT, cut_counted_mj, falls=not never_falls(steps, CUT))
    if counted is None:
        return
    before_mj = booked_mj(books, GPU)
    counter = books._energy.ledgers[GPU.uuid]._state.meter.counter_mj
    world = World(now_ns, counter)
    for _ in range(3):
        last = accounts(books.book(world.tick(9, mj=7000)))[GPU.uuid]
    assert last.energy_mj == before_mj + 21_000


@settings(max_examples=30)
@given(sequences(may_stick=True), POLICIES)
def test_a_stuck_counter_is_replaced_by_power(steps: list[tuple[Tick, int | None]], policy: Policy) -> None:
    """Counter <= booked energy <= counter + power x time, if the counter never falls."""
    books = Books(policy=policy)
    most_mw, last_ns, power_mj = 0, None, 0
    for tick, counted in steps:
        books.book(tick)
        reading = next((r for r in tick.readings if r.device == GPU and r.up), None)
        if reading is None or reading.energy_mj is None:
            continue
        most_mw = max(most_mw, reading.power_mw or 0)
        power_mj += 0 if last_ns is None else max(0, tick.time_ns - last_ns) * most_mw // 10**9 + 1
        last_ns = tick.time_ns
        is_doubtful = books._energy.ledgers[GPU.uuid]._state.meter.suspect_mj is not None
        assert counted is not None
        if never_falls(steps):
            assert is_doubtful or counted <= booked_mj(books, GPU)
            assert booked_mj(books, GPU) <= counted + power_mj


def check_counted(books: Books, device: Device, counted_mj: int, *, falls: bool) -> None:
    """All that was counted is booked, unless the last reading is not believed yet; never more."""
    is_doubtful = books._energy.ledgers[device.uuid]._state.meter.suspect_mj is not None
    known_mj = booked_mj(books, device)
    assert known_mj <= counted_mj if falls or is_doubtful else known_mj == counted_mj


def booked_mj(books: Books, device: Device) -> int:
    """What a GPU's books say it used, with the interval that is not closed yet."""
    ledger = books._energy.ledgers[device.uuid]
    assert ledger._open is not None
    return ledger._state.energy_mj + ledger._open.energy_mj


@settings(max_examples=30)
@given(sequences() | sequences(may_stick=True), POLICIES, KEEP, MOST)
def test_nothing_falls_and_nothing_is_negative(
    steps: list[tuple[Tick, int | None]], policy: Policy, keep_ns: int, most: int | None
) -> None:
    """Every counter of every GPU, process and container, as long as it is there."""
    books = Books(max_containers=most, policy=policy, keep_ns=keep_ns)
    before: dict[object, int] = {}
    for tick, _ in steps:
        now = counters(books, books.book(tick))
        assert all(value >= before.get(key, 0) for key, value in now.items())
        gone = {key for key in before if isinstance(key, tuple) and key[0] == "gpu" and key not in now}
        before = now | {key: before[key] for key in gone}


def counters(books: Books, tick: Tick) -> dict[object, int]:
    """All that only rises."""
    found: dict[object, int] = {}
    for uuid, account in accounts(tick).items():
        found["gpu", uuid, "energy"] = account.energy_mj or 0
        found["gpu", uuid, "idle"] = account.idle_mj
        found["gpu", uuid, "retired"] = account.retired_mj
        found["gpu", uuid, "busy"] = account.busy_ns or 0
        found["gpu", uuid, "in use"] = account.in_use_ns
        found |= {("gpu", uuid, reason): mj for reason, mj in account.unattributed_mj}
    for row in books._rows.all():
        found |= {("process", row.number, method): mj for method, mj in row.energy_mj.items()}
        found["process", row.number] = row.busy_ns or 0
    for use in tick.containers:
        found |= {(use.owner.container_id, use.device.uuid, method): mj for method, mj in use.energy_mj}
        found[use.owner.container_id, use.device.uuid] = use.busy_ns or 0
    return found


@settings(max_examples=20)
@given(sequences(), POLICIES, st.randoms(use_true_random=False))
def test_order_does_not_matter(steps: list[tuple[Tick, int | None]], policy: Policy, random: Random) -> None:
    """Neither that of processes, nor that of samples, nor that of GPUs."""
    one, other = Books(policy=policy), Books(policy=policy)
    for tick, _ in steps:
        readings = [
            replace(
                reading,
                residents=reading.residents and tuple(random.sample(reading.residents, len(reading.residents))),
            )
            for reading in tick.readings
        ]
        random.shuffle(readings)
        first, second = one.book(tick), other.book(replace(tick, readings=tuple(readings)))
        assert accounts(first) == accounts(second)
        assert published(first) == published(second)


@settings(max_examples=20)
@given(sequences(), KEEP, MOST)
def test_series_are_unique(steps: list[tuple[Tick, int | None]], keep_ns: int, most: int | None) -> None:
    """No two rows of a process and device, or of a container and device: their labels would be the same."""
    books = Books(max_containers=most, keep_ns=keep_ns)
    for tick, _ in steps:
        booked = books.book(tick)
        places = [(use.resident.pid, use.device.uuid) for use in booked.processes]
        groups = [(use.owner.container_id, use.device.uuid) for use in booked.containers]
        assert len(set(places)) == len(places)
        assert len(set(groups)) == len(groups)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=20), st.booleans())
def test_one_process_alone_is_the_counter(rises: list[int], strict: bool) -> None:
    """From its first to its last tick, to the millijoule, and as the only method that is a measurement."""
    books, world = Books(policy=Policy(strict=strict)), World()
    books.book(world.tick(7))
    for mj in rises:
        booked = books.book(world.tick(7, mj=mj, work={7: 50}))

    assert dict(booked.processes[0].energy_mj) == ({"exclusive": sum(rises)} if any(rises) else {})


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=10))
def test_a_waiting_process_gets_no_active_energy(steps: list[tuple[int, int, int]]) -> None:
    """Process 3 waits beside two working processes: it gets its part of the parked power and not a millijoule more."""
    books, world = Books(), World()
    books.book(world.tick(1, 2, 3))
    for mj, one, two in steps:
        booked = books.book(world.tick(1, 2, 3, mj=mj, work={1: one, 2: two}))
        waiting = booked.processes[2]
        assert waiting.resident.pid == 3
        assert {method for method, _ in waiting.energy_mj} <= {"parked"}


def test_shares_of_sixty_and_forty() -> None:
    """200 J, no parked power known: 120 J and 80 J, not 200 J for each as DCGM would say."""
    books, world = Books(), World()
    books.book(world.tick(1, 2))

    booked = books.book(world.tick(1, 2, mj=200_000, work={1: 60, 2: 40}))

    assert [use.energy_mj for use in booked.processes] == [(("sm_time", 120_000),), (("sm_time", 80_000),)]


@pytest.mark.parametrize("start", [2, None])
def test_a_reused_pid_is_a_new_row(start: int | None) -> None:
    """The new process begins at 0; what the old one used is retired, and stays with its container."""
    books, world = Books(), World(containers={7: "c1"})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=500))
    if start is None:
        books.book(world.tick())  # it left, and nobody can say whether it is the same that comes back
    world.starts[7] = start

    booked = books.book(world.tick(7, mj=0))

    assert [use.energy_mj for use in booked.processes] == [()]
    assert accounts(booked)[GPU.uuid].retired_mj == 500
    assert booked.containers[0].energy_mj == (("exclusive", 500),)
