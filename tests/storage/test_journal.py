"""The journal: books that end anywhere and go on from it lose nothing, double nothing, and guess nothing."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.errors import JournalError
from gpuledger.ledger.split import Policy
from gpuledger.ledger.state import State
from gpuledger.model import Accounting, Device, Driver, Owner, Tick
from gpuledger.storage import journal
from gpuledger.storage.journal import decode, encode
from tests.builders import (
    BOOT,
    GPU,
    KEEP,
    MOST,
    POLICIES,
    START_NS,
    S,
    World,
    account,
    accounts,
    never_falls,
    parts_mj,
    published,
    reopened,
    resumed,
    sequences,
)
from tests.checkout import ROOT

FATES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=12, max_size=12)
"""After each tick: whether the journal is written, and whether the exporter is killed then."""


@settings(max_examples=30)
@given(sequences(), POLICIES, KEEP, FATES)
def test_killed_at_any_point(
    steps: list[tuple[Tick, int | None]], policy: Policy, keep_ns: int, fates: list[tuple[bool, bool]]
) -> None:
    """With a journal of any age: the sums match after every tick, and the device has what its counter counted.

    A counter that was set back between two journals has counted an unknown amount; nothing is booked twice.
    """
    books = Books(policy=policy, keep_ns=keep_ns)
    state: State | None = None
    for (tick, counted), (written, killed) in zip(steps, fates, strict=False):
        booked = books.book(tick)
        for uuid, told in accounts(booked).items():
            assert parts_mj(booked, uuid) == (told.energy_mj or 0)
            assert told.residual_mj == 0
        if any(r.device == GPU and r.energy_mj is not None for r in tick.readings):  # else it catches up later
            assert counted is not None
            ledger = books._energy.ledgers[GPU.uuid]
            assert ledger._open is not None
            known_mj = (account(booked).energy_mj or 0) + ledger._open.energy_mj
            is_doubtful = ledger._state.meter.suspect_mj is not None
            assert known_mj <= counted if is_doubtful or not never_falls(steps) else known_mj == counted
        if written:
            state = decode(encode(books.state(BOOT, tick.time_ns)))
        if state is not None and killed:
            books = resumed(state, tick.time_ns, policy, keep_ns=keep_ns)


@settings(max_examples=30)
@given(sequences() | sequences(may_stick=True), POLICIES, KEEP, MOST, FATES)
def test_nothing_falls(
    steps: list[tuple[Tick, int | None]],
    policy: Policy,
    keep_ns: int,
    most: int | None,
    fates: list[tuple[bool, bool]],
) -> None:
    """When every tick is written before it is shown, no number that was shown is smaller after a restart."""
    books = Books(max_containers=most, policy=policy, keep_ns=keep_ns)
    before: dict[tuple[object, ...], int] = {}
    for (tick, _), (_, killed) in zip(steps, fates, strict=False):
        now = shown(books, books.book(tick))
        assert {key: value for key, value in now.items() if value < before.get(key, 0)} == {}
        gone = {key: value for key, value in before.items() if key[0] == "gpu" and key not in now}
        before = now | gone
        if killed:
            books = reopened(books, tick.time_ns, policy, keep_ns=keep_ns, max_containers=most)


def shown(books: Books, tick: Tick) -> dict[tuple[object, ...], int]:
    """All that only rises, under the names that stay over a restart."""
    found: dict[tuple[object, ...], int] = {}
    for uuid, told in accounts(tick).items():
        numbers = (("energy", told.energy_mj), ("idle", told.idle_mj), ("busy", told.busy_ns), ("use", told.in_use_ns))
        found |= {("gpu", uuid, name): number or 0 for name, number in (*numbers, *told.unattributed_mj)}
        found["gpu", uuid, "retired"] = told.retired_mj
    for row in books._rows.all():
        if row.start_ticks is not None:
            found |= {("row", row.device.uuid, row.pid, row.start_ticks, m): mj for m, mj in row.energy_mj.items()}
    for use in tick.containers:
        found |= {("container", use.owner.container_id, use.device.uuid, method): mj for method, mj in use.energy_mj}
    return found


@settings(max_examples=20)
@given(sequences(), POLICIES)
def test_what_is_written_is_read_again(steps: list[tuple[Tick, int | None]], policy: Policy) -> None:
    """Every field; books that resume from it and are closed at once write the same, except for present processes."""
    books = Books(policy=policy)
    for tick, _ in steps:
        books.book(tick)
        state = books.state(BOOT, tick.time_ns)
        read = decode(encode(state))
        assert read == without_cgroups(state)
        again = resumed(read, tick.time_ns, policy).state(BOOT, tick.time_ns)
        assert again == replace(
            read, rows=tuple(replace(row, active=None if row.active else row.active) for row in read.rows)
        )


def without_cgroups(state: State) -> State:
    """As it is written: long, and read again if the process lives."""
    rows = [replace(row, facts=row.facts and replace(row.facts, cgroup="")) for row in state.rows]
    return replace(state, rows=tuple(rows))


@pytest.mark.parametrize("down_s", [0.5, 2, 3600])
def test_a_process_that_stayed_alone_gets_the_energy(down_s: float) -> None:
    """Before and after, with the same start: all of the counter's rise, by the method `gap`."""
    books, world = Books(), World(containers={7: "c1"})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=500))

    books = reopened(books, world.now_ns)
    booked = books.book(world.tick(7, mj=900, after_s=down_s, samples=False))

    assert booked.processes[0].energy_mj == (("exclusive", 500), ("gap", 900))
    assert booked.containers[0].energy_mj == (("exclusive", 500), ("gap", 900))
    assert account(booked).energy_mj == 1_001_400
    assert account(booked).unattributed_mj == (("before", 1_000_000),)
    booked = books.book(world.tick(7, mj=100))
    assert booked.processes[0].energy_mj == (("exclusive", 600), ("gap", 900))


def test_what_was_used_after_the_last_writing_is_not_lost() -> None:
    """The counter's rise since the journal's reading has it, whatever the killed books had made of it."""
    books, world = Books(), World()
    books.book(world.tick(7))
    state = books.state(BOOT, world.now_ns)
    books.book(world.tick(7, mj=500))

    booked = resumed(state, world.now_ns).book(world.tick(7, mj=900, samples=False))

    assert booked.processes[0].energy_mj == (("gap", 1400),)
    assert account(booked).energy_mj == 1_001_400


def test_energy_that_was_not_booked_yet_is_carried_along() -> None:
    """A shared interval is open for 0.9 s; what it has so far is in no account, and in the journal."""
    books, world = Books(), World()
    books.book(world.tick(1, 2))
    books.book(world.tick(1, 2, mj=300, after_s=0.2, work={1: 50}))

    booked = reopened(books, world.now_ns).book(world.tick(1, 2, mj=100, samples=False))

    assert account(booked).unattributed_mj == (("before", 1_000_000), ("gap", 400))


NOT_ALONE: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "no process": ((), (), {}),
    "it left": ((7,), (), {}),
    "it came": ((), (7,), {}),
    "another came": ((7,), (7, 8), {}),
    "another left": ((7, 8), (7,), {}),
    "another instead": ((7,), (8,), {}),
    "no list": ((7,), (), {"residents": None}),
    "another has samples": ((7,), (7,), {"work": {8: 0}}),
    "another has an account": ((7,), (7,), {"accounting": (Accounting(8, running=False),)}),
}


@pytest.mark.parametrize("case", NOT_ALONE)
def test_otherwise_the_energy_is_unattributed(case: str) -> None:
    """If no process was alone at both ends, or that is not known."""
    before, after, more = NOT_ALONE[case]
    books, world = Books(), World()
    books.book(world.tick(*before))

    booked = reopened(books, world.now_ns).book(world.tick(*after, mj=900, after_s=20, **more))

    assert dict(account(booked).unattributed_mj) == {"before": 1_000_000, "gap": 900}
    assert parts_mj(booked, GPU.uuid) == account(booked).energy_mj == 1_000_900


def test_strict_books_only_what_was_measured() -> None:
    """The gap was not measured, so its energy is unattributed."""
    books, world = Books(), World()
    books.book(world.tick(7))

    booked = reopened(books, world.now_ns, Policy(strict=True)).book(world.tick(7, mj=900))

    assert dict(account(booked).unattributed_mj) == {"before": 1_000_000, "gap": 900}


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, None), (None, 1), (None, None)])
def test_a_pid_that_may_be_anothers_is_a_new_row(before: int | None, after: int | None) -> None:
    """Unless its start is known, and the same, at both ends; the old row's joules are retired."""
    books, world = Books(), World(starts={7: before})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=500))
    books = reopened(books, world.now_ns)
    world.starts = {7: after}

    booked = books.book(world.tick(7, mj=900))

    assert [use.energy_mj for use in booked.processes] == [()]
    assert account(booked).retired_mj == 500
    assert dict(account(booked).unattributed_mj)["gap"] == 900


@pytest.mark.parametrize(
    ("counter_mj", "reason", "mj"), [(400, "reset", 400), (900_000_000, "jump", 899_000_000), (1_000_000, "", 0)]
)
def test_a_counter_that_went_elsewhere(counter_mj: int, reason: str, mj: int) -> None:
    """A driver that was loaded anew, and a jump, are booked as always; one that stood still as nothing."""
    books, world = Books(), World()
    books.book(world.tick(7, power_limit_mw=700_000))
    books = reopened(books, world.now_ns)
    world.energy_mj = counter_mj

    booked = [books.book(world.tick(7, after_s=10)) for _ in range(3)][-1]

    assert account(booked).unattributed_mj == (("before", 1_000_000), *([(reason, mj)] if reason else []))
    assert account(booked).energy_mj == 1_000_000 + mj


def test_a_gpu_that_answers_late_still_goes_on() -> None:
    """The driver may not be there at the first ticks; nor does another restart in between change anything."""
    books, world = Books(), World()
    books.book(world.tick(7))
    books = reopened(books, world.now_ns)
    world.now_ns += S
    books.book(replace(world.around(), readings=(), driver=Driver(up=False)))
    assert books._rows.all()[0].active is None

    booked = reopened(books, world.now_ns).book(world.tick(7, mj=900, samples=False))

    assert booked.processes[0].energy_mj == (("gap", 900),)


def test_power_is_added_up_from_there() -> None:
    """A GPU without a counter: nothing is known of the time between, and what was added up stays."""
    books, world = Books(), World()
    for _ in range(3):
        books.book(world.tick(7, energy_mj=None, power_mw=100_000))

    books = reopened(books, world.now_ns)
    booked = books.book(world.tick(7, after_s=60, energy_mj=None, power_mw=100_000))

    assert (account(booked).source, account(booked).energy_mj) == ("power", 200_000)
    assert account(books.book(world.tick(7, energy_mj=None, power_mw=100_000))).energy_mj == 300_000


def test_learned_power_and_times_are_kept() -> None:
    """What took minutes to learn; busy and in-use time go on, without the time in which no exporter ran."""
    books, world = Books(), World(containers={1: "c1"})
    books.book(world.tick(1, 2))
    for _ in range(3):
        books.book(world.tick(1, 2, mj=120_000, work={}, utilization_pct=0))
    shown_before = books.book(world.tick(1, 2, mj=300_000, work={1: 50}, utilization_pct=50))

    booked = reopened(books, world.now_ns).book(world.tick(1, 2, after_s=5, utilization_pct=50))

    before, after = account(shown_before), account(booked)
    assert before.parked_power_mw is not None
    names = ("parked_power_mw", "busy_ns", "in_use_ns", "checked_counter_mj")
    assert [getattr(after, name) for name in names] == [getattr(before, name) for name in names]
    assert [use.busy_ns for use in booked.processes] == [use.busy_ns for use in shown_before.processes]
    assert booked.containers[0].busy_ns == booked.processes[0].busy_ns != 0


def test_nothing_is_learned_from_the_time_without_an_exporter() -> None:
    """A GPU that was at rest at both ends may have worked in between, or its counter may have been read late."""
    books, world = Books(), World()
    for _ in range(4):
        before = account(books.book(world.tick(7, mj=120_000, work={}, utilization_pct=0)))

    after = account(reopened(books, world.now_ns).book(world.tick(7, mj=10, work={}, utilization_pct=0, after_s=2)))

    assert before.parked_power_mw == after.parked_power_mw == 120_000


def test_exited_processes_stay_as_long_as_ever() -> None:
    """Only the time with an exporter counts; the same process, listed again after an hour, is the same row."""
    books, world = Books(keep_ns=10 * S), World(containers={7: "c1", 8: "c2"})
    books.book(world.tick(7, 8))
    books.book(world.tick(7, mj=600, work={7: 100}))
    books.book(world.tick(7, mj=100, after_s=5))
    state = books.state(BOOT, world.now_ns)
    world.now_ns += 3600 * S
    books = resumed(state, world.now_ns, keep_ns=10 * S)

    booked = books.book(world.tick(7))
    assert {use.resident.pid: use.active for use in booked.processes} == {7: True, 8: False}
    assert [use.owner.container_id for use in booked.containers] == ["c1", "c2"]
    booked = books.book(world.tick(7, after_s=6))
    assert {use.resident.pid: use.active for use in booked.processes} == {7: True}
    assert parts_mj(booked, GPU.uuid) == account(booked).energy_mj


@pytest.fixture(scope="module")
def state() -> State:
    """A journal of some processes, one of which has left."""
    books, world = Books(), World(containers={1: "c1", 2: "c1"}, names={1: "größe"})
    books.book(world.tick(1, 2, 3))
    books.book(world.tick(1, 2, 3, mj=900, work={1: 50, 2: 20}))
    books.book(world.tick(1, 2, mj=900, work={1: 50, 2: 20}))
    return decode(encode(books.state(BOOT, world.now_ns)))


@settings(max_examples=50)
@given(st.data())
def test_damage_is_noticed(state: State, data: st.DataObject) -> None:
    """Flipped, cut or inserted bytes anywhere: a JournalError or the same state, never anything else."""
    whole = encode(state)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [
                whole[:at] + bytes([whole[at] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[at + 1 :],
                whole[:at] + data.draw(st.binary(max_size=20)) + whole[at:],
                whole[:at],
            ]
        )
    )

    try:
        read = decode(damaged)
    except JournalError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
        return
    assert read == state


def packed(text: str) -> bytes:
    """With a checksum that is right."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text.encode()) + packer.flush()


@settings(max_examples=50)
@given(st.data())
def test_whatever_passes_the_checks_keeps_the_sums(state: State, data: st.DataObject) -> None:
    """Damage under a right checksum: refused, or books that can go on and still balance."""
    text = zlib.decompress(encode(state), wbits=31).decode()
    at = data.draw(st.integers(0, len(text) - 1))
    noise = data.draw(st.text('0123456789{}[]",:.-eEntrufalsNI\\', max_size=8))
    try:
        read = decode(packed(text[:at] + noise + text[at + data.draw(st.integers(0, 3)) :]))
    except JournalError:
        return
    world = World(read.time_ns + S, 10**7)
    books = resumed(read, world.now_ns)
    booked = books.book(world.tick(1, 2))
    assert parts_mj(booked, GPU.uuid) == account(booked).energy_mj
    encode(books.state(BOOT, world.now_ns))


def changed(state: State, **fields: object) -> bytes:
    """A journal with other fields."""
    return packed(json.dumps(json.loads(zlib.decompress(encode(state), wbits=31)) | fields))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gpuledger": "recording"}, "not a gpuledger journal"),
        ({"version": 2}, "format version 2, but this gpuledger reads version 4"),
        ({"version": None}, "format version None, but this gpuledger reads version 4"),
        ({"more": 1}, "damaged: State has no field 'more'"),
        ({"time_ns": "now"}, "damaged: time_ns is not of type int"),
        ({"devices": []}, "damaged: a reference is invalid"),
        ({"owners": []}, "damaged: a reference is invalid"),
        ({"gpus": []}, "damaged: the accounts of a GPU do not add up to its energy"),
        ({"rows": []}, "damaged: the accounts of a GPU do not add up to its energy"),
        ({"gpus": [{"uuid": "GPU-0"}, {"uuid": "GPU-0"}], "rows": []}, "damaged: a GPU or process occurs twice"),
        ({"gpus": [{"uuid": "GPU-0", "in_use_ns": -1}], "rows": []}, "damaged: a number is negative"),
    ],
)
def test_each_kind_of_damage_is_named(state: State, fields: Mapping[str, object], reason: str) -> None:
    """Not ours, newer, or nothing that books could go on from."""
    with pytest.raises(JournalError) as caught:
        decode(changed(state, **fields))

    assert str(caught.value) == reason


def test_a_journal_of_an_earlier_release_is_read() -> None:
    """The format of version 3, as it was written before devices and owners were numbered by the codec."""
    state = decode((ROOT / "tests" / "data" / "journal-v3.gz").read_bytes())

    assert [(row.resident.pid, row.owner.pod, sum(dict(row.energy_mj).values())) for row in state.rows] == [
        (7, "train-0", 539_000),
        (8, "train-0", 361_000),
    ]
    assert {row.device for row in state.rows} == {Device(0, "GPU-0", "NVIDIA H200")}
    assert [(entry.owner.pod, entry.owner.job, dict(entry.times_ns)) for entry in state.allocations] == [
        ("train-0", "", {"busy": 3 * S}),
        ("", "211", {"no_process": 3 * S}),
    ]
    assert decode(encode(state)) == state


def test_a_journal_with_wall_clock_intervals_continues_on_the_monotonic_clock() -> None:
    """A GPU without a counter: power x time of a restart is booked, although version 3 had the time of day."""
    books, world, uptime_ns = Books(), World(), 5000 * S

    def tick() -> Tick:
        made = world.tick(7, energy_mj=None, power_mw=300_000)
        return replace(made, monotonic_ns=made.time_ns - START_NS + uptime_ns)

    for _ in range(3):
        before = books.book(tick())
    state = books.state(BOOT, world.now_ns)
    (gpu,) = state.gpus
    assert gpu.ledger is not None
    offset_ns = START_NS - uptime_ns
    gpu.ledger.since_ns += offset_ns
    gpu.ledger.meter.at_ns += offset_ns
    old = changed(state, version=3, parked=[])

    again = Books()
    again.resume(decode(old), world.now_ns)

    assert account(again.book(tick())).energy_mj == (account(before).energy_mj or 0) + 300_000


def test_its_size_has_a_bound(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be larger is not written; a bomb is not unpacked."""
    data = encode(state)
    monkeypatch.setattr(journal, "LARGEST_BYTES", 1000)

    with pytest.raises(JournalError, match="0 MiB unpacked, but the limit is 0 MiB"):
        encode(state)
    with pytest.raises(JournalError, match="unpacks to more than 0 MiB"):
        decode(data)


def test_it_does_not_grow_with_time() -> None:
    """A thousand processes that come and go take no more room than those that are still kept."""
    books, world = Books(keep_ns=5 * S), World()
    sizes = []
    for pid in range(1, 200):
        books.book(world.tick(pid, mj=10))
        sizes.append(len(books.state(BOOT, world.now_ns).rows))

    assert max(sizes) == sizes[-1] == 5


def test_it_names_no_command_line_and_no_cgroup(state: State) -> None:
    """Of a process: what the metrics show of it."""
    rows = json.loads(zlib.decompress(encode(state), wbits=31))["rows"]

    names = {name for row in rows for name in row.get("facts", {})}
    assert names <= {"pid", "start_ticks", "start_time_ms", "name", "program"}  # the hash of a program


def test_owners_and_published_numbers_are_the_same() -> None:
    """After a restart a scrape shows what it showed before."""
    books, world = Books(), World(containers={7: "c1", 8: "c2"})
    books.book(world.tick(7, 8))
    books.book(world.tick(7, 8, mj=900, work={7: 50, 8: 20}))
    before = books.book(world.tick(7, mj=0))

    after = reopened(books, world.now_ns).book(world.tick(7, mj=0, after_s=0))

    assert published(after) == published(before)
    assert {use.owner for use in after.processes} == {Owner(container_id="c1"), Owner(container_id="c2")}
