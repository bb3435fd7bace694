"""The parked part of an owner's energy."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.ledger.parked import ParkedBook, ParkedPart
from gpuledger.model import Account, ContainerUse, Device, Owner

S = 10**9
GPU = Device(0, "GPU-0")
ACCOUNT = Account(parked_power_mw=120_000, idle_power_mw=75_000)


def test_alone_and_working() -> None:
    """Of 500 W, 120 W are parked, whatever the length of the ticks."""
    part = ParkedPart({}, 0)
    for second in range(1, 11):
        part.add({"exclusive": 500_000 * second}, second * S, ACCOUNT)

    assert part.parked_mj == 1_200_000


def test_alone_and_waiting() -> None:
    """Everything is parked, also if the energy counter moves in steps that do not match the ticks."""
    part, energy = ParkedPart({}, 0), 0
    for second in range(1, 101):
        energy += 110_000 if second % 2 else 130_000
        part.add({"exclusive": energy}, second * S, ACCOUNT)

    assert energy - part.parked_mj <= 10_000


def test_shared() -> None:
    """The ledger's own parked energy counts, and nothing of the work."""
    part = ParkedPart({"parked": 7}, 0)

    assert part.add({"parked": 60_007, "fingerprint": 300_000}, S, ACCOUNT) == 60_000


def test_an_edge_has_no_idle_power() -> None:
    """Where idle power is booked elsewhere, only the rest of parked power is part of the energy."""
    assert ParkedPart({}, 0).add({"edge": 400_000}, S, ACCOUNT) == 45_000


def test_nothing_booked_adds_up_later() -> None:
    """A booking after three ticks contains three ticks of parked power."""
    part = ParkedPart({"exclusive": 5}, 0)
    for second in (1, 2):
        assert part.add({"exclusive": 5}, second * S, ACCOUNT) == 0

    assert part.add({"exclusive": 1_500_005}, 3 * S, ACCOUNT) == 360_000


def test_unknown_parked_power() -> None:
    """Without it, energy of a process that is alone is not divided."""
    assert ParkedPart({}, 0).add({"exclusive": 400_000}, S, Account()) == 0
    assert ParkedPart({}, 0).add({"exclusive": 400_000}, S, None) == 0


def test_a_row_that_falls_starts_again() -> None:
    """A sum of other containers counts from its next tick, and never decreases."""
    part = ParkedPart({}, 0)
    part.add({"exclusive": 500_000}, S, ACCOUNT)

    assert part.add({"exclusive": 100_000}, 2 * S, ACCOUNT) == 120_000
    assert part.add({"exclusive": 600_000}, 3 * S, ACCOUNT) == 240_000


def test_containers_count_from_their_first_tick() -> None:
    """Energy of a journal is not divided, and each container on each device has its own part."""

    def use(container: str, mj: int) -> ContainerUse:
        return ContainerUse(GPU, Owner(container_id=container), 1, None, None, energy_mj=(("exclusive", mj),))

    book, accounts = ParkedBook(), {"GPU-0": ACCOUNT}
    first = book.book((use("a", 10**9),), accounts, S)
    second = book.book((use("a", 10**9 + 500_000), use("b", 3)), accounts, 2 * S)

    assert [container.parked_mj for container in first] == [0]
    assert [container.parked_mj for container in second] == [120_000, 0]


def test_parked_energy_continues_from_a_journal() -> None:
    """Until the container is booked again its state stays in the journal; then it counts on."""
    use = ContainerUse(GPU, Owner(container_id="a"), 1, None, None, energy_mj=(("exclusive", 10**9),))
    book, accounts = ParkedBook(), {"GPU-0": ACCOUNT}
    book.book((use,), accounts, S)
    book.book((replace(use, energy_mj=(("exclusive", 10**9 + 500_000),)),), accounts, 2 * S)

    later = ParkedBook()
    later.resume(book.state())
    assert later.state() == book.state()
    (resumed,) = later.book((use,), accounts, 3 * S)
    assert resumed.parked_mj == 120_000
    assert later.book((use,), accounts, 4 * S)[0] is resumed
