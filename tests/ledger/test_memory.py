"""Whose the memory is: known, overhead and unknown, and to whom the unknown is inferred."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.ledger.memory import MIB, TOLERANCE_BYTES, MemoryBook
from gpuledger.model import (
    EVIDENCE,
    Account,
    ContainerUse,
    Device,
    Driver,
    Facts,
    Holder,
    MemoryAccount,
    Owner,
    Owners,
    Reading,
    Resident,
    Tick,
)
from tests import h200
from tests.builders import CUT, GPU, MIGS, S, World

GIB = 1024 * MIB
OLLAMA, TRAIN = Owner(container="ollama", container_id="c1"), Owner(container="train", container_id="c2")
IN_POD = Owner(container="main", container_id="c3", namespace="ml", pod="llama-0", pod_uid="u3")
HOST = Owner(unit="x.service", reason="not in a container")


def held(*residents: Resident, used: int | None, owners: dict[int, Owner] | None = None, **more: Any) -> Tick:
    """A tick in which so much is used."""
    holders = tuple(more.pop("holders", ()))
    given = {"memory_reserved_bytes": 615 * MIB, **more}
    reading = Reading(GPU, memory_used_bytes=used, residents=residents, samples=(), **given)
    return Tick(S, Driver(up=True), (reading,), owners=Owners(by_pid=owners or {}, holders=holders))


def process(pid: int, memory: int | None = 10 * GIB) -> Resident:
    """As the driver lists it."""
    return Resident(pid, "compute", memory)


def may(owner: Owner, evidence: str, pid: int | None = None, device: Device = GPU) -> Holder:
    """An owner that may hold memory."""
    return Holder(device, owner, evidence, pid)


def account(tick: Tick) -> MemoryAccount:
    """What the books say after one tick."""
    (found,) = Books().book(tick).memory.values()
    return found


def inferred(tick: Tick) -> dict[str, int | None]:
    """By container."""
    return {use.owner.container: use.inferred_bytes for use in Books().book(tick).containers}


def test_context_overhead_is_not_unknown() -> None:
    """9.2 MB beside one process, as on an H200: overhead, and nothing is inferred."""
    found = account(held(process(1), used=10 * GIB + 9_240_576, holders=[may(OLLAMA, "maps", 9)]))

    assert found == MemoryAccount(10 * GIB, 0, 9_240_576, 0, 0)


def test_the_driver_lists_no_process() -> None:
    """An exporter in a nested PID namespace, or an unlisted Ollama: all memory goes to the only candidate."""
    tick = held(used=3 * GIB, holders=[may(OLLAMA, "allocation")])

    assert account(tick) == MemoryAccount(0, 3 * GIB, 0, 3 * GIB, 1)
    (use,) = Books().book(tick).containers
    assert use == ContainerUse(GPU, OLLAMA, 0, None, None, inferred_bytes=3 * GIB)


def test_two_candidates_have_half_each() -> None:
    """An odd byte goes to one of them; their number is told."""
    tick = held(used=3 * GIB + 1, holders=[may(OLLAMA, "allocation"), may(TRAIN, "allocation")])

    assert set(inferred(tick).values()) == {3 * GIB // 2 + 1, 3 * GIB // 2}
    assert account(tick).candidates == 2


def test_better_evidence_takes_all() -> None:
    """A map that names the GPU says more than an allocation, and that more than an environment."""
    weak, middle = may(TRAIN, "environment"), may(IN_POD, "allocation")

    assert inferred(held(used=GIB, holders=[weak, middle, may(OLLAMA, "maps", 7)])) == {"ollama": GIB}
    assert inferred(held(used=GIB, holders=[weak, middle])) == {"main": GIB}
    assert inferred(held(used=GIB, holders=[weak])) == {"train": GIB}


def test_access_without_use_holds_nothing() -> None:
    """A container that was given the GPU holds nothing while all memory is listed, and one that is listed no more."""
    idle = held(process(1), used=10 * GIB, owners={1: TRAIN}, holders=[may(OLLAMA, "allocation")])
    assert inferred(idle) == {"train": None}

    listed = [may(TRAIN, "maps", 1), may(TRAIN, "allocation"), may(OLLAMA, "allocation")]
    assert inferred(held(process(1), used=13 * GIB, owners={1: TRAIN}, holders=listed)) == {
        "train": None,
        "ollama": 3 * GIB,
    }


def test_a_kubelet_knows_no_container_ids() -> None:
    """A grant is matched with a listed process by namespace, pod and container."""
    granted = Owner(namespace="ml", pod="llama-0", container="main")
    tick = held(process(1), used=13 * GIB, owners={1: IN_POD}, holders=[may(granted, "allocation")])

    assert inferred(tick) == {"main": None}
    assert account(tick).unknown_bytes == 3 * GIB


def test_a_process_of_the_host_keeps_its_part() -> None:
    """It counts as a candidate, and its part stays unknown: no container gets what is not its own."""
    found = account(held(used=4 * GIB, holders=[may(OLLAMA, "maps", 7), may(HOST, "maps", 8), may(HOST, "maps", 9)]))

    assert (found.candidates, found.unknown_bytes) == (3, 4 * GIB)
    assert found.inferred_bytes == pytest.approx(4 * GIB / 3, abs=1)


def test_listed_without_its_memory() -> None:
    """A process that is listed without its memory comes before every unlisted candidate."""
    tick = held(process(1, None), used=5 * GIB, owners={1: TRAIN}, holders=[may(OLLAMA, "maps", 9)])

    assert inferred(tick) == {"train": 5 * GIB}
    assert Books().book(tick).containers[0].processes == 1


def test_memory_freed_between_two_calls() -> None:
    """The list may be older or younger than the memory: never negative, and never a guess from one tick."""
    book = MemoryBook()
    steps = [
        (held(process(1, 10 * GIB), used=10 * GIB), 0, 0),
        (held(process(1, 10 * GIB), used=2 * GIB), 0, 0),  # half of it was freed before memory was read
        (held(used=10 * GIB, holders=[may(OLLAMA, "maps", 9)]), 0, 10 * GIB),  # it went before the list was read
        (held(used=0), 0, 0),
    ]
    for tick, unknown, overhead in steps:
        found = book.book(tick)
        assert found.inferred == ()
        assert (found.accounts[GPU.uuid].unknown_bytes, found.accounts[GPU.uuid].overhead_bytes) == (unknown, overhead)


def test_board_without_a_memory_reading() -> None:
    """Unified memory: what processes hold is known, what is used is not, so nothing is inferred."""
    found = account(held(process(1), used=None, holders=[may(OLLAMA, "maps", 9)]))

    assert found == MemoryAccount(10 * GIB)


def test_only_the_old_call_works() -> None:
    """Used memory then includes the driver's reserve, 645 MB on an H200, which belongs to no process."""
    assert account(held(used=644_939_776, memory_reserved_bytes=None)).unknown_bytes == 0
    assert account(held(used=5 * GIB, memory_reserved_bytes=None)).unknown_bytes == 5 * GIB


def test_lists_that_failed() -> None:
    """No memory is accounted while the process list is unknown."""
    tick = held(used=5 * GIB)
    (reading,) = tick.readings
    down = Tick(S, Driver(up=True), (Reading(reading.device, memory_used_bytes=5 * GIB, residents=None),))

    assert not Books().book(down).memory


def test_mig_instances_have_their_own() -> None:
    """An instance's unknown memory is its holders'; of the GPU that is cut only the sums are told."""
    first, second = MIGS
    one = Resident(5, "compute", GIB, gpu_instance_id=1)
    readings = (
        Reading(CUT, memory_used_bytes=6 * GIB, memory_reserved_bytes=0, residents=(one,)),
        Reading(first, memory_used_bytes=GIB, memory_reserved_bytes=0, residents=(one,)),
        Reading(second, memory_used_bytes=5 * GIB, memory_reserved_bytes=0, residents=()),
    )
    holders = (may(OLLAMA, "allocation", device=second), may(TRAIN, "maps", 9, device=CUT))
    done = Books().book(Tick(S, Driver(up=True), readings, owners=Owners(holders=holders)))

    assert [done.memory[reading.device.uuid] for reading in done.readings] == [
        MemoryAccount(GIB, 5 * GIB, 0, 0, 0),
        MemoryAccount(GIB, 0, 0, 0, 0),
        MemoryAccount(0, 5 * GIB, 0, 5 * GIB, 1),
    ]
    assert [(use.device, use.owner.container) for use in done.containers] == [(second, "ollama")]


@pytest.mark.parametrize("path", sorted(h200.FOLDER.glob("*.json.gz")), ids=lambda path: path.name.split(".")[0])
def test_nothing_is_unknown_on_a_real_gpu(path: Any) -> None:
    """Up to three processes, MPS with its server too: all memory is listed or overhead."""
    book = MemoryBook()
    for row in h200.load(path)["rows"]:
        _, reserved, _, used = row["mem"]
        tick = held(*(process(pid, memory) for pid, memory in row["procs"]), used=used, memory_reserved_bytes=reserved)
        found = book.book(tick).accounts[GPU.uuid]
        assert found.unknown_bytes == 0
        assert found.known_bytes + (found.overhead_bytes or 0) == used


# -- what follows for time and energy


def gpu_account(tick: Tick) -> Account:
    """Of the first GPU."""
    return tick.accounts[tick.readings[0].device.uuid]


def test_a_gpu_with_unknown_memory_is_in_use() -> None:
    """No process is listed, but memory is held: the energy is not idle energy."""
    world, books = World(), Books()
    for _ in range(3):
        done = books.book(world.tick(mj=120_000, memory_used_bytes=5 * GIB, memory_reserved_bytes=0))

    assert gpu_account(done).in_use
    assert gpu_account(done).idle_mj == 0
    assert dict(gpu_account(done).unattributed_mj)["unseen"] == 240_000
    assert gpu_account(done).idle_power_mw is None


def test_the_part_of_an_unlisted_process_is_rounded_down() -> None:
    """Of three parked millijoules the listed process gets two."""
    world, books = World(), Books()
    hidden: dict[str, Any] = {"memory_used_bytes": 5 * GIB, "memory_reserved_bytes": 0, "residents": (process(1, 0),)}
    books.book(world.tick(**hidden))
    done = books.book(world.tick(mj=3, **hidden))

    assert done.processes[0].energy_mj == (("parked", 2),)
    assert dict(gpu_account(done).unattributed_mj)["unseen"] == 1


def test_beside_unknown_memory_no_process_is_alone() -> None:
    """The listed process gets its work, as an estimate, and half of the parked power."""
    world, books = World(), Books()
    quiet: dict[str, Any] = {"memory_used_bytes": 0, "memory_reserved_bytes": 0}
    books.book(world.tick(1, 2, **quiet))
    for _ in range(20):
        books.book(world.tick(1, 2, mj=100_000, **quiet))  # parked power is learned
    hidden: dict[str, Any] = {"memory_used_bytes": 5 * GIB, "memory_reserved_bytes": 0, "residents": (process(1, 0),)}
    for _ in range(3):
        before = books.book(world.tick(mj=100_000, work={1: 50}, **hidden))
    done = books.book(world.tick(mj=300_000, work={1: 50}, **hidden))

    def rose(method: str) -> int:
        mj = [dict(tick.processes[0].energy_mj).get(method, 0) for tick in (before, done)]
        return mj[1] - mj[0]

    assert (rose("exclusive"), rose("sm_time")) == (0, 200_000)
    assert rose("parked") == 50_000
    assert dict(gpu_account(done).unattributed_mj)["unseen"] > 0


def test_the_rest_of_a_hidden_process_is_unattributed() -> None:
    """The power of an empty GPU is not idle while memory is held, and not certainly that of the process that worked."""
    world, books = World(), Books()
    for _ in range(20):
        books.book(world.tick(mj=80, memory_used_bytes=0, memory_reserved_bytes=0))  # idle power is learned
    hidden: dict[str, Any] = {"memory_used_bytes": 5 * GIB, "memory_reserved_bytes": 0}
    for _ in range(2):
        books.book(world.tick(mj=80, **hidden))
    before = books.book(world.tick(mj=0, after_s=0.1, **hidden))
    done = books.book(world.tick(mj=180, work={9: 50}, **hidden))

    left = [dict(gpu_account(tick).unattributed_mj)["unseen"] for tick in (before, done)]
    assert left[1] - left[0] == pytest.approx(80, abs=10)
    assert gpu_account(done).idle_mj == gpu_account(before).idle_mj


def test_a_process_listed_without_its_memory_may_be_alone() -> None:
    """The used memory is its own: no unlisted process is assumed."""
    world, books = World(), Books()
    used: dict[str, Any] = {"memory_used_bytes": 5 * GIB, "memory_reserved_bytes": 0}
    for _ in range(3):
        done = books.book(world.tick(1, mj=100, **used))

    assert done.processes[0].energy_mj == (("exclusive", 200),)


def test_an_idle_gpu_that_is_cut_is_idle() -> None:
    """MIG instances need memory of their own: 107 and 71 MiB on an A100 of 80 GB, 249 MiB for the whole."""
    books = Books()
    sizes = ((CUT, 249, 80), (MIGS[0], 107, 40), (MIGS[1], 71, 20))
    for energy_mj in (1000, 2000):
        readings = tuple(
            Reading(
                device,
                energy_mj=None if device.parent_uuid else energy_mj,
                memory_total_bytes=total * GIB,
                memory_used_bytes=used * MIB,
                memory_reserved_bytes=0,
                residents=(),
            )
            for device, used, total in sizes
        )
        done = books.book(Tick(S + energy_mj * 10**6, Driver(up=True), readings))

    assert [done.memory[reading.device.uuid].unknown_bytes for reading in done.readings] == [0, 0, 0]
    assert gpu_account(done).idle_mj == 1000
    assert gpu_account(done).in_use is False


def test_a_container_that_was_started_again() -> None:
    """The old one is still listed while the new one is inferred: neither loses what it has."""
    old, new = (Owner(container="main", container_id=i, namespace="ml", pod="llama-0") for i in ("a", "b"))
    tick = held(
        process(1, None), process(2, 3 * GIB), used=9 * GIB, owners={1: old, 2: new}, holders=[may(new, "allocation")]
    )
    found = {use.owner.container_id: use for use in Books().book(tick).containers}

    assert (found["a"].processes, found["a"].inferred_bytes) == (1, 6 * GIB)
    assert (found["b"].processes, found["b"].memory_bytes, found["b"].inferred_bytes) == (1, 3 * GIB, None)


# -- for any readings

SIZES = st.none() | st.integers(0, 20 * GIB)
OWNERS = st.sampled_from([OLLAMA, TRAIN, IN_POD, HOST, Owner(namespace="ml", pod="llama-0", container="main")])
PIDS = st.integers(1, 4)


@st.composite
def memories(draw: st.DrawFn) -> Tick:
    """Any reading of memory and lists, with any owners that may hold it."""
    residents = draw(st.lists(st.tuples(PIDS, SIZES), max_size=3, unique_by=lambda pair: pair[0]))
    holders = draw(st.lists(st.builds(may, OWNERS, st.sampled_from(EVIDENCE), st.none() | st.integers(1, 9))))
    return held(
        *(process(pid, size) for pid, size in residents),
        used=draw(SIZES),
        owners=draw(st.dictionaries(PIDS, OWNERS)),
        holders=holders,
        memory_reserved_bytes=draw(st.none() | st.just(0)),
    )


@given(st.lists(memories(), min_size=1, max_size=4))
def test_memory_adds_up(ticks: Sequence[Tick]) -> None:
    """Known is what is listed; known, overhead and unknown are what is used, unless more is listed than that."""
    book = MemoryBook()
    for tick in ticks:
        (reading,) = tick.readings
        done = book.book(tick)
        found = done.accounts[GPU.uuid]
        known = sum(r.memory_bytes or 0 for r in reading.residents or ())
        assert found.known_bytes == known
        parts = [holder.memory_bytes for holder in done.inferred]
        assert sum(parts) == found.inferred_bytes
        assert all(part >= 0 for part in parts)
        silent = any(r.memory_bytes is None for r in reading.residents or ())
        assert (GPU.uuid in done.hidden) == (bool(found.unknown_bytes) and not silent)
        if reading.memory_used_bytes is None:
            assert found == MemoryAccount(known)
            continue
        assert found.unknown_bytes is not None
        assert found.overhead_bytes is not None
        assert min(found.unknown_bytes, found.overhead_bytes) >= 0
        assert found.inferred_bytes <= found.unknown_bytes
        assert found.unknown_bytes == 0 or found.unknown_bytes > TOLERANCE_BYTES
        assert known + found.overhead_bytes + found.unknown_bytes == max(known, reading.memory_used_bytes)


@given(memories(), st.randoms())
def test_order_does_not_matter_for_memory(tick: Tick, random: Random) -> None:
    """The driver's order of processes and that of the evidence change nothing."""
    (reading,) = tick.readings
    residents, holders = list(reading.residents or ()), list(tick.owners.holders)
    random.shuffle(residents)
    random.shuffle(holders)
    again = held(
        *residents,
        used=reading.memory_used_bytes,
        owners=dict(tick.owners.by_pid),
        holders=holders,
        memory_reserved_bytes=reading.memory_reserved_bytes,
    )

    def shares(tick: Tick) -> dict[str, int]:
        return {
            holder.owner.container_id or holder.owner.container: holder.memory_bytes
            for holder in MemoryBook().book(tick).inferred
        }

    assert sorted(shares(tick).values()) == sorted(shares(again).values())
    assert account(tick) == account(again)


def test_facts_are_not_needed() -> None:
    """A holder may be known by name alone, and the row then has no container id."""
    granted = Owner(namespace="ml", pod="llama-0", container="main")
    tick = held(used=GIB, holders=[may(granted, "allocation")])
    done = Books().book(Tick(S, tick.driver, tick.readings, facts={9: Facts(9, 1, 0)}, owners=tick.owners))

    assert [(use.owner.pod, use.owner.container_id, use.inferred_bytes) for use in done.containers] == [
        ("llama-0", "", GIB)
    ]
