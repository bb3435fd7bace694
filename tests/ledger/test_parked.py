"""The parked part of a process's energy: what the GPU draws while all its processes wait."""

from __future__ import annotations

from gpuledger.books import Books
from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import Row
from gpuledger.ledger.split import Policy, Split, split
from gpuledger.model import Tick
from gpuledger.storage.journal import decode, encode
from tests.builders import BOOT, S, World, row

ROW, OTHER = row(1), row(2)


def booked(mj: int, *rows: Row, at_end: bool = True, parked_mw: int | None = 120_000, carried_mj: int = 0) -> Split:
    """The accounts of one second in which the GPU used this energy with these processes."""
    interval = Interval(0, frozenset(rows), energy_mj=mj, has_samples=True, busy_ns={OTHER: S})
    present = frozenset(rows if at_end else ())
    return split(
        interval,
        present,
        S,
        longest_ns=10 * S,
        idle_mw=75_000,
        parked_mw=parked_mw,
        policy=Policy(),
        carried_mj=carried_mj,
    )


def test_a_working_process_that_is_alone() -> None:
    """Of 500 W, 120 W are parked."""
    assert booked(500_000, ROW).parked_mj == {ROW: 120_000}


def test_a_waiting_process_that_is_alone() -> None:
    """All its energy is parked, also if the energy counter moves in steps that do not match the intervals."""
    energy = parked = carried = 0
    for second in range(1, 101):
        mj = 110_000 if second % 2 else 130_000
        accounts = booked(mj, ROW, carried_mj=carried)
        carried, energy, parked = accounts.carried_mj, energy + mj, parked + accounts.parked_mj[ROW]

    assert energy - parked <= 10_000


def test_little_parked_power_is_carried() -> None:
    """A counter that stands still does not save up parked power for a long time of work."""
    carried = 0
    for _ in range(10):
        carried = booked(1000, ROW, carried_mj=carried).carried_mj

    assert carried == 3 * 120_000


def test_processes_that_share() -> None:
    """Their parked energy is the part that is booked as parked."""
    accounts = booked(500_000, ROW, OTHER)

    assert accounts.parked_mj == {ROW: 60_000, OTHER: 60_000}
    assert accounts.parked_mj == {row: mj for row, method, mj in accounts.entries if method == "parked"}


def test_an_edge_has_no_idle_power() -> None:
    """Where idle power is booked as idle, only the rest of parked power is part of the energy."""
    assert booked(400_000, ROW, at_end=False).parked_mj == {ROW: 45_000}


def test_unknown_parked_power() -> None:
    """Without it, no part of the energy of a single process is parked."""
    assert booked(400_000, ROW, parked_mw=None).parked_mj == {ROW: 0}


def test_processes_and_containers_have_their_parts_also_after_a_restart() -> None:
    """The part of a container is that of its processes, exited ones included, and continues from a journal."""
    books, world = Books(keep_ns=2 * S), World(containers={1: "a", 2: "a"})

    def parts(tick: Tick) -> tuple[list[int], list[int]]:
        return [use.parked_mj for use in tick.processes], [use.parked_mj for use in tick.containers]

    for _ in range(30):
        books.book(world.tick(1, mj=120_000, utilization_pct=0, power_mw=120_000))
    waited = parts(books.book(world.tick(1, mj=500_000, work={1: 100}, power_mw=500_000)))
    assert waited[0] == waited[1]
    assert waited[0][0] > 29 * 115_000

    for _ in range(4):
        last = books.book(world.tick(2, mj=500_000, work={2: 100}, power_mw=500_000))
    (process,), (container,) = parts(last)
    assert process < container > waited[1][0]

    resumed = Books()
    resumed.resume(decode(encode(books.state(BOOT, world.now_ns))), world.now_ns)
    _, (later,) = parts(resumed.book(world.tick(2, mj=500_000, work={2: 100}, power_mw=500_000)))
    assert later >= container
