"""The meter: energy by counter or by power, from reading to reading."""

from __future__ import annotations

import pytest

from gpuledger.ledger.meter import CHECKED_MW_NS, CONFIRMATIONS, Meter, Rise
from gpuledger.model import Reading
from tests.builders import GPU, START_NS, S


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
    assert believed(meter, reading(1_750_001), START_NS + S) == Rise(1_750_001, "jump")
    assert believed(meter, reading(1_750_001 + 25_001, limit_mw=10_000), START_NS + 2 * S) == Rise(25_001, "jump")


def believed(meter: Meter, told: Reading, now_ns: int) -> Rise | None:
    """What is booked after the same reading came often enough."""
    return next((rise for _ in range(CONFIRMATIONS + 1) if (rise := meter.read(told, now_ns)) is not None), None)


@pytest.mark.parametrize("wrong_mj", [0, 999_999, 10**15, 2**63 - 1, 2**64 - 1])
def test_a_wrong_reading_is_not_believed(wrong_mj: int) -> None:
    """Once or twice too low or too high: what comes next is what was used since the last good one."""
    meter = Meter()
    meter.read(reading(1_000_000, limit_mw=700_000), START_NS)

    assert [meter.read(reading(wrong_mj), START_NS + second * S) for second in (1, 2)] == [None, None]
    assert meter.read(reading(1_000_300), START_NS + 3 * S) == Rise(300)


def test_wrong_readings_with_good_ones_between_them() -> None:
    """Only readings in a row confirm each other, also if the counter did not move between them."""
    meter = Meter()
    rises = [meter.read(reading(mj), START_NS + n * S) for n, mj in enumerate([1000, 0, 1000, 0, 1000, 0, 1000, 0])]

    assert rises == [Rise(1000, "before"), None, Rise(0), None, Rise(0), None, Rise(0), None]


def test_a_counter_that_is_always_wrong_is_none() -> None:
    """Its first value would be booked, and no journal could hold what comes of it."""
    meter = Meter()
    readings = [meter.read(reading(2**63 + second, 1000), START_NS + second * S) for second in range(3)]

    assert readings == [Rise(0), Rise(1000), Rise(1000)]
    assert meter.source == "power"


@pytest.mark.parametrize(("after_ns", "reason"), [(0, "jump"), (-1, "")])
def test_a_jump_in_no_time(after_ns: int, reason: str) -> None:
    """A second's slack is all there is then; with a clock set back nothing can be said."""
    meter = Meter()
    meter.read(reading(0, limit_mw=700_000), START_NS)

    assert believed(meter, reading(700_001), START_NS + after_ns) == Rise(700_001, reason)


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


def stuck_meter(power_mw: int = 145_000, counter_mj: int = 7000) -> Meter:
    """A meter whose counter stood still for three seconds."""
    meter = Meter()
    for second in range(4):
        meter.read(reading(counter_mj, power_mw), START_NS + second * S)
    assert meter.stuck_mj == 3 * power_mw
    return meter


def test_a_counter_that_stands_still_while_power_is_drawn() -> None:
    """After seconds its energy is power times time, including that of the seconds; the ratio says nothing of it."""
    meter = Meter()
    rises = [meter.read(reading(7000, 145_000), START_NS + second * S) for second in range(6)]

    assert rises == [Rise(7000, "before"), Rise(0), Rise(0), Rise(435_000, "stuck"), Rise(145_000), Rise(145_000)]
    assert meter.source == "power"
    assert (meter.checked_counter_mj, meter.checked_power_mj) == (0, 0)


@pytest.mark.parametrize(
    ("tick_ns", "power_mw", "ticks"),
    [
        (S, 145_000, 3),
        (S // 10, 700_000, 25),
        (S, 10_000, 5),
        (S, 1000, 50),
        (10 * S, 700_000, 1),
        (11 * S, 145_000, 0),
    ],
)
def test_how_long_a_counter_may_stand_still(tick_ns: int, power_mw: int, ticks: int) -> None:
    """2.5 s and 50 J; readings too far apart say nothing of the power between them."""
    meter = Meter()
    for tick in range(ticks):
        assert meter.read(reading(7000, power_mw), START_NS + tick * tick_ns) is not None
        assert meter.stuck_mj is None
    rise = meter.read(reading(7000, power_mw), START_NS + ticks * tick_ns)

    assert meter.stuck_mj == (power_mw * ticks * tick_ns // S if ticks else None)
    assert rise == (Rise(meter.stuck_mj, "stuck") if meter.stuck_mj else Rise(7000, "before"))


def test_a_slow_counter_is_not_stuck() -> None:
    """It moves every two seconds; the ratio compares all of its energy with all of the power."""
    meter = Meter()
    for second in range(60):
        meter.read(reading(second // 2 * 1_400_000, 700_000), START_NS + second * S)
        assert meter.source == "counter"

    assert meter.checked_counter_mj == meter.checked_power_mj == 29 * 1_400_000


@pytest.mark.parametrize(
    ("counter_mj", "rise_mj"),
    [
        (7000 + 4 * 145_000, 145_000),  # it counted all the time
        (7000 + 4 * 145_000 + 10, 145_010),
        (7000 + 3 * 145_000 - 1, 0),  # power was a little too high
        (7000 + 145_000, 145_000),  # it continues where it stopped
        (7001, 145_000),
    ],
)
def test_a_counter_that_moves_again(counter_mj: int, rise_mj: int) -> None:
    """What power has booked is not booked again, and nothing that was used is missing."""
    meter = stuck_meter()

    assert meter.read(reading(counter_mj, 145_000), START_NS + 4 * S) == Rise(rise_mj)
    assert (meter.source, meter.stuck_mj) == ("counter", None)
    assert meter.read(reading(counter_mj + 150_000, 145_000), START_NS + 5 * S) == Rise(150_000)


def test_a_counter_that_catches_up_after_an_hour_did_not_jump() -> None:
    """A jump is what neither the elapsed time nor power explains."""
    meter, hour_mj = stuck_meter(), 3600 * 145_000
    for second in range(4, 3600):
        meter.read(reading(7000, 145_000, 700_000), START_NS + second * S)

    assert meter.read(reading(7000 + hour_mj, 145_000), START_NS + 3600 * S) == Rise(145_000)
    assert meter.booked_mj == 7000 + hour_mj


def test_a_stuck_counter_that_is_reset() -> None:
    """It is believed after two more readings. The energy of these seconds is not lost, even if it is stuck again."""
    meter = stuck_meter()
    rises = [meter.read(reading(0, 145_000), START_NS + second * S) for second in range(4, 11)]

    assert rises == [None, None, Rise(435_000, "reset"), Rise(0), Rise(0), Rise(435_000, "stuck"), Rise(145_000)]


def test_a_stuck_counter_without_power() -> None:
    """Neither tells the energy until power is there again; a counter that is absent meanwhile changes nothing."""
    meter = stuck_meter()

    assert meter.read(reading(7000, None), START_NS + 4 * S) is None
    assert meter.read(reading(None, 145_000), START_NS + 5 * S) == Rise(290_000)
    assert meter.stuck_mj == 5 * 145_000


def test_a_counter_that_stays_lower_is_not_booked_again() -> None:
    """It has not started from 0: within 3 s, a GPU of 700 W cannot use 900 kJ. What it used is power times time."""
    meter = Meter()
    meter.read(reading(10**9, 145_000, 700_000), START_NS)
    rises = [meter.read(reading(9 * 10**8 + 145_000 * n, 145_000, 700_000), START_NS + n * S) for n in range(1, 5)]

    assert rises == [None, None, Rise(435_000, "reset"), Rise(145_000)]
