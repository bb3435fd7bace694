"""Parts add up to the device, for any ticks; counters never fall; a single holder has the whole device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.catalog.dialects.division import MIB, Part, divide, with_rest
from gpuledger.model import (
    OUTSIDE,
    Account,
    Allocation,
    ContainerUse,
    Device,
    Driver,
    MemoryAccount,
    Owner,
    Owners,
    Reading,
    Resident,
    Tick,
)
from gpuledger.model.holders import NO_HOLDER, HolderLabels, Holding, holdings
from tests.builders import CUT, GPU, MIGS, S, World, reopened, sequences

KEEP = st.sampled_from([1, 5, 300]).map(lambda seconds: seconds * S)
KILLS = st.lists(st.booleans(), min_size=12, max_size=12) | st.just([False] * 12)
BYTES = st.none() | st.integers(0, 1 << 37)


def parts(tick: Tick, uuid: str = GPU.uuid, *, pod_uid: bool = False) -> list[Part]:
    """All parts of one GPU."""
    gpu, *instances = [p for p in holdings(tick, pod_uid=pod_uid) if p.gpu.device.uuid == uuid]
    return divide(gpu, instances, pod_uid=pod_uid)


def total(found: Iterable[Part], name: str) -> int | None:
    """The sum of the known parts; None if no part is known."""
    told = [value for part in found if (value := getattr(part, name)) is not None]
    return sum(told) if told else None


def named(tick: Tick, *, fixed: bool) -> Tick:
    """Containers with a name that they share, in pods that have a name in common; fixed: the same for a pid always."""
    ids = {1: "c1", 2: "c1", 3: "c2"}
    owners = {}
    for pid in tick.resident_pids():
        known = tick.owners.by_pid.get(pid)
        if container_id := ids.get(pid, "") if fixed else known.container_id if known else "":
            owners[pid] = Owner("main", container_id, "ml", "train", pod_uid=f"uid-{container_id}")
    return replace(tick, owners=Owners(by_pid=owners))


@settings(max_examples=20)
@given(sequences(), KEEP, st.lists(BYTES, min_size=4, max_size=4), st.booleans(), st.integers(0, 1 << 36))
def test_parts_are_the_device(
    steps: list[tuple[Tick, int | None]], keep_ns: int, used: list[int | None], pod_uid: bool, held: int
) -> None:
    """Utilization, memory and power over all series of a GPU: its own number, exactly, and nothing negative."""
    books = Books(keep_ns=keep_ns)
    for tick, _ in steps:
        readings = tuple(
            replace(
                reading,
                memory_used_bytes=used[number],
                residents=reading.residents and tuple(replace(r, memory_bytes=held) for r in reading.residents),
            )
            for number, reading in enumerate(tick.readings)
        )
        booked = books.book(replace(tick, readings=readings))
        by_uuid = {reading.device.uuid: reading for reading in booked.readings}
        for gpu in (by_uuid[uuid] for uuid in (GPU.uuid, CUT.uuid) if uuid in by_uuid):
            found = parts(booked, gpu.device.uuid, pod_uid=pod_uid)
            if not gpu.up:
                assert total(found, "power_mw") is None
                continue
            assert total(found, "utilization_pct") == gpu.utilization_pct
            assert total(found, "power_mw") == gpu.power_mw
            assert all((getattr(part, name) or 0) >= 0 for part in found for name in ("memory_mib", "power_mw"))
            assert len({(part.holding.reading.device.uuid, part.labels) for part in found}) == len(found)
            if gpu.device == GPU:
                in_mib = None if gpu.memory_used_bytes is None else gpu.memory_used_bytes // MIB
                assert total(found, "memory_mib") == in_mib
            elif gpu.memory_used_bytes is not None:
                instances = sum((by_uuid[mig.uuid].memory_used_bytes or 0) // MIB for mig in MIGS)
                assert total(found, "memory_mib") == max(gpu.memory_used_bytes // MIB, instances)


@settings(max_examples=20)
@given(sequences(), KEEP, KILLS)
def test_energy_is_the_device(steps: list[tuple[Tick, int | None]], keep_ns: int, kills: list[bool]) -> None:
    """Of owners known from their first tick on: all series, and those of pods that are gone, are the counter.

    Also when the exporter is killed and goes on from its journal.
    """
    books = Books(keep_ns=keep_ns)
    for (tick, _), killed in zip(steps, kills, strict=False):
        booked = books.book(named(tick, fixed=True))
        for uuid, account in booked.accounts.items():
            gone_mj = books._energy.ledgers[uuid]._state.gone_mj
            found = total(parts(booked, uuid), "energy_mj")
            assert (found or 0) + gone_mj == (account.energy_mj or 0)
        books = reopened(books, tick.time_ns, keep_ns=keep_ns) if killed else books


@settings(max_examples=20)
@given(sequences(), KEEP, st.booleans(), st.booleans(), KILLS)
def test_energy_never_falls(
    steps: list[tuple[Tick, int | None]], keep_ns: int, fixed: bool, pod_uid: bool, kills: list[bool]
) -> None:
    """Nor when a container is restarted, a pod made anew, or an owner found late: Prometheus would see a reset.

    Also when the exporter is killed and goes on from its journal.
    """
    books = Books(keep_ns=keep_ns)
    before: dict[tuple[str, HolderLabels], int] = {}
    for (tick, _), killed in zip(steps, kills, strict=False):
        booked = books.book(named(tick, fixed=fixed))
        now = {
            (part.holding.reading.device.uuid, part.labels): part.energy_mj
            for reading in booked.readings
            if not reading.device.parent_uuid
            for part in parts(booked, reading.device.uuid, pod_uid=pod_uid)
            if part.energy_mj is not None
        }
        assert all(mj >= before.get(series, 0) for series, mj in now.items())
        before = now
        books = reopened(books, tick.time_ns, keep_ns=keep_ns) if killed else books


@given(st.integers(0, 10**6), st.dictionaries(st.integers(1, 9), st.integers(0, 10**6), max_size=5))
def test_amounts_and_the_rest(device: int, amounts: dict[int, int]) -> None:
    """Amounts are kept while they fit into the total; the rest is never negative."""
    seats = {(number, NO_HOLDER._replace(pod="p")): amount for number, amount in amounts.items()}

    filled = with_rest(device, seats, (0, NO_HOLDER))

    assert sum(filled.values()) == device
    assert min(filled.values()) >= 0
    if sum(amounts.values()) <= device:
        assert all(filled[seat] == amount for seat, amount in seats.items())


A = Owner("main", "a" * 64, "ml", "train-a", pod_uid="uid-a")
B = Owner("main", "b" * 64, "ml", "train-b", pod_uid="uid-b")
BOOKED = {"account": "accounts", "memory": "memory"}
OF_A, OF_B = HolderLabels("ml", "train-a", "main"), HolderLabels("ml", "train-b", "main")


def node(*uses: ContainerUse, owners: dict[int, Owner] | None = None, given: Any = (), **reading: Any) -> Tick:
    """One GPU with these containers, each by default with one process of its own."""
    by_pid = owners if owners is not None else {n: use.owner for n, use in enumerate(uses, 1) if use.processes}
    booked: dict[str, Any] = {name: {GPU.uuid: reading.pop(key)} for key, name in BOOKED.items() if key in reading}
    told = {"residents": tuple(Resident(pid, "compute") for pid in by_pid), "samples": (), **reading}
    owners_ = Owners(by_pid=by_pid, allocations=given)
    return Tick(5, Driver(up=True), (Reading(GPU, **told),), owners=owners_, containers=uses, **booked)


def use(owner: Owner, *, processes: int = 1, device: Device = GPU, **more: Any) -> ContainerUse:
    """A container on the GPU."""
    return ContainerUse(device, owner, processes, **{"memory_bytes": None, "sm_pct": None, **more})


def values(tick: Tick, name: str, *, pod_uid: bool = False) -> dict[HolderLabels, int]:
    """Of each owner what it has."""
    return {part.labels: value for part in parts(tick, pod_uid=pod_uid) if (value := getattr(part, name)) is not None}


def test_a_pod_alone_has_the_gpu_whole() -> None:
    """As dcgm-exporter labels it: one series, with the pod, whatever the books say of overhead."""
    tick = node(
        use(A, memory_bytes=10 * MIB, sm_pct=30), utilization_pct=40, memory_used_bytes=12 * MIB, power_mw=300_000
    )

    assert values(tick, "utilization_pct") == {OF_A: 40}
    assert values(tick, "memory_mib") == {OF_A: 12}
    assert values(tick, "power_mw") == {OF_A: 300_000}


def test_unlisted_memory_is_not_that_of_the_pod() -> None:
    """Also of one that is alone there."""
    account = MemoryAccount(known_bytes=10 * MIB, unknown_bytes=90 * MIB)
    tick = node(use(A, memory_bytes=10 * MIB), memory_used_bytes=100 * MIB, memory=account)

    assert values(tick, "memory_mib") == {OF_A: 10, NO_HOLDER: 90}


def test_two_pods_share() -> None:
    """Each its own part; what is left is the device's own."""
    tick = node(
        use(A, memory_bytes=30 * MIB, sm_pct=50, booked_mj=600),
        use(B, memory_bytes=10 * MIB, sm_pct=20, booked_mj=200),
        utilization_pct=80,
        memory_used_bytes=50 * MIB,
        power_mw=500_000,
        account=Account(energy_mj=10_000, booked_mj=1000, unowned_mj=10_000),
    )

    assert values(tick, "utilization_pct") == {OF_A: 50, OF_B: 20, NO_HOLDER: 10}
    assert values(tick, "memory_mib") == {OF_A: 30, OF_B: 10, NO_HOLDER: 10}
    assert values(tick, "power_mw") == {OF_A: 300_000, OF_B: 100_000, NO_HOLDER: 100_000}


def test_power_before_the_first_interval_has_no_owner() -> None:
    """Before the first interval is closed, power belongs to no container."""
    tick = node(use(A), use(B), power_mw=500_000, account=Account(energy_mj=7))

    assert values(tick, "power_mw") == {OF_A: 0, OF_B: 0, NO_HOLDER: 500_000}


def test_unknown_values_are_absent_and_not_zero() -> None:
    """A shared GPU whose driver reports neither memory nor samples of processes."""
    tick = node(use(A), use(B), utilization_pct=80, memory_used_bytes=50 * MIB, samples=None)

    assert values(tick, "utilization_pct") == {NO_HOLDER: 80}
    assert values(tick, "memory_mib") == {NO_HOLDER: 50}


@pytest.mark.parametrize(
    ("owners", "given", "holder", "alone"),
    [
        ({1: A}, [], OF_A, True),
        ({1: A, 2: Owner()}, [], OF_A, False),
        ({1: A, 2: B}, [], NO_HOLDER, False),
        ({}, ["train-a"], OF_A, True),
        ({1: Owner()}, ["train-a"], OF_A, True),
        ({1: Owner(reason=OUTSIDE)}, ["train-a"], OF_A, False),
        ({1: Owner(unit="miner.service")}, ["train-a"], OF_A, False),
        ({1: Owner(job="slurm/7")}, ["train-a"], OF_A, False),
        ({1: Owner(unit="kubelet.service", pod_uid="uid-a")}, ["train-a"], OF_A, True),
        ({}, ["train-a", "train-b"], NO_HOLDER, False),
        ({1: A}, ["train-a", "train-b"], NO_HOLDER, False),
        ({1: A, 2: replace(A, container="side", container_id="c" * 64)}, [], OF_A._replace(container=""), False),
        ({1: replace(B, outer=A)}, ["train-a"], OF_B, True),
        ({1: Owner(job="slurm/7", outer=A)}, ["train-a"], OF_A, True),
    ],
    ids=["a pod", "a pod and a host process", "two pods", "allocated", "allocated, and a process nobody knows",
         "allocated, and a host process", "and a service", "and a batch job", "and somebody in a pod",
         "allocated to two", "one of two works", "two containers of a pod", "allocated to the container around it",
         "and a batch job inside it"],
)  # fmt: skip
def test_the_holder_of_a_gpu(owners: dict[int, Owner], given: list[str], holder: HolderLabels, alone: bool) -> None:
    """The only pod with a process or an allocation, or none."""
    inside = {owner.container_id: owner for owner in owners.values() if owner.container_id}
    granted = tuple(Allocation(GPU, Owner(namespace="ml", pod=pod, container="main")) for pod in given)

    (place,) = holdings(node(*map(use, inside.values()), owners=owners, given=granted), pod_uid=False)

    assert (place.holder, place.alone) == (holder, alone)


def test_a_waiting_holder_has_a_part_of_0() -> None:
    """A pod that was given a part of a shared GPU and has no process there: 0, which is how idle pods are found."""
    granted = tuple(Allocation(GPU, Owner(namespace="ml", pod=pod, container="main")) for pod in ("train-a", "train-b"))
    tick = node(use(A, memory_bytes=10 * MIB, sm_pct=30), given=granted, utilization_pct=30, memory_used_bytes=10 * MIB)

    assert values(tick, "utilization_pct") == {OF_A: 30, OF_B: 0, NO_HOLDER: 0}
    assert values(tick, "memory_mib") == {OF_A: 10, OF_B: 0, NO_HOLDER: 0}


def test_a_container_without_a_name_has_its_id() -> None:
    """Else what it used would be the device's own, and fall from it when the container goes."""
    tick = node(use(Owner(container_id="c0ffee" * 8), energy_mj=(("exclusive", 5),)), account=Account(energy_mj=9))

    assert values(tick, "energy_mj") == {NO_HOLDER: 0, HolderLabels(container="c0ffeec0ffee"): 5}


@pytest.mark.parametrize("killed", [False, True], ids=["", "and so was the exporter"])
def test_a_restarted_container_goes_on_counting(killed: bool) -> None:
    """Its series is the old one's; when the old row goes, its joules stay in the sum of the labels they share."""
    books, world = Books(keep_ns=10 * S), World()

    def tick(*pids: int, owner: Owner, mj: int) -> Tick:
        nonlocal books
        made = world.tick(*pids, mj=mj)
        booked = books.book(replace(made, owners=Owners(by_pid=dict.fromkeys(pids, owner))))
        if killed and world.now_ns // S % 5 == 0:  # the time since the last tick of the other one is not counted
            books = reopened(books, world.now_ns, keep_ns=10 * S)
        return booked

    tick(1, owner=A, mj=0)
    tick(1, owner=A, mj=1000)
    again = replace(A, container_id="d" * 64)
    tick(2, owner=again, mj=0)
    sums = [values(tick(2, owner=again, mj=100), "energy_mj")[OF_A] for _ in range(15)]
    anew = replace(A, container_id="e" * 64, pod_uid="uid-new")
    tick(3, owner=anew, mj=0)
    later = [tick(3, owner=anew, mj=100) for _ in range(15)]

    assert sums == [1000 + 100 * n for n in range(1, 16)]
    assert len(later[-1].containers) == 1
    assert values(later[-1], "energy_mj")[OF_A] == 2500 + 1500
    assert values(later[-1], "energy_mj", pod_uid=True)[OF_A._replace(pod_uid="uid-new")] == 1500


@pytest.mark.parametrize("killed", [False, True], ids=["", "also by who was killed in between"])
def test_an_owner_found_late_takes_nothing_back(killed: bool) -> None:
    """Energy without an owner stays counted; the series of the device waits until the sum is right again."""
    books, world = Books(), World()
    for mj in (0, 1000):
        before = books.book(world.tick(1, mj=mj))

    ticks = [replace(world.tick(1), owners=Owners(by_pid={1: A})), *(world.tick(mj=mj) for mj in (0, 600, 600))]
    found = []
    for tick in ticks:
        found.append(values(books.book(tick), "energy_mj"))
        books = reopened(books, tick.time_ns) if killed else books

    own_mj = values(before, "energy_mj")[NO_HOLDER]
    assert [found_mj[OF_A] for found_mj in found] == [1000, 1000, 1000, 1000]
    assert [found_mj[NO_HOLDER] - own_mj for found_mj in found] == [0, 0, 0, 200]


@pytest.mark.parametrize("killed", [False, True], ids=["", "also after a restart"])
def test_what_a_pod_used_goes_with_it(killed: bool) -> None:
    """When its series ends, its joules do not come up in the device's own."""
    books, world = Books(keep_ns=5 * S), World()
    books.book(world.tick())
    for mj in (0, 1000):
        books.book(replace(world.tick(1, mj=mj), owners=Owners(by_pid={1: A})))
    gone = [books.book(world.tick()) for _ in range(10)][-1]
    if killed:
        books = reopened(books, world.now_ns, keep_ns=5 * S)

    after = books.book(world.tick(mj=70, after_s=0.5))

    assert set(values(gone, "energy_mj")) == {NO_HOLDER}
    assert values(after, "energy_mj")[NO_HOLDER] - values(gone, "energy_mj")[NO_HOLDER] == 70


def test_instances_of_a_cut_gpu() -> None:
    """Memory is the instances', power and energy are divided once over the GPU and all of them."""
    (one, two), pid = MIGS, {1: A}
    tick = Tick(
        5,
        Driver(up=True),
        (
            Reading(CUT, memory_used_bytes=100 * MIB, power_mw=400_000, residents=()),
            Reading(one, memory_used_bytes=40 * MIB, residents=(Resident(1, "compute"),)),
            Reading(two, memory_used_bytes=MIB, residents=()),
        ),
        owners=Owners(by_pid=pid),
        accounts={CUT.uuid: Account(energy_mj=900, unowned_mj=300, booked_mj=100)},
        containers=(use(A, device=one, memory_bytes=30 * MIB, booked_mj=75, energy_mj=(("mig", 600),)),),
    )  # fmt: skip

    found = {(p.holding.reading.device.uuid, p.labels): p for p in parts(tick, CUT.uuid)}

    assert {seat: part.memory_mib for seat, part in found.items()} == {
        (CUT.uuid, NO_HOLDER): 59, (one.uuid, OF_A): 40, (two.uuid, NO_HOLDER): 1,
    }  # fmt: skip
    assert (found[one.uuid, OF_A].power_mw, found[CUT.uuid, NO_HOLDER].power_mw) == (300_000, 100_000)
    assert (found[one.uuid, OF_A].energy_mj, found[CUT.uuid, NO_HOLDER].energy_mj) == (600, 300)


def test_compute_instances_of_one_gpu_instance_are_one_place() -> None:
    """They share its memory, which is counted once."""
    cis = [replace(MIGS[0], uuid=f"MIG-1-{n}", compute_instance_id=n) for n in (0, 1)]
    readings = (Reading(CUT), *(Reading(ci, memory_used_bytes=10 * MIB, residents=()) for ci in cis))

    found: list[Holding] = holdings(Tick(5, Driver(up=True), readings), pod_uid=False)

    assert [place.reading.device.uuid for place in found] == [CUT.uuid, "MIG-1-0"]


X = Owner("", "c" * 64, pod_uid="uid-a", reason="pod has no name yet")
Y = Owner("", "d" * 64, pod_uid="uid-b", reason="pod has no name yet")
OF_X = HolderLabels(container="c" * 12)


def granted_to(*pods: str) -> tuple[Allocation, ...]:
    """The GPU, to these."""
    return tuple(Allocation(GPU, Owner(namespace="ml", pod=pod, container="main")) for pod in pods)


def test_two_unnamed_pods_where_one_was_given_the_gpu() -> None:
    """It is not known which pod has the GPU, nor that one of them has nothing."""
    tick = node(use(X, sm_pct=30), use(Y, sm_pct=20), given=granted_to("train-a"), utilization_pct=60)

    assert values(tick, "utilization_pct") == {OF_X: 30, HolderLabels(container="d" * 12): 20, NO_HOLDER: 10}


def test_no_holder_waits_beside_an_unnamed_pod() -> None:
    """Of several pods with an allocation one works, and it is not known which: none of them has 0."""
    tick = node(use(X, sm_pct=30), given=granted_to("train-a", "train-b"), utilization_pct=60, power_mw=5)

    assert values(tick, "utilization_pct") == {OF_X: 30, NO_HOLDER: 30}
    assert set(values(tick, "power_mw")) == {OF_X, NO_HOLDER}


def test_work_outside_of_containers_is_not_the_idle_pods() -> None:
    """A process of the host on a GPU that is allocated to an idle pod: 0 for the pod, the rest has no owner."""
    host = {1: Owner(unit="session-3.scope", reason=OUTSIDE)}
    tick = node(owners=host, given=granted_to("train-a"), utilization_pct=90, power_mw=5, memory_used_bytes=9 * MIB)

    assert values(tick, "utilization_pct") == {OF_A: 0, NO_HOLDER: 90}
    assert values(tick, "memory_mib") == {OF_A: 0, NO_HOLDER: 9}
    assert values(tick, "power_mw") == {OF_A: 0, NO_HOLDER: 5}


@pytest.mark.parametrize("pod_uid", [False, True])
def test_a_departed_holder_with_an_allocation_waits(pod_uid: bool) -> None:
    """Its process ended and its row is still there, as is its grant: 0, under the labels that its energy has."""
    left = use(B, processes=0, energy_mj=(("shared", 7),))
    tick = node(
        use(A, memory_bytes=10 * MIB, sm_pct=30, booked_mj=100),
        left,
        given=granted_to("train-a", "train-b"),
        utilization_pct=30,
        memory_used_bytes=10 * MIB,
        power_mw=300_000,
        account=Account(energy_mj=1000, booked_mj=100, unowned_mj=0),
    )
    of_b = OF_B._replace(pod_uid="uid-b" if pod_uid else "")

    for name, expected in (("utilization_pct", 0), ("memory_mib", 0), ("power_mw", 0), ("energy_mj", 7)):
        found = values(tick, name, pod_uid=pod_uid)
        assert found[of_b] == expected
        assert sum(who.pod == "train-b" for who in found) == 1


def test_a_departed_holder_without_an_allocation_does_not_wait() -> None:
    """What is still shown of it is its energy alone."""
    tick = node(use(A, sm_pct=30), use(B, processes=0), given=granted_to("train-a"), utilization_pct=40)

    assert OF_B not in values(tick, "utilization_pct")


def test_a_holder_of_inferred_memory_waits_except_for_memory() -> None:
    """What it holds is in the device's own series; that it holds nothing would be wrong."""
    tick = node(
        use(A, memory_bytes=10 * MIB, sm_pct=30),
        use(B, processes=0, inferred_bytes=5 * MIB),
        given=granted_to("train-a", "train-b"),
        utilization_pct=30,
        memory_used_bytes=15 * MIB,
        power_mw=300_000,
    )

    assert values(tick, "utilization_pct") == {OF_A: 30, OF_B: 0, NO_HOLDER: 0}
    assert values(tick, "power_mw") == {OF_A: 0, OF_B: 0, NO_HOLDER: 300_000}
    assert values(tick, "memory_mib") == {OF_A: 10, NO_HOLDER: 5}


def test_a_waiting_holder_has_no_counter() -> None:
    """A pod of the same name may have used some before: its successor goes on from there, which no 0 may precede."""
    tick = node(use(A), given=granted_to("train-a", "train-b"), account=Account(energy_mj=9, unowned_mj=9))

    assert OF_B not in values(tick, "energy_mj")
