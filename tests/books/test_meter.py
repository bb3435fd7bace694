"""How much energy a GPU used since the reading before."""

from __future__ import annotations

import pytest

from gpuledger.books.meter import CHECKED_MW_NS, Meter, Rise
from gpuledger.model import Reading
from tests.books.worlds import GPU, START_NS, S


def reading(energy_mj: int | None = None, power_mw: int | None = None, limit_mw: int | None = None) -> Reading:
    """What the GPU says."""
    return Reading(GPU, energy_mj=energy_mj, power_mw=power_mw, power_limit_mw=limit_mw)


def test_the_check_adds_up_power_and_counter() -> None:
    """The mean of both ends times the time between, beside what the counter rose by."""
    meter = Meter()
    for second, (energy_mj, power_mw) in enumerate([(1000, 100_000), (151_000, 200_000), (351_000, 200_003)]):
        meter.read(reading(energy_mj, power_mw), START_NS + second * S)

    assert (meter.checked_counter_mj, meter.checked_power_mj) == (350_000, 350_001)


def test_what_was_long_ago_counts_less_in_the_check() -> None:
    """Past an hour at 280 W both sums are halved, so that their ratio stays and what is new weighs more."""
    assert pytest.approx(280_000 * 3600 * S, rel=0.02) == CHECKED_MW_NS
    meter, mw = Meter(), CHECKED_MW_NS // (10 * S)
    for tick, energy_mj in enumerate([0, 1000]):
        meter.read(reading(energy_mj, mw), START_NS + tick * 10 * S)
    assert (meter.checked_counter_mj, meter.checked_power_mj) == (1000, CHECKED_MW_NS // S)

    meter.read(reading(1501, mw), START_NS + 20 * S)

    assert (meter.checked_counter_mj, meter.checked_power_mj) == (750, CHECKED_MW_NS // S)
    assert isinstance(meter.checked_power_mj, int)


@pytest.mark.parametrize(("after_ns", "checked_mj"), [(10 * S, 1000), (10 * S + 1, 0), (0, 0), (-S, 0)])
def test_power_tells_nothing_of_a_long_time(after_ns: int, checked_mj: int) -> None:
    """Nor of none: neither enters the check."""
    meter = Meter()
    meter.read(reading(0, 100), START_NS)
    assert meter.read(reading(1000, 100), START_NS + after_ns) == Rise(1000)

    assert meter.checked_counter_mj == checked_mj


def test_the_check_leaves_out_what_is_not_believed() -> None:
    """A counter that fell, and one that jumped."""
    meter = Meter()
    for second, energy_mj in enumerate([1000, 10, 10**9]):
        meter.read(reading(energy_mj, 100_000, 700_000), START_NS + second * S)

    assert (meter.checked_counter_mj, meter.checked_power_mj) == (0, 0)


def test_power_that_is_not_told_at_one_end() -> None:
    """There is no mean of it."""
    meter = Meter()
    for second, power_mw in enumerate([100_000, None, 100_000]):
        meter.read(reading(1000 * second, power_mw), START_NS + second * S)

    assert meter.checked_power_mj == 0


def test_a_limit_stays_known() -> None:
    """It is read only now and then. The default limit does where there is no other."""
    meter = Meter()
    meter.read(Reading(GPU, energy_mj=0, power_default_limit_mw=700_000), START_NS)
    assert meter.read(reading(1_750_001), START_NS + S) == Rise(1_750_001, "jump")
    assert meter.read(reading(1_750_001 + 25_001, limit_mw=10_000), START_NS + 2 * S) == Rise(25_001, "jump")


@pytest.mark.parametrize(("after_ns", "reason"), [(0, "jump"), (-1, "")])
def test_a_jump_in_no_time(after_ns: int, reason: str) -> None:
    """A second's slack is all there is then; with a clock set back nothing can be said."""
    meter = Meter()
    meter.read(reading(0, limit_mw=700_000), START_NS)

    assert meter.read(reading(700_001), START_NS + after_ns) == Rise(700_001, reason)


def test_a_counter_that_comes_late_takes_the_place_of_power() -> None:
    """What was booked from power is in its first reading; never less than nothing."""
    for first_mj, rise in ((500_000, 350_000), (100_000, 0)):
        meter = Meter()
        meter.read(reading(power_mw=150_000), START_NS)
        assert meter.read(reading(power_mw=150_000), START_NS + S) == Rise(150_000)
        assert meter.source == "power"

        assert meter.read(reading(first_mj, 150_000), START_NS + 2 * S) == Rise(rise, "before")
        assert meter.source == "counter"


def test_no_counter_and_no_power_is_no_answer() -> None:
    """And a counter that is not told for a while is not replaced by power: it will tell."""
    meter = Meter()
    assert meter.read(reading(), START_NS) is None
    assert meter.source == ""
    meter.read(reading(1000, 100), START_NS)
    assert meter.read(reading(None, 100), START_NS + S) is None
    assert meter.read(reading(3000, 100), START_NS + 2 * S) == Rise(2000)


def test_fractions_of_power_are_carried_on() -> None:
    """A tick of 0.1 ms at 5 W is half a millijoule; the next one has the whole."""
    meter = Meter()
    rises = [meter.read(reading(power_mw=5000), START_NS + tick * S // 10_000) for tick in range(5)]

    assert [rise and rise.mj for rise in rises] == [0, 0, 1, 0, 1]
