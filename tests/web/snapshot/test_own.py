"""The view of one tenant has own workloads and the sum of all others, and nothing else of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import (
    Account,
    AllocationUse,
    ContainerUse,
    Device,
    Driver,
    Entitlement,
    Facts,
    Health,
    MemoryAccount,
    Owner,
    Owners,
    ProcessUse,
    Reading,
    Resident,
    Sample,
    Tick,
)
from gpuledger.model.owners import Allocation
from gpuledger.model.problem import Problem
from gpuledger.web.snapshot.codec import encode
from gpuledger.web.snapshot.colours import first_choice
from gpuledger.web.snapshot.history import History
from gpuledger.web.snapshot.own import Scope, own_past, own_snapshot
from tests.web.snapshot.nodes import Node

S, GIB = 10**9, 1 << 30
SHARED, FOREIGN = Device(0, "GPU-a", name="NVIDIA H200"), Device(1, "GPU-b", name="NVIDIA H200")
ALICE = Scope("alice", frozenset({"alice"}))
HOST = Scope("alice", None, 1000)
CANARY = "zq"
"""Part of every text of another tenant; in no other text."""


def pod(namespace: str, name: str, **more: Any) -> Owner:
    """A container of a pod."""
    return Owner(
        container="main", container_id=f"{name}-id", namespace=namespace, pod=name, pod_uid=f"{name}-uid", **more
    )


def process(pid: int, owner: Owner, mj: int, held: int, device: Device = SHARED, **more: Any) -> ProcessUse:
    """A process on a device."""
    facts = Facts(pid, pid, pid * 1000, f"{owner.pod or CANARY}-program", 0, user="root")
    given: dict[str, Any] = {"sample": Sample(pid, 1, pid % 7, 0), "owner": owner, "energy_mj": (("fingerprint", mj),)}
    return ProcessUse(device, Resident(pid, "compute", held), facts, **(given | more))


def container(owner: Owner, mj: int, held: int, processes: int = 1, device: Device = SHARED) -> ContainerUse:
    """A container on a device; its energy includes 100 mJ of processes that exited."""
    return ContainerUse(device, owner, processes, held, 3, energy_mj=(("fingerprint", mj + 100),))


def allocated(owner: Owner, since: int, shared_by: int, device: Device = SHARED) -> AllocationUse:
    """An idle allocation."""
    return AllocationUse(
        device, owner, "no_process", shared_by, since * S, None, since * S, 0, (("no_process", 5 * S),), 0, 5 * S, (),
        entitlement=Entitlement("replica", 0.25),
    )  # fmt: skip


def tick_with(others: list[tuple[str, int, int]], *, seconds: int = 100) -> Tick:
    """Alice's pod with 1 GiB and 1 J, and others with 9 GiB and 9 J in all, however they are named and divided."""
    mine = pod("alice", "train")
    theirs = [
        (pod(f"{CANARY}{name}", f"{CANARY}pod{name}", image=f"{CANARY}image"), share, pid)
        for name, share, pid in others
    ]
    total = sum(share for _, share, _ in theirs)
    uses = [(owner, share * 9000 // total, share * 9 * GIB // total, pid) for owner, share, pid in theirs]
    device_mj = 10_000 + 500 + 700
    return Tick(
        seconds * S,
        Driver(up=True, driver_version="580"),
        (
            Reading(SHARED, memory_total_bytes=140 * GIB, memory_used_bytes=10 * GIB, power_mw=300_000,
                    residents=tuple(Resident(pid, "compute", held) for _, _, held, pid in uses),
                    utilization_pct=80, xids=(("13", len(uses)),), energy_mj=device_mj),
            Reading(FOREIGN, memory_used_bytes=len(uses) * GIB, xids=(("31", len(uses)),)),
        ),
        owners=Owners(
            allocations=(Allocation(SHARED, mine), *(Allocation(SHARED, owner) for owner, *_ in uses)),
            malformed=(Problem(f"{CANARY} is malformed"),),
            unresolved=((f"{CANARY} reason", len(uses)),),
        ),
        accounts={
            SHARED.uuid: Account(device_mj, "counter", idle_mj=500, retired_mj=len(uses), unowned_mj=len(uses),
                                 unattributed_mj=(("before", 700), (CANARY, len(uses)))),
            FOREIGN.uuid: Account(len(uses), "counter"),
        },
        memory={SHARED.uuid: MemoryAccount((10 - len(uses)) * GIB, 0, len(uses) * GIB, 0, len(uses)),
                FOREIGN.uuid: MemoryAccount(1)},
        processes=(process(7, mine, 900, GIB), *(process(pid, owner, mj, held) for owner, mj, held, pid in uses),
                   *(process(pid, owner, mj, held, FOREIGN) for owner, mj, held, pid in uses)),
        containers=(container(mine, 900, GIB), *(container(owner, mj, held) for owner, mj, held, _ in uses)),
        allocations=(allocated(mine, 50, len(uses) + 1),
                     *(allocated(owner, pid, len(uses) + 1) for owner, _, _, pid in uses)),
        dropped_processes=len(uses),
        health=Health(interval_ns=S, duration_ns=len(uses), ticks=len(uses)),
    )  # fmt: skip


OTHERS = st.lists(
    st.tuples(st.text("abc", max_size=3), st.integers(1, 5), st.integers(1000, 9999)), min_size=1, max_size=5
)


@given(OTHERS, OTHERS, OTHERS)
def test_the_view_does_not_depend_on_how_others_are_named_and_divided(
    first: list[tuple[str, int, int]], second: list[tuple[str, int, int]], earlier: list[tuple[str, int, int]]
) -> None:
    """Name, id, count, start and end of other workloads change no byte, and no text of them is in the view."""
    views = [
        encode(own_snapshot(tick_with(others), tick_with(earlier, seconds=90), ALICE, node="n1"))
        for others in (first, second)
    ]

    assert views[0] == views[1]
    assert CANARY.encode() not in views[0]


def test_the_totals_are_own_workloads_others_idle_and_before() -> None:
    """Own energy includes exited processes of the container."""
    view = own_snapshot(tick_with([("b", 1, 1000), ("c", 2, 1001)]), None, ALICE)
    (gpu,) = view.gpus

    assert view.viewer == "alice"
    assert gpu.others is not None
    assert gpu.energy is not None
    assert gpu.others.joules is not None
    assert gpu.others.memory_bytes == 9 * GIB
    assert gpu.memory.used_bytes == 10 * GIB
    assert gpu.energy.joules == pytest.approx(1.0 + gpu.others.joules + 0.5 + 0.7)  # own, others, idle, before
    assert gpu.energy.joules == pytest.approx(
        gpu.energy.processes_joules + gpu.energy.retired_joules + gpu.energy.idle_joules + 0.7
    )
    assert [row.joules for row in view.containers] == [{"fingerprint": 1.0}]
    assert gpu.energy.retired_joules == 0.1


def test_a_tenant_without_workloads_sees_no_gpu() -> None:
    """Not even how busy it is."""
    view = own_snapshot(tick_with([("b", 1, 1000)]), None, Scope("eve", frozenset({"eve"})))

    assert (view.gpus, view.processes, view.containers, view.allocations) == ((), (), (), ())
    assert own_snapshot(tick_with([("b", 1, 1000)]), None, Scope("eve", frozenset())).gpus == ()


def test_a_gpu_that_a_tenant_has_left_is_not_shown() -> None:
    """Exited processes and ended allocations are listed for some minutes; meanwhile others use the GPU."""
    tick = tick_with([("b", 1, 1000)])
    left = replace(
        tick,
        processes=tuple(replace(use, active=False) for use in tick.processes),
        containers=tuple(replace(use, processes=0) for use in tick.containers),
        allocations=tuple(replace(use, state="") for use in tick.allocations),
    )
    view = own_snapshot(left, tick, ALICE)

    assert view.gpus == ()
    assert [row.pid for row in view.processes] == [7]
    assert own_snapshot(replace(left, allocations=tick.allocations), None, ALICE).gpus != ()


@pytest.mark.parametrize(
    ("owner", "uid", "job_uid", "expected"),
    [
        (Owner(user="alice"), 1000, "", True),
        (Owner(user="alice"), 1001, "", False),
        (Owner(job="slurm/7"), 1000, "", True),
        (Owner(job="slurm/7"), None, "1000", True),
        (Owner(job="slurm/7"), None, "1001", False),
        (Owner(job="slurm/7"), None, "", False),
        (Owner(container="web", container_id="c1"), 1000, "", False),  # of root's daemon, with the uid of the image
        (Owner(container="1000/web", container_id="c1"), 100_999, "", True),
        (Owner(container="10001/web", container_id="c1"), 1000, "", False),
        (Owner(container_id="c1"), 1000, "", False),
        (Owner(namespace="alice", pod="train"), 1000, "1000", False),
        (Owner(pod_uid="u1"), 1000, "1000", False),
    ],
)  # fmt: skip
def test_what_belongs_to_a_user_of_this_host(owner: Owner, uid: int | None, job_uid: str, *, expected: bool) -> None:
    """Own processes and jobs, and containers of the user's own daemon."""
    facts = None if uid is None else Facts(7, 1, 0, "python3", uid, user="alice")

    assert HOST.owns(owner, facts, job_uid) is expected
    assert not Scope("alice", None, None).owns(owner, facts, job_uid)  # no account on this host


def test_the_outer_namespace_counts() -> None:
    """With --owners.nested=inner, a tenant can name a pod inside its own like that of another tenant."""
    inner = pod("alice", "train", outer=pod("bob", "kind"))

    assert not ALICE.owns(inner)
    assert Scope("bob", frozenset({"bob"})).owns(inner)


def test_the_history_has_own_pods_only() -> None:
    """No row, power or GPU of others; a name that another tenant may have chosen is left out, too."""
    history, node = History(1.0), Node(2, 40)
    ticks = [node.tick() for _ in range(15)]
    for tick in ticks:
        history.add(tick)
    scope = Scope("t", frozenset({"team-2"}))
    own = [use for use in ticks[-1].containers if use.owner.namespace == "team-2"]
    past = own_past(history.past(), ticks[-1], scope)
    assert all(row.colour == first_choice(row.owner) for row in past.owners.rows)  # whoever else there is

    assert {row.owner for row in past.owners.rows} == {use.owner.display_name for use in own} != set()
    assert past.gpus.rows == ()
    assert set(past.owners.unowned_watts) == {None}
    nested = replace(own[0], owner=replace(own[0].owner, outer=pod("team-2", "kind")))
    assert own_past(history.past(), replace(ticks[-1], containers=(nested,), processes=()), scope).owners.rows == ()


def test_every_joule_of_a_node_is_own_or_others() -> None:
    """The views of all namespaces and of the rest add up: what is one tenant's is another one's others."""
    node = Node(2, 40)
    ticks = [node.tick() for _ in range(10)]
    for namespace in ("team-2", "team-3"):
        view = own_snapshot(ticks[-1], ticks[0], Scope("t", frozenset({namespace})))
        for gpu in view.gpus:
            own = sum(sum(row.joules.values()) for row in view.containers if row.gpu_uuid == gpu.uuid)
            energy = gpu.energy
            assert energy is not None
            assert energy.joules is not None
            assert gpu.others is not None
            rest = energy.idle_joules + sum(energy.unattributed_joules.values())
            assert energy.joules == pytest.approx(own + (gpu.others.joules or 0) + rest, abs=0.002)
            assert own > 0
        assert {row.namespace for row in (*view.processes, *view.containers)} == {namespace}
