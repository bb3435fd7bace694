"""What stays of a process that is gone, for how long, and where it goes then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuledger.books import Books
from gpuledger.ledger.retention import MOST_EXITED
from gpuledger.model import Reading, Resident, Tick
from tests.builders import CUT, S, World, account, cut, reopened


def shown(tick: Tick) -> dict[int, tuple[bool | None, int]]:
    """By pid whether it is there, and its energy."""
    return {use.resident.pid: (use.active, sum(mj for _, mj in use.energy_mj)) for use in tick.processes}


def test_an_exited_process_stays_and_is_then_retired() -> None:
    """With the labels it last had; its joules move, none is lost."""
    books, world = Books(keep_ns=5 * S), World(names={7: "train"}, containers={7: "c1"})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100, memory_used_bytes=5))

    for _ in range(4):
        booked = books.book(world.tick())
        assert shown(booked) == {7: (False, 100)}
        assert account(booked).retired_mj == 0
        (use,) = booked.processes
        assert (use.facts and use.facts.name, use.owner.container_id, use.sample) == ("train", "c1", None)
        assert [(c.processes, c.energy_mj) for c in booked.containers] == [(0, (("exclusive", 100),))]

    booked = books.book(world.tick())
    assert (booked.processes, booked.containers) == ((), ())
    assert account(booked).retired_mj == 100


def test_a_container_keeps_what_its_exited_processes_used() -> None:
    """As long as another of its processes is there, and then for the same time."""
    books, world = Books(keep_ns=3 * S), World(containers={1: "c1", 2: "c1"})
    books.book(world.tick(1))
    books.book(world.tick(1, mj=100, work={1: 50}))
    for _ in range(10):
        booked = books.book(world.tick(2))
    assert shown(booked) == {2: (True, 0)}
    assert [dict(use.energy_mj) for use in booked.containers] == [{"exclusive": 100}]
    assert (booked.containers[0].busy_ns or 0) > 0

    for _ in range(3):
        booked = books.book(world.tick())
    assert booked.containers == ()


def test_two_ticks_at_one_time() -> None:
    """A process that is not in the second tick has left, whatever the clock shows."""
    books, world = Books(), World()
    books.book(world.tick(7))

    assert shown(books.book(world.tick(after_s=0))) == {7: (False, 0)}


def test_a_process_that_comes_back_goes_on() -> None:
    """It let go of the GPU and took it again: the same row."""
    books, world = Books(), World()
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100))
    books.book(world.tick())
    books.book(world.tick(7))

    assert shown(books.book(world.tick(7, mj=11))) == {7: (True, 111)}


def test_without_process_lists_no_process_has_exited() -> None:
    """The rows stay, and it is unknown whether their processes are there."""
    books, world = Books(), World()
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100))

    assert shown(books.book(world.tick(residents=None))) == {7: (None, 100)}
    assert shown(books.book(world.tick(7))) == {7: (True, 100)}
    books.book(world.tick())
    assert shown(books.book(world.tick(residents=None))) == {7: (False, 100)}  # that it left was seen


def test_facts_that_come_late_or_go_do_not_make_another_process() -> None:
    """A tick in which /proc could not be read does not split a row."""
    books, world = Books(), World()
    for start in (None, 5, None, 5):
        world.starts[7] = start
        booked = books.book(world.tick(7, mj=100))

    assert shown(booked) == {7: (True, 300)}


def test_limits_hold_for_exited_processes_too() -> None:
    """Those that are there come first; not shown is not lost."""
    books, world = Books(2), World()
    books.book(world.tick(1, 2, 3))
    booked = books.book(world.tick(1))
    assert len(booked.processes) == 2
    assert shown(booked)[1] == (True, 0)

    books = Books()
    books.book(world.tick(*range(1, MOST_EXITED + 10)))
    assert len(books.book(world.tick()).processes) == MOST_EXITED


def test_an_owner_learned_late_gets_all() -> None:
    """The container's total is that of its processes from their first tick on, and is not taken back."""
    books, world = Books(), World()
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100))
    world.containers[7] = "c1"
    assert dict(books.book(world.tick(7)).containers[0].energy_mj) == {"exclusive": 100}
    world.containers = {}

    booked = books.book(world.tick(7))

    assert dict(booked.containers[0].energy_mj) == {"exclusive": 100}


def test_the_last_to_exit_are_kept() -> None:
    """When there is not room for all; of those that left together, the lowest pids."""
    books, world = Books(2), World()
    books.book(world.tick(1, 2, 3))
    books.book(world.tick(3))
    assert set(shown(books.book(world.tick()))) == {3, 1}


def test_a_clock_that_is_set_changes_no_age() -> None:
    """Neither back, even while the lists fail, nor forward by a day: age is time on the monotonic clock."""
    books, world = Books(keep_ns=5 * S), World(containers={7: "c1"})
    monotonic_ns = 0

    def booked(*pids: int, **more: Any) -> Tick:
        nonlocal monotonic_ns
        monotonic_ns += S
        return books.book(replace(world.tick(*pids, **more), monotonic_ns=monotonic_ns))

    booked(7)
    booked(7, mj=100)
    booked(after_s=-5, residents=None)
    booked(after_s=-3600)
    for _ in range(3):
        assert shown(booked(after_s=86_400)) == {7: (False, 100)}

    assert shown(booked()) == {}


def test_while_the_gpu_is_lost_nothing_ages() -> None:
    """A process and its container are shown for as long as it takes, and go on counting afterwards."""
    books, world = Books(keep_ns=5 * S), World(containers={7: "c1"})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100))
    for _ in range(20):
        booked = books.book(world.tick(up=False))
        assert [dict(use.energy_mj) for use in booked.containers] == [{"exclusive": 100}]

    booked = books.book(world.tick(7, residents=(Resident(7, "compute"),)))

    assert [sum(dict(use.energy_mj).values()) for use in booked.containers] == [100]


def test_a_container_that_runs_keeps_its_total() -> None:
    """It left the GPU for longer than the retention; its total ends that time after it has ended itself."""
    books, world = Books(keep_ns=5 * S), World(containers={7: "c1"})
    books.book(world.tick(7))
    books.book(world.tick(7, mj=100))
    for _ in range(20):
        tick = world.tick()
        booked = books.book(replace(tick, owners=replace(tick.owners, running=frozenset({"c1"}))))
    assert booked.processes == ()
    assert [dict(use.energy_mj) for use in booked.containers] == [{"exclusive": 100}]

    for _ in range(4):
        assert len(books.book(world.tick()).containers) == 1
    assert books.book(world.tick()).containers == ()


def test_an_instance_that_was_removed_is_not_waited_for() -> None:
    """Its processes have left: MIG instances come and go while their GPU is up."""
    books, world = Books(keep_ns=5 * S), World(containers={7: "c1"})
    books.book(cut(world, (7,), ()))
    for _ in range(5):
        world.now_ns += S
        booked = books.book(world.around(Reading(CUT, energy_mj=world.energy_mj, residents=())))

    assert (booked.processes, booked.containers) == ((), ())


def joules(tick: Tick) -> dict[str, int]:
    """Energy by container name or id."""
    return {
        use.owner.container or use.owner.container_id: sum(mj for _, mj in use.energy_mj) for use in tick.containers
    }


def test_more_containers_than_the_limit() -> None:
    """The first container to leave makes room; while all are present, the newest are summed with the others."""
    books, world = Books(max_containers=2), World(containers={pid: f"c{pid}" for pid in range(1, 6)})
    books.book(world.tick(1))
    books.book(world.tick(1, mj=100))
    books.book(world.tick(2))
    books.book(world.tick(2, mj=50))
    books.book(world.tick(2, 3))
    assert joules(books.book(world.tick(2, 3))) == {"c2": 50, "c3": 0, "other": 100}
    assert shown(books.book(world.tick(2, 3))) == {2: (True, 50), 3: (True, 0)}  # what the first did is retired

    books.book(world.tick(2, 3, 4))
    booked = books.book(world.tick(2, 3, 4, mj=300, work={2: 50, 3: 50, 4: 50}))
    assert joules(booked) == {"c2": 150, "c3": 100, "other": 200}
    assert [use.processes for use in booked.containers] == [1, 1, 1]

    books = reopened(books, world.now_ns, max_containers=2)
    assert joules(books.book(world.tick(4))) == {"c2": 150, "c3": 100, "other": 200}


def test_a_container_that_made_room_may_come_back() -> None:
    """It begins at 0; what it used before stays with the others."""
    books, world = Books(max_containers=1), World(containers={1: "c1", 2: "c2"})
    for pid, mj in ((1, 0), (1, 100), (2, 0), (1, 0)):
        booked = books.book(world.tick(pid, mj=mj))

    assert joules(booked) == {"c1": 0, "other": 100}


def test_what_did_not_change_is_not_built_again() -> None:
    """Neither an exited process nor a container: their number must not make a tick slower."""
    books, world = Books(), World(containers={1: "c1", 2: "c2"})
    books.book(world.tick(1, 2))
    books.book(world.tick(2, mj=100))
    books.book(world.tick(2, mj=100))
    one, other = books.book(world.tick(2, mj=100)), books.book(world.tick(2, mj=100))

    assert one.containers[1] is other.containers[1]
    assert one.processes[1] is other.processes[1]
    assert one.containers[0] != other.containers[0]
