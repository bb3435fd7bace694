"""Parked power: measured, fitted, as learned earlier, or usual for the GPU model."""

from __future__ import annotations

from random import Random

import pytest

from gpuledger.shares.resting import ParkedPower

LIMIT_MW = 700_000
BUSY = (0.9, 0.1, 0.5, 0.0, 0.0, 0.0, 0.0, 0.3)


def loaded(parked: ParkedPower, amounts: list[float], parked_w: float = 120.0) -> None:
    """Seconds in which a program does these amounts of work, at 500 W each."""
    random = Random(1)
    for amount in amounts:
        power_w = parked_w + 500 * amount + random.uniform(-3, 3)
        parked.work(tuple(unit * amount for unit in BUSY), int(power_w * 1000), 1.0)


def test_nothing_is_known_of_a_gpu_that_never_worked() -> None:
    """Not even with a model: waiting processes get nothing until there is power to divide."""
    assert ParkedPower().best("NVIDIA H200", LIMIT_MW) == (None, "")


def test_measured_at_rest_goes_first() -> None:
    """Before a fit and before what was learned earlier."""
    parked = ParkedPower(earlier_mw=99_000)
    loaded(parked, [0.3, 0.9] * 60)
    parked.rest(121_000, 10**9)

    assert parked.best("NVIDIA H200", LIMIT_MW) == (121_000, "measured")


def test_fitted_to_a_load_that_varies() -> None:
    """The GPU never rests; the power at no activity is where the line ends."""
    parked = ParkedPower(earlier_mw=99_000)
    loaded(parked, [0.3, 0.5, 0.9, 0.6] * 30)

    power_mw, source = parked.best("NVIDIA H200", LIMIT_MW)

    assert source == "fitted"
    assert power_mw == pytest.approx(120_000, abs=5_000)
    assert parked.learned_mw(LIMIT_MW) == power_mw


def test_earlier_if_the_load_does_not_vary() -> None:
    """A steady load says nothing about rest."""
    parked = ParkedPower(earlier_mw=99_000)
    loaded(parked, [0.8] * 120)

    assert parked.best("NVIDIA H200", LIMIT_MW) == (99_000, "earlier")


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
    parked = ParkedPower()
    loaded(parked, [0.8] * 120)

    assert parked.best(model, limit_mw) == expected
    assert parked.learned_mw(limit_mw) is None


def test_usual_power_is_below_the_lowest_observed() -> None:
    """A GPU that draws less than is usual."""
    parked = ParkedPower()
    parked.work(None, 60_000, 1.0)

    assert parked.best("NVIDIA H200", LIMIT_MW) == (54_000, "model")


def test_a_low_reading_long_ago_does_not_bound_for_good() -> None:
    """The lowest power rises again within minutes."""
    parked = ParkedPower()
    parked.work(None, 60_000, 1.0)
    loaded(parked, [0.8] * 900)

    assert parked.best("NVIDIA H200", LIMIT_MW) == (122_000, "model")
