"""Who gets a GPU's energy, case by case, as the table of the ledger says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuledger.books import Books
from gpuledger.ledger.split import Policy
from gpuledger.model import Accounting, Driver, Facts, Owner, Owners, Reading, Resident, Tick
from gpuledger.shares.resting import resting_power
from tests.builders import CUT, GPU, S, World, account, cut, energy, reopened, run


def unattributed(tick: Tick) -> dict[str, int]:
    """Unattributed energy by reason, without the energy before the start."""
    return {reason: mj for reason, mj in account(tick).unattributed_mj if reason != "before"}


def test_the_first_reading_is_before() -> None:
    """The counter started long before the exporter: its first value belongs to the device and to no process."""
    first = account(run({"pids": [1]}))

    assert (first.energy_mj, first.unattributed_mj) == (1_000_000, (("before", 1_000_000),))


def test_a_gpu_without_processes_is_idle() -> None:
    """Its energy is idle energy, and its power is learned."""
    last = account(run({}, {"mj": 80_000, "utilization_pct": 0}))

    assert (last.idle_mj, last.idle_power_mw, last.parked_power_mw) == (80_000, 80_000, None)


def test_a_process_at_one_end_only() -> None:
    """It started or ended somewhere in between: idle power to idle, the rest to it, and not called measured."""
    came = run({}, {"mj": 80_000}, {"pids": [7], "mj": 300_000})
    left = run({"pids": [7]}, {"mj": 300_000})

    assert account(came).idle_mj == 160_000
    assert energy(came) == {7: {"edge": 220_000}}
    assert energy(left) == {7: {"edge": 300_000}}


def test_power_times_time_is_rounded_down() -> None:
    """80.001 W for half a second are 40,000.5 mJ: the half is not the idle account's."""
    last = run({}, {"mj": 80_001}, {"pids": [7], "mj": 50_000, "after_s": 0.5})

    assert account(last).idle_mj == 80_001 + 40_000
    assert energy(last) == {7: {"edge": 10_000}}


def test_parked_power_is_shared_by_all_and_the_rest_by_work() -> None:
    """Learned while both waited, then taken off before the work is split."""
    waiting = {"pids": [1, 2], "mj": 120_000, "utilization_pct": 0}

    last = run({"pids": [1, 2]}, waiting, {"pids": [1, 2], "mj": 520_000, "work": {1: 75, 2: 25}})

    assert account(last).parked_power_mw == 120_000
    assert energy(last) == {1: {"parked": 120_000, "sm_time": 300_000}, 2: {"parked": 120_000, "sm_time": 100_000}}


def test_the_example_of_the_page() -> None:
    """docs/attribution.md: 640,002 mJ at 121 W parked, worked for as 61 to 30 to 0. The page has the same numbers."""
    books, world = Books(), World()
    books.book(world.tick(1, 2, 3))
    before = energy(books.book(world.tick(1, 2, 3, mj=121_000, utilization_pct=0)))

    after = energy(books.book(world.tick(1, 2, 3, mj=640_002, work={1: 61, 2: 30})))

    parked = [after[pid]["parked"] - before[pid]["parked"] for pid in (1, 2, 3)]
    worked = [after[pid].get("sm_time", 0) for pid in (1, 2, 3)]
    together = [one + other for one, other in zip(parked, worked, strict=True)]
    assert (parked, worked) == ([40_334, 40_333, 40_333], [347_902, 171_100, 0])
    assert sum(together) == 640_002
    page = (Path(__file__).parents[2] / "docs" / "attribution.md").read_text().replace("**", "")
    for row in (parked, worked, together):
        assert " | ".join(f"{mj:,}" for mj in row) in page


@pytest.mark.parametrize("pids", [(1, 2), (2, 1)])
def test_ties_go_to_the_lowest_pid(pids: tuple[int, ...]) -> None:
    """Whatever order the driver lists processes in."""
    last = run({"pids": pids}, {"pids": pids, "mj": 7, "work": dict.fromkeys(pids, 50)})

    assert energy(last) == {1: {"sm_time": 4}, 2: {"sm_time": 3}}


def test_parked_energy_can_be_kept_apart() -> None:
    """--energy.parked=separate."""
    steps = ({"pids": [1, 2]}, {"pids": [1, 2], "mj": 120_000})

    last = run(*steps, {"pids": [1, 2], "mj": 520_000, "work": {1: 75}}, policy=Policy(parked_apart=True))

    assert unattributed(last) == {"parked": 240_000}
    assert energy(last) == {1: {"sm_time": 400_000}, 2: {}}


def test_strict_books_only_what_is_measured() -> None:
    """--energy.strict: shared energy and the edges of a process are unattributed."""
    steps: list[dict[str, Any]] = [{"pids": [1]}, {"pids": [1], "mj": 5}, {"pids": [1, 2], "mj": 7, "work": {1: 9}}]

    last = run(*steps, {"pids": [2], "mj": 11}, {"mj": 13}, {"mj": 17}, policy=Policy(strict=True))

    assert energy(last) == {1: {"exclusive": 5}, 2: {}}
    assert unattributed(last) == {"shared": 7 + 11 + 13}
    assert account(last).idle_mj == 17


def test_without_samples_shared_energy_is_nobodys() -> None:
    """There is nothing to split it by."""
    last = run({"pids": [1, 2]}, {"pids": [1, 2], "mj": 100, "samples": False})

    assert unattributed(last) == {"shared": 100}


def test_work_of_a_process_never_listed() -> None:
    """It came and went between two ticks, and has its share of the work by the driver's samples of it."""
    alone = run({}, {"mj": 100, "work": {9: 50}})
    beside = run({"pids": [1]}, {"pids": [1], "mj": 100, "work": {1: 30, 9: 10}})
    two = run({}, {"mj": 100, "work": {8: 10, 9: 30}})

    assert energy(alone) == {9: {"edge": 100}}
    assert energy(beside) == {1: {"sm_time": 75}, 9: {"sm_time": 25}}
    assert energy(two) == {8: {"sm_time": 25}, 9: {"sm_time": 75}}
    assert [use.active for use in alone.processes] == [False]
    assert unattributed(alone) == unattributed(beside) == unattributed(two) == {}


def test_a_glimpsed_process_has_no_parked_share() -> None:
    """Power at rest belongs to listed processes: that of an empty GPU is idle, that of waiting the listed process's."""
    books, world = Books(), World()
    for _ in range(20):
        books.book(world.tick(mj=80))  # idle power is learned
    after_one = books.book(world.tick(mj=180, work={9: 50}))
    for _ in range(20):
        books.book(world.tick(1, 2, mj=100))  # and parked power
    before, after = books.book(world.tick(1, mj=100)), books.book(world.tick(1, mj=200, work={8: 50}))

    assert energy(after_one)[9] == {"edge": 100}
    assert energy(after)[8] == {"sm_time": 100}
    assert energy(after)[1]["parked"] - energy(before)[1].get("parked", 0) == 100


def test_short_processes_in_accounting_mode() -> None:
    """One that was gone before any sample is known by the driver's account of it: 60 % of half a second."""
    short = Accounting(9, running=False, gpu_pct=60, time_ms=500)
    still = Accounting(1, running=True, gpu_pct=50, time_ms=100_000)
    last = run({"pids": [1], "work": {1: 0}}, {"pids": [1], "mj": 400, "work": {1: 90}, "accounting": (short, still)})

    assert energy(last) == {1: {"sm_time": 300}, 9: {"sm_time": 100}}
    assert {use.resident.pid: use.busy_ns for use in last.processes} == {1: 900_000_000, 9: 300_000_000}


def test_late_samples_of_a_process_that_left() -> None:
    """They do not make an idle GPU used, nor another process less than alone."""
    last = run({"pids": [7]}, {"mj": 10}, {"mj": 20, "work": {7: 30}})

    assert account(last).idle_mj == 20

    last = run({"pids": [1, 2, 7]}, {"pids": [1, 2], "mj": 10}, {"pids": [1, 2], "mj": 20, "work": {1: 5, 7: 15}})
    assert energy(last)[1]["sm_time"] == 20
    assert "sm_time" not in energy(last)[7]


def test_a_counter_that_falls_adds() -> None:
    """The driver was loaded again: its new counter is unattributed, and the total continues."""
    books, world = Books(), World()
    books.book(world.tick(1))
    world.energy_mj = 100
    for _ in range(2):
        assert account(books.book(world.tick(1, mj=100))).energy_mj == 1_000_000  # it may have been misread
    books.book(world.tick(1))

    last = books.book(world.tick(1, mj=50))

    assert account(last).energy_mj == 1_000_350
    assert unattributed(last) == {"reset": 300}
    assert energy(last) == {1: {"exclusive": 50}}


@pytest.mark.parametrize(("after_s", "pids"), [(11, [2]), (3600, []), (-5, [1]), (21, [1]), (3600, [1])])
def test_a_gap_is_unattributed(after_s: float, pids: list[int]) -> None:
    """If no process was there on both sides, or samples cover less than half of the time.

    Without a monotonic clock, a clock that was set is a gap.
    """
    last = run({"pids": [1]}, {"pids": pids, "mj": 100, "after_s": after_s}, {"pids": pids, "mj": 7})

    assert unattributed(last) == {"gap": 100}


@pytest.mark.parametrize("after_s", [11, 20])
def test_energy_of_a_late_tick_is_for_processes_at_both_ends(after_s: float) -> None:
    """By work as far as samples reach back, none for one that came meanwhile; with --energy.strict, a gap."""
    for policy in (Policy(), Policy(strict=True)):
        books, world = Books(policy=policy), World()
        books.book(world.tick(1))
        alone = books.book(world.tick(1, mj=100, after_s=after_s))
        books, world = Books(policy=policy), World()
        books.book(world.tick(1, 2))
        shared = books.book(world.tick(1, 2, 3, mj=100, after_s=after_s, work={1: 60, 2: 20, 3: 20}))

        assert energy(alone) == {1: {} if policy.strict else {"edge": 100}}
        by_work = {1: {"sm_time": 75}, 2: {"sm_time": 25}, 3: {}}
        assert energy(shared) == ({1: {}, 2: {}, 3: {}} if policy.strict else by_work)
        for last in (alone, shared):
            assert unattributed(last) == ({"gap": 100} if policy.strict else {})


def test_a_gap_with_a_failure_in_it_is_an_error() -> None:
    """The failure is the reason of the gap."""
    books, world = Books(), World()
    books.book(world.tick(1))
    books.book(world.tick(1, mj=50, up=False, after_s=6))

    assert unattributed(books.book(world.tick(1, mj=50, after_s=6))) == {"error": 100}


@pytest.mark.parametrize("after_s", [1e-9, 10])
def test_what_is_no_gap(after_s: float) -> None:
    """Any time at all, and as long as the driver's samples reach."""
    assert energy(run({"pids": [1]}, {"pids": [1], "mj": 1, "after_s": after_s})) == {1: {"exclusive": 1}}


def test_slow_ticks_are_no_gaps() -> None:
    """With --tick.interval=30s."""
    last = run({"pids": [1]}, {"pids": [1], "mj": 100, "after_s": 30}, longest_ns=75 * S)

    assert energy(last) == {1: {"exclusive": 100}}


@pytest.mark.parametrize("failure", ["down", "list", "driver"])
@pytest.mark.parametrize(("after", "expected"), [([1], {}), ([1, 2], {"error": 300}), ([], {"error": 300})])
def test_an_error_in_between(failure: str, after: list[int], expected: dict[str, int]) -> None:
    """Costs the interval, unless the same process was alone before and after."""
    books, world = Books(), World()
    books.book(world.tick(1))
    bad = world.tick(1, mj=100)
    if failure == "driver":
        bad = Tick(bad.time_ns, Driver(up=False))
    else:
        changes: dict[str, Any] = {"up": False} if failure == "down" else {"residents": None}
        bad = replace(bad, readings=(replace(bad.readings[0], **changes),))
    books.book(bad)

    last = books.book(world.tick(*after, mj=200))

    assert unattributed(last) == expected
    assert energy(last).get(1, {}) == ({} if expected else {"exclusive": 300})


def test_a_gpu_that_never_lists_processes() -> None:
    """All its energy is unattributed at once, up to the first tick with a process list."""
    assert unattributed(run({"residents": None}, {"residents": None, "mj": 100})) == {"error": 100}
    assert unattributed(run({"residents": None}, {"pids": [1], "mj": 100})) == {"error": 100}


@pytest.mark.parametrize(("mj", "reason"), [(1_750_000, None), (1_750_001, "jump")])
def test_a_jump_is_nobodys(mj: int, reason: str | None) -> None:
    """More than 1.5 times the limit, and a second's slack, cannot have been used."""
    same = {"pids": [1], "after_s": 0}
    last = run({"pids": [1], "power_limit_mw": 700_000}, {"pids": [1], "mj": mj}, {**same}, {**same})

    assert unattributed(last) == ({} if reason is None else {reason: mj})


def test_a_gpu_without_a_counter() -> None:
    """Power times time, from one reading to the next, to the millijoule."""
    watts = {"pids": [1], "energy_mj": None, "power_mw": 100_000}

    last = run(watts, {**watts, "power_mw": 200_000}, {**watts, "after_s": 0.0001})

    assert account(last).source == "power"
    assert energy(last) == {1: {"exclusive": 150_015}}


def test_a_counter_slower_than_the_ticks() -> None:
    """The energy of a tick in which it stood still comes with the next, and the work of both counts."""
    steps: list[dict[str, Any]] = [{"pids": [1, 2]}]
    steps += [{"pids": [1, 2], "after_s": 0.5, "work": {1: 100}}, {"pids": [1, 2], "after_s": 0.5, "work": {2: 100}}]
    steps[-1]["mj"] = 1000

    rows = energy(run(*steps))

    assert rows[1]["sm_time"] == pytest.approx(500, rel=0.2)
    assert rows[2]["sm_time"] == 1000 - rows[1]["sm_time"]


@pytest.mark.parametrize("kind", ["compute", "mps"])
def test_mps(kind: str) -> None:
    """The server's work is its clients', equally; a process beside them has its own."""
    world = World(mps_servers={1: "root"})
    residents = (Resident(1, "compute"), Resident(2, kind), Resident(3, kind), Resident(4, "compute"))

    last = run({"residents": residents}, {"residents": residents, "mj": 1000, "work": {1: 60, 4: 40}}, world=world)

    assert energy(last) == {1: {}, 2: {"mps": 300}, 3: {"mps": 300}, 4: {"sm_time": 400}}


def test_mps_server_of_a_tenant() -> None:
    """A server that root did not start hands its energy only to processes of its own container."""
    world = World(mps_servers={1: "user"}, containers={1: "c1", 2: "c1", 3: "c2"})

    last = run({"pids": (1, 2, 3)}, {"pids": (1, 2, 3), "mj": 1000, "work": {1: 100}}, world=world)

    assert energy(last) == {1: {}, 2: {"mps": 1000}, 3: {}}


def test_mps_servers_of_two_tenants() -> None:
    """Each keeps its energy: the driver does not tell whose clients worked."""
    world = World(mps_servers={1: "user", 3: "user"}, containers={1: "c1", 2: "c1", 3: "c2"})

    last = run({"pids": (1, 2, 3)}, {"pids": (1, 2, 3), "mj": 1000, "work": {1: 50, 3: 50}}, world=world)

    assert energy(last) == {1: {"sm_time": 500}, 2: {}, 3: {"sm_time": 500}}


def test_a_server_of_mps_without_clients_is_a_process_as_any_other() -> None:
    """There is no client to which its work could be attributed."""
    world = World(mps_servers={1: "root"})

    last = run({"pids": [1, 2]}, {"pids": [1, 2], "mj": 1000, "work": {1: 60, 2: 40}}, world=world)

    assert energy(last) == {1: {"sm_time": 600}, 2: {"sm_time": 400}}


def test_a_process_in_the_mps_list_is_a_client() -> None:
    """Where the driver has such a list, a waiting process outside of it is no client."""
    world = World(mps_servers={1: "root"})
    residents = (Resident(1, "compute"), Resident(2, "mps"), Resident(3, "compute"))

    last = run({"residents": residents}, {"residents": residents, "mj": 1000, "work": {1: 60}}, world=world)

    assert energy(last) == {1: {}, 2: {"mps": 1000}, 3: {}}


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        ((50.0, 75.0), {1: 125, 2: 125, 3: 750}),  # 16 and 32 multiprocessors
        ((None, 75.0), {1: 250, 2: 250, 3: 500}),
        ((None, None), {1: 250, 2: 250, 3: 500}),
    ],
)
def test_mig(activity: tuple[float | None, ...], expected: dict[int, int]) -> None:
    """By how much of each instance was busy, where all tell; then equally inside."""
    books, world = Books(), World()
    books.book(cut(world, (1, 2), (3,)))
    world.now_ns += S
    world.energy_mj += 1000

    last = books.book(cut(world, (1, 2), (3,), activity=activity))

    assert energy(last) == {pid: {"mig": mj} for pid, mj in expected.items()}
    assert {use.device.uuid for use in last.processes} == {"MIG-1", "MIG-2"}


def test_a_process_that_joins_another_in_a_mig_instance() -> None:
    """The first is known from its time alone in the instance and explains all of its activity; the sum is exact."""
    books, world = Books(), World(names={1: "one", 2: "two", 3: "three"})
    for second in range(30):
        inside = (1,) if second < 15 else (1, 2)
        last = books.book(cut(world, inside, (3,), activity=(50.0, 75.0)))
        world.now_ns += S
        world.energy_mj += 400_000

    (gpu,) = last.accounts.values()
    assert gpu.residual_mj == 0
    assert all(energy(last)[pid]["mig"] > 0 for pid in (1, 3))
    assert all(0 <= (use.energy_share_error or 0) < 0.6 for use in last.processes)


def test_outdated_activity_of_a_mig_instance_is_waited_for() -> None:
    """Power has changed, so the next tick has the activity by which both are booked; it is not waited for long."""
    books, world = Books(), World()
    books.book(cut(world, (1,), (2,), activity=(50.0, 0.0)))

    def booked(activity: tuple[float, float], *, outdated: bool) -> Tick:
        world.now_ns, world.energy_mj = world.now_ns + S, world.energy_mj + 100_000
        whole, *migs = cut(world, (1,), (2,), activity=activity).readings
        made = [replace(mig, activity_held=outdated, activity_outdated=outdated) for mig in migs]
        return books.book(world.around(whole, *made))

    assert energy(booked((50.0, 0.0), outdated=True)) == {1: {}, 2: {}}
    done = energy(booked((0.0, 50.0), outdated=False))
    assert sum(sum(by_method.values()) for by_method in done.values()) == 200_000
    assert done[2]["mig"] > 190_000

    for _ in range(4):
        last = booked((0.0, 50.0), outdated=True)
    assert account(last).energy_mj == 1_500_000


def test_work_in_a_mig_instance_without_processes() -> None:
    """The instance has its share, which is unattributed."""
    books, world = Books(), World()
    books.book(cut(world, (1, 2), ()))
    world.now_ns += S
    world.energy_mj += 1000

    last = books.book(cut(world, (1, 2), (), activity=(50.0, 75.0)))

    assert energy(last) == {1: {"mig": 125}, 2: {"mig": 125}}
    assert unattributed(last) == {"unseen": 750}


def test_a_mig_instance_that_does_not_tell_in_between() -> None:
    """Half of its activity is not enough to share by."""
    books, world = Books(), World()
    books.book(cut(world, (1, 2), (3,)))
    for activity in ((50.0, 75.0), (None, 75.0)):
        world.now_ns += S // 2
        world.energy_mj += 500
        last = books.book(cut(world, (1, 2), (3,), activity=activity))

    assert energy(last) == {1: {"mig": 250}, 2: {"mig": 250}, 3: {"mig": 500}}


def test_of_a_gpu_that_is_cut_the_lists_of_its_instances_count() -> None:
    """Its own may not be told."""
    books, world = Books(), World()
    for mj in (0, 1000):
        world.now_ns += S
        world.energy_mj += mj
        tick = cut(world, (1, 2), (3,))
        whole = replace(tick.readings[0], residents=None)
        last = books.book(replace(tick, readings=(whole, *tick.readings[1:])))

    assert energy(last) == {1: {"mig": 250}, 2: {"mig": 250}, 3: {"mig": 500}}


def test_the_activity_of_a_long_tick_counts_more() -> None:
    """0.2 s of 16 multiprocessors beside 0.8 s of 32."""
    books, world = Books(), World()
    books.book(cut(world, (1,), (3,)))
    for after_ns, activity in ((S // 5, (100.0, 0.0)), (4 * S // 5, (0.0, 100.0))):
        world.now_ns += after_ns
        world.energy_mj += 500
        last = books.book(cut(world, (1,), (3,), activity=activity))

    assert energy(last)[3]["mig"] == pytest.approx(1000 * 0.8 * 32 / (0.2 * 16 + 0.8 * 32), abs=2)


def test_a_mig_instance_that_goes_away() -> None:
    """It tells nothing any more, so that all that were in use count alike."""
    books, world = Books(), World()
    books.book(cut(world, (1, 2), (3,)))
    world.now_ns += S
    world.energy_mj += 1000
    tick = cut(world, (1, 2), (), activity=(50.0, None))

    last = books.book(replace(tick, readings=tick.readings[:2]))

    assert energy(last) == {1: {"mig": 250}, 2: {"mig": 250}, 3: {"mig": 500}}


def test_mig_at_rest() -> None:
    """No instance worked: all energy is that of processes that wait, equally."""
    books, world = Books(), World()
    books.book(cut(world, (1, 2), (3,)))
    world.now_ns += S
    world.energy_mj += 999

    last = books.book(cut(world, (1, 2), (3,), activity=(0.0, 0.0)))

    assert energy(last) == {pid: {"parked": 333} for pid in (1, 2, 3)}


def test_the_floor_moves_by_whole_milliwatts() -> None:
    """A quarter of the way down in a second and a sixtieth up, rounded down, never past the power that was seen."""
    seen = [(120_000, S), (120_061, S), (119_999, S), (119_997, 4 * S), (119_001, 9 * S), (119_002, 60 * S)]
    powers = []
    resting_mw: int | None = None
    for power_mw, elapsed_ns in seen:
        resting_mw = resting_power(resting_mw, power_mw, elapsed_ns)
        powers.append(resting_mw)

    assert powers == [120_000, 120_001, 120_000, 119_997, 119_001, 119_002]
    assert resting_power(119_002, 119_003, 4 * S) == 119_002


def test_the_floor_follows_low_powers_fast_and_high_ones_slowly() -> None:
    """A burst in a quiet interval hardly lifts it; a new level is reached in the end."""
    resting_mw: int | None = None
    for power in (120_000, 600_000, 120_000):
        resting_mw = resting_power(resting_mw, power, S)
    assert resting_mw == pytest.approx(126_000, rel=0.01)
    for _ in range(600):
        resting_mw = resting_power(resting_mw, 150_000, S)
    assert resting_mw == pytest.approx(150_000, rel=0.01)


def test_gpus_have_their_own_accounts() -> None:
    """A process on two GPUs has a row on each."""
    books, world = Books(), World()
    for mj in (0, 100):
        world.now_ns += S
        world.energy_mj += mj
        one = Reading(GPU, energy_mj=world.energy_mj, residents=(Resident(7, "compute"),), samples=())
        booked = books.book(world.around(one, replace(one, device=CUT, energy_mj=5 * world.energy_mj)))

    assert [use.energy_mj for use in booked.processes] == [(("exclusive", 100),), (("exclusive", 500),)]


# -- processes that are not listed


def facts_of(tick: Tick, pid: int, start: int, container: str = "") -> Tick:
    """The tick with what the kernel says of a process that is not listed."""
    owners = {pid: Owner(container="name", container_id=container)} if container else {}
    return replace(tick, facts={pid: Facts(pid, start, 0, f"p{start}")}, owners=Owners(by_pid=owners))


def test_a_hidden_process_gets_its_name_late() -> None:
    """In another PID namespace it is never listed; what is known of it, and that it is there, is kept up."""
    books, world = Books(), World()
    books.book(world.tick())
    books.book(world.tick(mj=10, work={9: 50}))
    books.book(facts_of(world.tick(mj=10, work={9: 50}), 9, 7))
    done = books.book(facts_of(world.tick(mj=10, work={9: 50}), 9, 7, "c1"))

    (use,) = (use for use in done.processes if use.facts is not None)
    assert (use.facts and use.facts.name, use.owner.container, use.active) == ("p7", "name", None)
    assert [total.owner.container for total in done.containers] == ["name"]


def test_a_hidden_process_with_a_reused_pid() -> None:
    """Another start is another process: it begins at nothing."""
    books, world = Books(), World()
    books.book(world.tick())
    books.book(facts_of(world.tick(mj=100, work={9: 50}), 9, 7))
    done = books.book(facts_of(world.tick(mj=10, work={9: 50}), 9, 8))

    assert [(use.facts and use.facts.name, use.energy_mj) for use in done.processes] == [("p8", (("edge", 10),))]
    assert account(done).retired_mj == 100


def test_a_client_of_mps_that_was_glimpsed_first() -> None:
    """Sampled before it is listed: it waits like the others once it is."""
    books, world = Books(), World(mps_servers={1: "root"})
    books.book(world.tick(1))
    both = {1: Facts(1, 1, 0, mps_server="root"), 2: Facts(2, 1, 0)}
    books.book(replace(world.tick(1, mj=50, after_s=0.3, work={2: 10}), facts=both))
    listed = (Resident(1, "compute"), Resident(2, "mps"))
    done = books.book(world.tick(1, 2, mj=50, after_s=0.7, residents=listed))

    assert account(done).residual_mj == 0
    assert sum(sum(methods.values()) for methods in energy(done).values()) == 100


def test_a_late_sample_beside_short_processes() -> None:
    """A process that left two ticks ago gets nothing of the work since then."""
    last = run({"pids": [7]}, {"mj": 10}, {"mj": 100, "work": {7: 30, 8: 10, 9: 10}})

    assert (energy(last)[8], energy(last)[9]) == ({"sm_time": 50}, {"sm_time": 50})


def test_an_account_is_not_added_to_samples() -> None:
    """A process that ran for an hour at 1 % did not work a whole tick because it ended."""
    ended = Accounting(9, running=False, gpu_pct=1, time_ms=3_600_000)
    sampled = run({"work": {1: 0}}, {"mj": 10, "work": {9: 1}}, {"mj": 10, "accounting": (ended,)})
    never = run({"pids": [1], "work": {1: 0}}, {"pids": [1], "mj": 100, "work": {1: 99}, "accounting": (ended,)})

    assert [use.busy_ns for use in sampled.processes] == [10_000_000]
    assert energy(never) == {1: {"sm_time": 99}, 9: {"sm_time": 1}}


# -- slow ticks


def test_ticks_of_fifteen_seconds() -> None:
    """They are no gaps: time is counted, and shares are by work as far as samples reach back."""
    books, world = Books(longest_ns=40 * S), World()
    books.book(world.tick(1, 2, utilization_pct=50))
    for _ in range(3):
        done = books.book(world.tick(1, 2, mj=1000, after_s=15, work={1: 30, 2: 10}, utilization_pct=40))

    assert energy(done) == {1: {"sm_time": 2250}, 2: {"sm_time": 750}}
    assert account(done).in_use_ns == 45 * S
    assert account(done).busy_ns == 18 * S
    assert [use.busy_ns for use in done.processes] == [9 * S, 3 * S]


def test_ticks_of_fifteen_seconds_without_a_counter() -> None:
    """Power times time, from end to end."""
    books, world = Books(longest_ns=40 * S), World()
    for _ in range(3):
        done = books.book(world.tick(1, after_s=15, energy_mj=None, power_mw=100_000))

    assert account(done).energy_mj == 3_000_000


def test_an_interval_without_energy_readings_does_not_grow() -> None:
    """Processes come and go while a GPU reports no energy: the open interval does not keep them."""
    books, world = Books(), World()
    books.book(world.tick(1))
    for pid in range(2, 100):
        books.book(world.tick(pid, energy_mj=None, work={pid: 50}))
    ledger = books._energy.ledgers[GPU.uuid]

    assert ledger._open is not None
    assert len(ledger._open.rows) < 20
    assert len(ledger._open.busy_ns) < 20
    last = books.book(world.tick(1, mj=500))
    assert unattributed(last) == {"error": 500}


def test_the_books_of_a_stuck_counter() -> None:
    """The first seconds are unattributed; then a process alone on the GPU has all energy, also after a restart."""
    books, world = Books(), World(energy_mj=0)
    for _ in range(4):
        done = books.book(world.tick(1, power_mw=100_000))
    assert unattributed(done) == {"stuck": 300_000}
    assert (account(done).source, account(done).counter_stuck) == ("power", True)

    books = reopened(books, world.now_ns)
    done = books.book(world.tick(1, power_mw=100_000))
    assert energy(done) == {1: {"gap": 100_000}}
    done = books.book(world.tick(1, power_mw=100_000))
    assert energy(done) == {1: {"gap": 100_000, "exclusive": 100_000}}
    assert (account(done).source, account(done).counter_stuck) == ("power", True)

    done = books.book(world.tick(1, mj=600_000, power_mw=100_000))  # the energy since the beginning
    assert energy(done) == {1: {"gap": 100_000, "exclusive": 200_000}}
    assert (account(done).source, account(done).counter_stuck) == ("counter", False)
    assert account(done).energy_mj == 600_000
