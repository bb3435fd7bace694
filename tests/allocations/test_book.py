"""The idle ledger: time and energy of allocations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.books import Books
from gpuledger.model import (
    IDLE_REASONS,
    OUTSIDE,
    UNKNOWN_OWNER,
    Activity,
    Allocation,
    Device,
    Driver,
    Entitlement,
    Owner,
    Reading,
    Resident,
    Tick,
)
from gpuledger.storage.journal import decode, encode
from tests.allocations.allocated import (
    DOCKER,
    JOB,
    OTHER,
    POD,
    Node,
    grant,
    joules,
    running,
    seconds,
    to_docker,
    with_allocations,
)
from tests.builders import BOOT, CUT, GPU, MIGS, START_NS, S, World, accounts, reopened, sequences

HOST = Owner(reason=OUTSIDE)
UNNAMED = Owner(pod_uid="u9", container_id="c9", reason="pod has no name yet")


def test_a_life_of_an_allocation() -> None:
    """Never started, busy, low, parked, killed: every second and every joule has one state, and all add up."""
    node = Node()
    node.one(mj=0)
    for _ in range(3):
        node.one(mj=50_000)
    node.one(7, mj=100_000, work={7: 80}, utilization_pct=80)
    node.one(7, mj=500_000, work={7: 80}, utilization_pct=80)
    node.one(7, mj=200_000, work={7: 3}, utilization_pct=3)
    node.one(7, mj=110_000, work={}, utilization_pct=0)
    node.one(7, mj=110_000, work={}, utilization_pct=0)
    node.one(mj=60_000)
    tick = node.tick(mj=50_000)
    (use,) = tick.allocations

    assert seconds(use) == {"no_process": 5, "busy": 2, "low": 1, "parked": 2}
    assert use.allocated_ns == 10 * S
    assert sum(mj for _, mj in use.energy_mj) == (accounts(tick)[GPU.uuid].energy_mj or 0) - 1_000_000
    assert joules(use)["busy"] == 600
    assert joules(use)["low"] == 200
    assert joules(use)["parked"] == 220
    assert use.last_busy_ns == START_NS + 6 * S
    assert use.idle_since_ns == START_NS + 6 * S
    assert use.period_gpu_ns == 5 * S
    assert use.period_mj == 200_000 + 220_000 + 60_000 + 50_000


def test_work_ends_the_idle_period() -> None:
    """The period of the next idle second starts where the work ended; totals continue."""
    node = Node()
    node.one()
    node.one(mj=10)
    busy = node.one(7, work={7: 50}, utilization_pct=50)
    idle = node.one(7, mj=5)

    assert (busy.idle_since_ns, busy.period_gpu_ns, busy.period_mj) == (None, 0, 0)
    assert idle.idle_since_ns == busy.last_busy_ns == START_NS + 3 * S
    assert idle.period_gpu_ns == S
    assert idle.idle_gpu_ns == 2 * S


@pytest.mark.parametrize(
    ("work", "state"),
    [({7: 0}, "parked"), ({7: 4}, "low"), ({7: 5}, "busy"), ({7: 3, 8: 3}, "busy"), ({7: 100}, "busy")],
)
def test_the_threshold_is_for_the_allocation(work: dict[int, int], state: str) -> None:
    """5 % by default, summed over the allocation's processes."""
    node = Node()

    assert node.one(7, 8, work=work, utilization_pct=max(work.values())).state == state


def test_without_a_threshold_all_work_is_busy() -> None:
    """--allocation.low 0%: one percent is busy, and no work is still parked."""
    node = Node(low_pct=0)

    assert node.one(7, work={7: 1}, utilization_pct=1).state == "busy"
    assert node.one(7, utilization_pct=0, after_s=5).state == "parked"


def test_video_is_work() -> None:
    """A transcoder uses the decoder and no SM."""
    node = Node()

    assert node.one(7, utilization_pct=0, decoder_pct=40).state == "busy"


def test_short_ticks_use_a_sample_twice() -> None:
    """Ticks of 0.1 s have a new sample of a busy process in every second tick only."""
    node = Node()
    node.one(7, 8, owners={8: OTHER}, work={7: 90}, utilization_pct=90)
    for number in range(1, 11):
        work = {7: 90} if number % 2 == 0 else {}
        use = node.one(7, 8, owners={8: OTHER}, work=work, utilization_pct=90, after_s=0.1)

    assert seconds(use) == {"busy": 1}


@pytest.mark.parametrize(
    ("pids", "owners", "more", "state"),
    [
        ((), {}, {"utilization_pct": 0}, "no_process"),
        ((), {}, {"utilization_pct": None}, "no_process"),
        ((), {}, {"utilization_pct": 30}, "unknown"),
        ((7,), {7: OTHER}, {"work": {7: 90}, "utilization_pct": 90}, "no_process"),
        ((7,), {7: HOST}, {"work": {7: 90}, "utilization_pct": 90}, "no_process"),
        ((7,), {7: OTHER}, {"samples": False, "utilization_pct": 90}, "no_process"),
        ((7,), {7: UNKNOWN_OWNER}, {"work": {7: 90}, "utilization_pct": 90}, "unknown"),
        ((7,), {7: UNNAMED}, {"work": {7: 90}, "utilization_pct": 90}, "unknown"),
        ((7,), {7: UNNAMED}, {"work": {}, "utilization_pct": 0}, "no_process"),
        ((7, 8), {8: UNNAMED}, {"work": {8: 90}, "utilization_pct": 90}, "unknown"),
        ((7, 8), {8: UNNAMED}, {"work": {7: 50, 8: 90}, "utilization_pct": 90}, "busy"),
        ((7, 8), {8: OTHER}, {"work": {8: 90}, "utilization_pct": 90}, "parked"),
        ((7, 8), {8: OTHER}, {"samples": False, "utilization_pct": 90}, "unknown"),
        ((7, 8), {8: OTHER}, {"samples": False, "utilization_pct": 0}, "parked"),
        ((7,), {}, {"samples": False, "utilization_pct": 90}, "busy"),
        ((7,), {}, {"samples": False, "utilization_pct": None}, "unknown"),
        ((7,), {}, {"work": {}, "utilization_pct": 90}, "busy"),
        ((), {}, {"up": False}, "unknown"),
        ((), {}, {"residents": None}, "unknown"),
    ],
)
def test_idle_only_if_proven(pids: tuple[int, ...], owners: dict[int, Owner], more: dict[str, Any], state: str) -> None:
    """Work that may be the allocation's makes the state unknown; work of others does not make it busy."""
    assert Node().one(*pids, owners=owners, **more).state == state


def test_a_hidden_process_may_be_the_owner() -> None:
    """Memory without a listed process: while the GPU works the state is unknown, otherwise the holder is parked."""
    memory = {"memory_used_bytes": 8 << 30, "memory_total_bytes": 80 << 30, "memory_reserved_bytes": 0}
    node = Node()
    node.allocations = {"holders": (running(),)}

    assert node.one(**memory, utilization_pct=40).state == "unknown"
    assert node.one(**memory, utilization_pct=0).state == "parked"


def test_clients_of_mps_share_their_servers_work() -> None:
    """The driver's samples name only the server, so that no client is called idle while the server works."""
    node = Node()
    node.world.mps_servers = {9: "root"}

    assert node.one(7, 9, owners={9: HOST}, work={9: 70}, utilization_pct=70).state == "busy"
    node.world.mps_servers = {9: "user"}
    assert node.one(7, 9, owners={9: HOST}, work={9: 70}, utilization_pct=70).state == "parked"


@pytest.mark.parametrize(
    ("owner", "allocations"),
    [
        (DOCKER, {"allocations": (to_docker(),)}),
        (replace(OTHER, outer=DOCKER), {"allocations": (to_docker(),)}),
        (replace(JOB, outer=POD), {"holders": (running(),)}),
        (JOB, {"allocations": (Allocation(GPU, Owner(job="211", account="phys")),)}),
        (replace(POD, container=""), {}),
        (Owner(container_id="c1", pod_uid="u1", reason="pod has no name yet"), {"holders": (running(),)}),
    ],
)
def test_containers_and_jobs_are_owners_too(owner: Owner, allocations: dict[str, Any]) -> None:
    """A container by its id, a job by its number, a pod's container without a name by its pod or the pod's uid.

    A pod in a node of kind, or a job in a pod, by the container around it.
    """
    node = Node()

    assert node.one(7, owners={7: owner}, allocations=allocations, work={7: 50}, utilization_pct=50).state == "busy"


def test_two_pods_share_a_gpu() -> None:
    """Each has its own seconds; GPU time is divided, and the joules of both are not more than those of the GPU."""
    node = Node()
    node.allocations = {"allocations": (grant(), grant(OTHER))}
    node.tick()
    node.tick(mj=1001)
    node.tick(7, owners={7: OTHER}, mj=4000, work={7: 90}, utilization_pct=90)
    tick = node.tick(7, owners={7: OTHER}, mj=5000, work={7: 90}, utilization_pct=90)
    first, second = tick.allocations

    assert seconds(first) == {"no_process": 3}
    assert seconds(second) == {"no_process": 1, "busy": 2}
    assert (first.idle_gpu_ns, second.idle_gpu_ns) == (3 * S // 2, S // 2)
    assert sum(mj for use in (first, second) for _, mj in use.energy_mj) == 10_001
    assert joules(first) == {"no_process": 1.0}  # half of the idle energy before and around the start of the process


def test_replicas_of_one_container_are_one_allocation() -> None:
    """Two time slices of a GPU in one container are not two allocations."""
    node = Node()
    node.allocations = {"allocations": (grant(replica="0"), grant(replica="1"))}

    assert node.one().shared_by == 1


def test_what_an_owner_uses_of_what_it_asked_for() -> None:
    """Compute as a part of the GPU, memory as the driver lists it; the parts of others do not count."""
    node = Node()
    half, quarter = Entitlement("kai", 0.5, 4 << 30), Entitlement("kai", 0.25, 2 << 30)
    given = (replace(grant(), entitlement=half), replace(grant(OTHER), entitlement=quarter))
    node.allocations = {"allocations": given}
    residents = (Resident(7, "compute", 1 << 30), Resident(8, "compute", 3 << 30))
    for _ in range(2):
        tick = node.tick(7, 8, owners={8: OTHER}, work={7: 25, 8: 50}, utilization_pct=75, residents=residents)
    first, second = tick.allocations

    assert (first.entitlement, second.entitlement) == (half, quarter)
    assert (first.compute_used_ratio, second.compute_used_ratio) == (0.5, 2.0)
    assert (first.memory_used_ratio, second.memory_used_ratio) == (0.25, 1.5)


def test_what_an_allocation_without_processes_uses() -> None:
    """Nothing, which is known; and without an answer of the driver, that is not known."""
    node = Node()
    node.allocations = {"allocations": (replace(grant(), entitlement=Entitlement("device", 1.0, 1 << 30)),)}
    use = node.one()
    assert (use.compute_used_ratio, use.memory_used_ratio) == (0, 0)

    use = node.one(up=False, residents=None)
    assert (use.compute_used_ratio, use.memory_used_ratio) == (None, None)


def test_replicas_of_one_container_add_up() -> None:
    """Two of ten time slices are a fifth. A whole device that is listed twice is one device."""
    node = Node()
    tenth = Entitlement("replica", 0.1, 1 << 30)
    whole = Entitlement("device", 1.0, 1 << 30)
    node.allocations = {"allocations": tuple(replace(grant(replica=n), entitlement=tenth) for n in "01")}
    assert node.one().entitlement == Entitlement("replica", 0.2, 2 << 30)

    node.allocations = {"allocations": (replace(grant(), entitlement=whole), replace(grant(), entitlement=whole))}
    assert node.one().entitlement == whole


def test_a_whole_device_given_to_several_owners_has_no_parts() -> None:
    """`docker run --gpus all` twice: none of them asked for the GPU of the other."""
    node = Node()
    whole = Entitlement("device", 1.0, 1 << 30)
    node.allocations = {"allocations": (replace(grant(), entitlement=whole), replace(to_docker(), entitlement=whole))}

    assert [use.entitlement for use in node.tick().allocations] == [None, None]


def test_a_pod_that_docker_reports_too_counts_once() -> None:
    """With cri-dockerd, the kubelet and Docker both report the device of the same container."""
    node = Node()
    by_docker = Allocation(GPU, Owner(container="k8s_main_train-0", container_id="c1"))
    node.allocations = {"holders": (running(),), "allocations": (grant(), by_docker)}

    assert node.one().owner.pod == "train-0"


def test_a_pod_without_a_running_container_has_ended() -> None:
    """Kubelets before 1.34 list it; if a runtime reports containers, it is left out."""
    node = Node()
    node.allocations = {"allocations": (grant(), grant(OTHER)), "holders": (running(),)}

    assert node.one().owner.pod == "train-0"


def test_mig_instances_are_parts_of_their_gpu() -> None:
    """An idle 1g instance beside a free 2g instance is a third of the GPU, in time and in idle energy."""
    small, large = (replace(mig, mig_profile=f"{slices}g.10gb") for mig, slices in zip(MIGS, (1, 2), strict=True))
    books, world = Books(), World()

    def tick(mj: int) -> Tick:
        world.now_ns += S
        world.energy_mj += mj
        gpu = Reading(CUT, energy_mj=world.energy_mj, residents=())
        migs = [Reading(mig, residents=(), activity=Activity(graphics_pct=0.0)) for mig in (small, large)]
        return books.book(with_allocations(world.around(gpu, *migs), allocations=(grant(device=small),)))

    tick(0)
    (use,) = tick(9000).allocations

    assert seconds(use) == {"no_process": 1}
    assert use.idle_gpu_ns == S // 3
    assert joules(use) == {"no_process": 3}


@pytest.mark.parametrize(
    ("pct", "state"), [(0.0, "parked"), (0.05, "parked"), (3.0, "low"), (60.0, "busy"), (None, "unknown")]
)
def test_activity_of_a_mig_instance(pct: float | None, state: str) -> None:
    """The driver has no samples of processes on instances; GPM measures the instance of one owner."""
    world = World()
    gpu = Reading(CUT, residents=(), samples=())
    resident = Resident(7, "compute", gpu_instance_id=1)
    migs = [Reading(mig, residents=(resident,), activity=Activity(graphics_pct=pct)) for mig in MIGS[:1]]
    tick = with_allocations(world.around(gpu, *migs), {7: POD}, allocations=(grant(device=MIGS[0]),))

    assert Books().book(tick).allocations[0].state == state


def test_a_gpu_and_its_instances_allocated_at_the_same_time() -> None:
    """`docker run --gpus all` beside a pod with an instance: the GPU's idle energy counts once."""
    books, world = Books(), World()
    for mj in (0, 1000):
        world.now_ns += S
        world.energy_mj += mj
        gpu = Reading(CUT, energy_mj=world.energy_mj, residents=())
        migs = [Reading(mig, residents=(), activity=Activity(graphics_pct=0.0)) for mig in MIGS]
        tick = books.book(
            with_allocations(world.around(gpu, *migs), allocations=(grant(device=MIGS[0]), to_docker(CUT)))
        )

    assert sorted(joules(use)["no_process"] for use in tick.allocations) == [0.5, 0.5]
    assert sum(use.idle_gpu_ns for use in tick.allocations) == S


def test_a_lost_gpu_is_unknown_and_keeps_the_idle_period() -> None:
    """The period survives five minutes; a longer time without knowledge ends it."""
    node = Node()
    node.one()
    before = node.one()
    for _ in range(10):
        lost = node.one(up=False)
    assert seconds(lost) == {"no_process": 1, "unknown": 10}
    assert lost.idle_since_ns == before.idle_since_ns

    for _ in range(300):
        lost = node.one(up=False)
    assert lost.idle_since_ns is None
    back = node.one()
    assert back.idle_since_ns == back.started_ns + 311 * S


def test_missed_ticks_are_unknown() -> None:
    """Nothing is known about a minute without ticks."""
    node = Node()
    node.one()

    assert seconds(node.one(after_s=60)) == {"unknown": 60}


def test_an_allocation_that_is_not_listed_for_a_moment() -> None:
    """The kubelet restarts: the time is unknown when the pod is listed again, and the idle period continues."""
    node = Node()
    node.one()
    before = node.one()
    assert node.one(allocations={"allocations": ()}, after_s=5).state == ""
    after = node.one()

    assert seconds(after) == {"no_process": 1, "unknown": 6}
    assert after.idle_since_ns == before.idle_since_ns
    assert after.allocated_ns == 7 * S


@pytest.mark.parametrize("uid", ["", "u3"])
def test_a_new_pod_of_the_same_name_starts_at_zero(uid: str) -> None:
    """By its uid at once, or without uids after a minute."""
    node = Node()
    node.allocations = {"holders": (running(),)} if uid else {}
    node.one()
    node.one()
    if uid:
        node.allocations = {"holders": (running(replace(POD, pod_uid=uid)),)}
    else:
        for _ in range(7):
            node.tick(allocations={"allocations": ()}, after_s=10)
    use = node.one()

    assert use.allocated_ns == 0
    assert use.idle_since_ns == use.started_ns == node.world.now_ns


def test_an_ended_allocation_is_shown_for_the_retention() -> None:
    """Its counters stand still, so that a scrape gets the last values."""
    node = Node(keep_ns=5 * S)
    node.one()
    node.one()
    ended = node.one(allocations={"allocations": ()})
    assert ended.state == ""
    assert seconds(ended) == {"no_process": 1}
    for _ in range(4):
        last = node.tick(allocations={"allocations": ()})

    assert last.allocations == ()


def test_the_number_is_limited() -> None:
    """An ended allocation makes room; more current ones than the limit are counted, and do not change the others."""
    node = Node(max_allocations=2)
    pods = [replace(POD, pod=f"pod-{number}") for number in range(4)]
    node.tick(allocations={"allocations": tuple(grant(pod) for pod in pods[:2])})
    full = node.tick(allocations={"allocations": tuple(grant(pod) for pod in pods[:3])})
    assert [use.owner.pod for use in full.allocations] == ["pod-0", "pod-1"]
    assert full.dropped_allocations == 1
    assert {use.shared_by for use in full.allocations} == {3}

    node.tick(allocations={"allocations": tuple(grant(pod) for pod in pods[:1])})
    room = node.tick(allocations={"allocations": (grant(pods[0]), grant(pods[3]))})
    assert [use.owner.pod for use in room.allocations] == ["pod-0", "pod-3"]
    assert room.dropped_allocations == 0


def test_a_clock_that_is_set_back() -> None:
    """Seconds follow the monotonic clock, and no moment is in the future."""
    books, world = Books(), World()
    for monotonic_s, clock_s in ((0, 0), (1, 1), (2, -3600), (3, -3599)):
        world.now_ns = START_NS + clock_s * S
        tick = replace(world.tick(after_s=0), monotonic_ns=monotonic_s * S)
        (use,) = books.book(with_allocations(tick)).allocations

    assert seconds(use) == {"no_process": 3}
    assert use.idle_since_ns == use.started_ns == world.now_ns


def test_a_restart_continues_from_the_journal() -> None:
    """The pause is unknown; the idle period, the last work and every total continue."""
    node = Node()
    node.one(7, work={7: 50}, utilization_pct=50)
    node.one(7, mj=100, work={7: 50}, utilization_pct=50)
    before = node.one(7, mj=50)
    node.books = reopened(node.books, node.world.now_ns)
    node.tick(7, mj=900, after_s=30, allocations={"allocations": ()})  # the kubelet has not answered yet
    after = node.one(7, mj=7)

    assert seconds(after) == {"busy": 1, "parked": 1, "unknown": 31}
    assert (after.idle_since_ns, after.last_busy_ns) == (before.idle_since_ns, before.last_busy_ns)
    assert after.started_ns == before.started_ns
    assert joules(after) == {"busy": 0.1, "parked": 0.05, "unknown": 0.907}


def test_the_pause_is_measured_by_the_clock_that_is_never_set() -> None:
    """The wall clock was set back during the restart."""
    books, world = Books(), World()
    books.book(with_allocations(replace(world.tick(), monotonic_ns=100 * S)))
    state = decode(encode(books.state(BOOT, world.now_ns)))
    world.now_ns -= 7200 * S
    again = Books()
    again.resume(state, world.now_ns)
    (use,) = again.book(with_allocations(replace(world.tick(), monotonic_ns=130 * S))).allocations

    assert seconds(use) == {"unknown": 30}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"times_ns": (("sleeping", 1),)}, "unknown state"),
        ({"times_ns": (("busy", -1),)}, "negative"),
        ({"period_mj": -1}, "negative"),
        ({"device": 9}, "reference"),
    ],
)
def test_a_damaged_allocation_is_refused(change: dict[str, Any], reason: str) -> None:
    """As for every other part of a journal, so that no wrong number is exposed."""
    node = Node()
    node.one()
    state = node.books.state(BOOT, node.world.now_ns)
    damaged = replace(state, allocations=(replace(state.allocations[0], **change),))

    with pytest.raises(Exception, match=reason):
        decode(encode(damaged))
    with pytest.raises(Exception, match="twice"):
        decode(encode(replace(state, allocations=state.allocations * 2)))


def test_an_older_journal_has_no_allocations() -> None:
    """It is resumed; the idle ledger starts at zero."""
    node = Node()
    node.one(7)
    node.one(7, mj=500)
    state = replace(node.books.state(BOOT, node.world.now_ns), allocations=(), monotonic_ns=None)
    node.books = Books()
    node.books.resume(decode(encode(state)), node.world.now_ns)
    tick = node.tick(7, mj=100)

    assert tick.allocations[0].allocated_ns == 0
    assert accounts(tick)[GPU.uuid].energy_mj == 1_000_600


TO_PODS, TO_CONTAINERS, TO_JOBS = (
    st.lists(st.builds(Allocation, st.sampled_from(devices), st.sampled_from(owners)), max_size=most, unique=True)
    for devices, owners, most in (
        ([GPU, CUT, *MIGS], [Owner(namespace="ml", pod=pod, container="main") for pod in "ab"], 4),
        ([GPU, CUT], [Owner(container="triton", container_id=container_id) for container_id in ("c1", "c2")], 3),
        ([GPU, *MIGS], [Owner(job="211")], 2),
    )
)
ALLOCATIONS = st.builds(
    lambda *lists: tuple(item for items in lists for item in items), TO_PODS, TO_CONTAINERS, TO_JOBS
)
OWNERS = st.sampled_from(
    [
        UNKNOWN_OWNER,
        HOST,
        UNNAMED,
        Owner(namespace="ml", pod="a", container="main", container_id="x1"),
        Owner(namespace="ml", pod="b", container="main", container_id="x2"),
        Owner(container="triton", container_id="c1"),
        Owner(job="slurm/211"),
    ]
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Tick, int]]:
    """Any ticks with allocations, each with the length of a restart before it; 0 if there is none."""
    clock_ns, history, allocations = 0, [], draw(ALLOCATIONS)
    for tick, _ in draw(sequences()):
        pause_ns = draw(st.sampled_from([0, 0, 0, 1, S, 50 * S]))
        clock_ns += pause_ns + draw(st.sampled_from([0, S // 10, S, 5 * S, 11 * S, 30 * S]))
        if not draw(st.integers(0, 4)):
            allocations = draw(ALLOCATIONS)
        owners = draw(st.dictionaries(st.integers(1, 6), OWNERS))
        history.append(
            (with_allocations(replace(tick, monotonic_ns=clock_ns), owners, allocations=allocations), pause_ns)
        )
    return history


@settings(max_examples=30)
@given(histories())
def test_seconds_and_joules_always_add_up(history: list[tuple[Tick, int]]) -> None:
    """For any ticks, allocations and restarts.

    Busy + idle + unknown is the time from the first tick with the allocation to the last; the joules of all allocations
    and their GPU time are not more than those of the GPUs.
    """
    books = Books(keep_ns=10**6 * S)
    since: dict[tuple[str, str], tuple[int, int]] = {}
    for tick, pause_ns in history:
        clock_ns = tick.monotonic_ns or 0
        if pause_ns:
            books = reopened(books, tick.time_ns, keep_ns=10**6 * S)
        booked = books.book(tick)
        now = {(use.device.uuid, use.owner.container_id or use.owner.display_name): use for use in booked.allocations}
        for key, use in now.items():
            if key not in since or (use.state and not use.allocated_ns):
                since[key] = (clock_ns, clock_ns)  # another pod of the same name
            if use.state:
                since[key] = (since[key][0], clock_ns)
            first, last = since[key]
            assert use.allocated_ns == last - first
            assert use.idle_gpu_ns <= sum(ns for _, ns in use.idle_ns)
            assert use.period_gpu_ns <= use.idle_gpu_ns
            if use.period_mj is not None:
                assert use.period_mj <= sum(mj for state, mj in use.energy_mj if state in IDLE_REASONS)
        for gpu in (GPU, CUT):
            on_gpu = [use for use in booked.allocations if use.device.gpu_uuid == gpu.uuid]
            assert sum(use.idle_gpu_ns for use in on_gpu) <= clock_ns
            if gpu.uuid in accounts(booked):
                spent_mj = sum(mj for use in on_gpu for _, mj in use.energy_mj)
                assert spent_mj <= (accounts(booked)[gpu.uuid].energy_mj or 0)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["busy", "parked", "low", "none"]),
            st.integers(0, 10**6),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_one_owner_of_a_whole_gpu_has_all_its_joules(steps: list[tuple[str, int, bool]]) -> None:
    """Busy + idle + unknown joules + unattributed = the GPU, to the millijoule, also over restarts."""
    node = Node()
    node.tick()
    for kind, mj, restart in steps:
        if restart:
            node.books = reopened(node.books, node.world.now_ns)
        pids = () if kind == "none" else (7,)
        pct = {"busy": 90, "low": 2}.get(kind, 0)
        tick = node.tick(*pids, mj=mj, work={7: pct} if pct else {}, utilization_pct=pct)
    tick = node.tick(*pids, mj=1000)  # completes the interval
    (use,) = tick.allocations
    account = accounts(tick)[GPU.uuid]
    unattributed_mj = sum(amount for _, amount in account.unattributed_mj)

    assert use.allocated_ns == (len(steps) + 1) * S
    assert sum(amount for _, amount in use.energy_mj) == (account.energy_mj or 0) - unattributed_mj


def test_energy_is_absent_if_the_gpu_reports_none() -> None:
    """Not 0: nothing was measured."""
    node = Node()
    node.one(energy_mj=None)
    use = node.one(energy_mj=None)

    assert (use.energy_mj, use.period_mj) == ((), None)
    assert seconds(use) == {"no_process": 1}


def test_a_device_that_only_the_kubelet_reports() -> None:
    """On a machine without a driver nothing is booked; an outage of the driver is unknown time."""
    ghost = Device(-1, "GPU-0")
    down = with_allocations(Tick(START_NS, Driver(up=False)), allocations=(grant(device=ghost),))
    assert Books().book(down).allocations == ()

    node = Node()
    node.one()
    down = with_allocations(Tick(node.world.now_ns + 2 * S, Driver(up=False)), allocations=(grant(device=ghost),))
    (use,) = node.books.book(down).allocations
    assert seconds(use) == {"unknown": 2}
    assert use.device == GPU
