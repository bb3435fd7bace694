"""Parked power: measured, from the journal, or usual for the GPU model."""

from __future__ import annotations

import pytest

from gpuledger.books import Books
from gpuledger.recording.replay import Replay
from gpuledger.shares.resting import ParkedPower
from tests.checkout import ROOT

LIMIT_MW = 700_000


def loaded(lowest_mw: int = 300_000, **known: int) -> ParkedPower:
    """The parked power of a GPU that worked for a minute."""
    parked = ParkedPower(**known)
    for second in range(60):
        parked.work(lowest_mw + 1000 * second, 1.0)
    return parked


def test_measured_at_rest_goes_first() -> None:
    """Before what was learned earlier; it follows a new power within seconds if that is lower."""
    parked = loaded(earlier_mw=99_000)
    parked.rest(131_000, 10**9)
    assert parked.best("NVIDIA H200", LIMIT_MW) == (131_000, "measured")

    for _ in range(12):
        parked.rest(121_000, 10**9)

    assert parked.best("NVIDIA H200", LIMIT_MW)[0] == pytest.approx(121_000, abs=500)
    assert parked.learned_mw() == parked.measured_mw


def test_a_load_that_varies_is_not_fitted() -> None:
    """Programs differ in the power of their activity, so that a fit is no measurement: the journal's value remains."""
    parked = ParkedPower(earlier_mw=99_000)
    for second in range(600):
        parked.work(200_000 + 300_000 * (second % 2), 1.0)

    assert parked.best("NVIDIA H200", LIMIT_MW) == (99_000, "earlier")
    assert parked.learned_mw() == 99_000


@pytest.mark.parametrize(
    ("model", "limit_mw", "expected"),
    [
        ("NVIDIA H200", None, (122_000, "model")),
        ("NVIDIA L4", 72_000, (int(0.17 * 72_000), "model")),
        ("NVIDIA L4", None, (None, "")),
    ],
)
def test_usual_for_the_model(model: str, limit_mw: int | None, expected: tuple[int | None, str]) -> None:
    """Measured for some models, a part of the power limit for others, nothing without a limit; never in the journal."""
    parked = loaded()

    assert parked.best(model, limit_mw) == expected
    assert parked.learned_mw() is None


@pytest.mark.parametrize("known", [{}, {"earlier_mw": 122_000}])
def test_less_than_the_lowest_power_of_work(known: dict[str, int]) -> None:
    """A GPU that draws less than is usual, or than in the journal."""
    parked = ParkedPower(**known)
    parked.work(60_000, 1.0)

    assert parked.best("NVIDIA H200", LIMIT_MW)[0] == 54_000


@pytest.mark.parametrize("source", ["earlier", "measured"])
@pytest.mark.parametrize(
    ("model", "limit_mw", "most_mw"),
    [("NVIDIA H200", LIMIT_MW, 152_500), ("NVIDIA L4", 72_000, 36_000), ("NVIDIA L4", None, 690_000)],
)
def test_at_most_what_waiting_processes_can_draw(source: str, model: str, limit_mw: int | None, most_mw: int) -> None:
    """A journal from another machine, or work that the driver did not report, is no parked power."""
    parked = ParkedPower(**{f"{source}_mw": 690_000})

    assert parked.best(model, limit_mw, 15_000) == (most_mw, source)


def test_at_least_idle_power() -> None:
    """A waiting process does not lower the power of a GPU."""
    assert loaded(60_000).best("NVIDIA H200", LIMIT_MW, idle_mw=80_000)[0] == 80_000


def test_a_low_reading_long_ago_does_not_bound_for_good() -> None:
    """The lowest power rises again within minutes."""
    parked = ParkedPower()
    parked.work(60_000, 1.0)
    for _ in range(900):
        parked.work(500_000, 1.0)

    assert parked.best("NVIDIA H200", LIMIT_MW) == (122_000, "model")


def test_parked_power_of_the_demo() -> None:
    """An H200 that is never at rest: the value of the model, and not the 160 to 190 W of a fit to its load."""
    books, replay = Books(), Replay(ROOT / "src" / "gpuledger" / "demo.jsonl.gz", looped=True, paced=False)
    for _ in range(130):
        booked = books.book(replay.read())
        powers = {account.parked_power_mw for account in booked.accounts.values()} - {None}
        assert powers <= {122_000}
