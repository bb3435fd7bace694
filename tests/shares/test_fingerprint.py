"""What is learned of a process, what is derived from it, and what a workload passes on to its next process."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.shares.fingerprint import (
    INHERITED_S,
    KEPT,
    LEARN_S,
    LEAST_DUTY_S,
    NEW_S,
    NOISE,
    USUAL,
    Fingerprint,
    Fingerprints,
)
from gpuledger.shares.regression import UNKNOWN
from gpuledger.shares.units import ALL_UNITS, GPM, UNITS, Units
from tests.builders import row

MATMUL = ((0.95, 0.14, 0.93, 0.0, 0.0, 0.0, 0.17), 0.81)
COUNT = len(ALL_UNITS)
PRIOR = NOISE**2


def of_seconds(seconds: float, *, is_alone: bool = True) -> Fingerprint:
    """A matrix multiplication that had the whole engine for so long."""
    fingerprint, (activity, power) = Fingerprint(), MATMUL
    fingerprint.learn(1.0, GPM.deviations(activity, power, 1.0), seconds, is_alone=is_alone)
    return fingerprint


def everything() -> Fingerprint:
    """A fingerprint without a zero."""
    return Fingerprint(
        weight=8.0, alone_s=6.0, moments=[4.0] * COUNT, deviations=[2.0] * COUNT, seconds=5.0, duty_s=3.0, duty2_s=2.0,
        recent=0.5, doubt=1.5,
    )  # fmt: skip


# -- what is learned


def test_learning_adds_the_sums_of_least_squares() -> None:
    """Sum w x^2 and sum w x y of two slots; only the second one was alone."""
    first, second = [1.0] * COUNT, [-0.5] * COUNT
    fingerprint = Fingerprint()

    fingerprint.learn(0.5, first, 2.0, is_alone=False)
    fingerprint.learn(0.8, second, 1.5, is_alone=True)

    assert fingerprint.weight == pytest.approx(2 * 0.5**2 + 1.5 * 0.8**2)
    assert fingerprint.alone_s == pytest.approx(1.5 * 0.8**2)
    assert fingerprint.moments == pytest.approx([2 * 0.5 * 1 - 1.5 * 0.8 * 0.5] * COUNT)


@pytest.mark.parametrize("time", [0.05, 0.3, 1.0])
def test_phi_is_that_of_a_second_on_the_engine(time: float) -> None:
    """Whatever part of the time it worked: y / x, but for NOISE^2 / (weight + NOISE^2) towards an average program."""
    activity, power = MATMUL
    truth, fingerprint = GPM.deviations(activity, power, 1.0), Fingerprint()
    for _ in range(10):
        fingerprint.learn(time, [time * unit for unit in truth], 1 / time**2, is_alone=True)

    assert fingerprint.phi() == pytest.approx([unit * 10 / (10 + PRIOR) for unit in truth])


def test_phi_of_an_unknown_process() -> None:
    """It is an average program."""
    assert Fingerprint().phi() == [0.0] * COUNT


def test_fading_reduces_the_weight_of_everything_but_the_duty() -> None:
    """Means and spreads stay; the duty has a decay of its own, and the doubt is a sum of few intervals."""
    fingerprint = everything()

    fingerprint.fade(0.5)

    assert fingerprint == Fingerprint(
        weight=4.0, alone_s=3.0, moments=[2.0] * COUNT, deviations=[1.0] * COUNT, seconds=2.5, duty_s=3.0, duty2_s=2.0,
        recent=0.5, doubt=1.5,
    )  # fmt: skip


def test_a_forgotten_program_is_unknown() -> None:
    """All but the samples of the last half minute, which are of the process and not of what it did."""
    fingerprint = everything()

    fingerprint.forget()

    assert fingerprint == Fingerprint(recent=0.5)
    assert fingerprint.cap() == 1.0


# -- the spread


def deviated(fingerprint: Fingerprint, *, times: int = 1, repeated: float = 1.0) -> Fingerprint:
    """With the residual of a slot, or of several."""
    for _ in range(times):
        fingerprint.deviate(0.5, [0.3] * COUNT, [0.4] * COUNT, [0.8] * COUNT, weight=4.0, repeated=repeated)
    return fingerprint


def test_the_spread_of_a_residual() -> None:
    """With k = x V / S = 1: of the weight 1 of the slot, 8.09 / 9.09 counts, because the mean moved with it."""
    fingerprint = deviated(Fingerprint(weight=9.0))

    amount = 1.0 * (9 + PRIOR - 1) / (9 + PRIOR)
    assert fingerprint.seconds == 1.0
    assert fingerprint.deviations == pytest.approx([amount * (0.3**2 + 0.8 * (1 - 0.5 * 1.0))] * COUNT)


def test_the_first_residual_counts_little() -> None:
    """The program was an average one with the weight NOISE^2 before: the residual is that of the prior."""
    fingerprint = deviated(Fingerprint(weight=1.0))

    amount = PRIOR / (PRIOR + 1.0)
    assert fingerprint.deviations == pytest.approx([amount * (0.3**2 + 0.4)] * COUNT)


def test_the_spread_of_repeated_slots() -> None:
    """Once for three slots is the same as three times for one."""
    once = deviated(Fingerprint(weight=9.0), repeated=3.0)
    thrice = deviated(Fingerprint(weight=9.0), times=3)

    assert once.seconds == thrice.seconds == 3.0
    assert once.deviations == pytest.approx(thrice.deviations)


TIME = st.floats(0.005, 1)
NUMBERS = st.lists(st.floats(-50, 50), min_size=COUNT, max_size=COUNT)
VARIANCES = st.lists(st.floats(0, 5), min_size=COUNT, max_size=COUNT)


@given(st.lists(st.tuples(TIME, NUMBERS, VARIANCES, st.floats(0.01, 10), st.floats(1, 10)), max_size=5), TIME)
def test_the_spread_is_never_negative(slots: list[tuple[float, Units, Units, float, float]], faded: float) -> None:
    """Of any residuals, as long as the variance of the residual includes that of the process."""
    fingerprint = Fingerprint()
    for time, residuals, variances, weight, repeated in slots:
        totals = [measured + time * time * own for measured, own in zip(GPM.measured, variances, strict=True)]
        fingerprint.learn(time, residuals, weight, is_alone=False)
        fingerprint.deviate(time, residuals, totals, variances, weight=weight, repeated=repeated)
        fingerprint.fade(faded)

    assert min(fingerprint.deviations) >= 0
    assert min(fingerprint.variance(fingerprint.phi(), 0.0)) > 0
    assert 0 <= min(fingerprint.usual_variance()) <= max(fingerprint.usual_variance()) <= USUAL


def test_the_variance_of_an_unknown_program() -> None:
    """1 between programs and 1 within: the one that `doubt` compares a known program to."""
    assert Fingerprint().variance([0.0] * COUNT, 1.0) == [UNKNOWN] * COUNT


def test_the_variance_of_a_known_program() -> None:
    """var(phi) + (NEW_S (1 + phi^2) + deviations) / (NEW_S + seconds): less with every second."""
    fingerprint = everything()

    assert fingerprint.variance([3.0] * COUNT, 0.01) == pytest.approx([0.01 + (NEW_S * 10 + 2) / (NEW_S + 5)] * COUNT)


@pytest.mark.parametrize(
    ("seconds", "deviation", "expected"),
    [(5.0, 0.2, 0.2 / 5), (0.5, 0.05, 0.05), (5.0, 2.0, USUAL - PRIOR / (8 + PRIOR))],
    ids=["mean", "less than a second", "at most USUAL"],
)
def test_the_variance_while_a_program_does_nothing_new(seconds: float, deviation: float, expected: float) -> None:
    """var(phi) + deviations / seconds, of a second at least, and at most USUAL."""
    fingerprint = Fingerprint(weight=8.0, seconds=seconds, deviations=[deviation] * COUNT)

    assert fingerprint.usual_variance() == pytest.approx([PRIOR / (8 + PRIOR) + expected] * COUNT)


# -- the time on the engine while alone


def test_the_cap_of_an_unknown_process() -> None:
    """The whole engine, until it worked alone for LEAST_DUTY_S."""
    fingerprint = Fingerprint()
    assert fingerprint.cap() == 1.0

    fingerprint.work_alone(0.1, 0.9 * LEAST_DUTY_S / 0.1)
    assert fingerprint.cap() == 1.0

    fingerprint.work_alone(0.1, 0.2 * LEAST_DUTY_S / 0.1)
    assert fingerprint.cap() == pytest.approx(0.1)


def test_pauses_hardly_lower_the_cap() -> None:
    """Sum x^2 / sum x: half of the time 0.8, the other half 0.05 while it loads data."""
    fingerprint = Fingerprint()
    for _ in range(10):
        fingerprint.work_alone(0.8, 0.1)
        fingerprint.work_alone(0.05, 0.1)

    assert fingerprint.cap() == pytest.approx((0.8**2 + 0.05**2) / 0.85, abs=1e-3)


def test_the_cap_follows_the_program() -> None:
    """A tenth for long, then all of the engine for LEARN_S: e^-1 of the tenth is left."""
    fingerprint = Fingerprint()
    fingerprint.work_alone(0.1, 300.0)
    for _ in range(int(LEARN_S)):
        fingerprint.work_alone(1.0, 1.0)

    old_s, new_s = 300 * exp(-1), LEARN_S * (1 - exp(-1))
    assert fingerprint.cap() == pytest.approx((0.01 * old_s + new_s) / (0.1 * old_s + new_s), abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 10)), max_size=10))
def test_the_cap_is_a_part_of_the_engine(intervals: list[tuple[float, float]]) -> None:
    """Positive and at most 1, within rounding."""
    fingerprint = Fingerprint()
    for engine, seconds in intervals:
        fingerprint.work_alone(engine, seconds)

    assert 0 < fingerprint.cap() <= 1


# -- copies


def test_a_copy_is_independent() -> None:
    """What either of them learns is not known to the other; doubts and samples are of the process itself."""
    fingerprint = everything()
    copy = fingerprint.copy()
    unchanged = everything()

    assert copy == Fingerprint(
        weight=8.0, alone_s=6.0, moments=[4.0] * COUNT, deviations=[2.0] * COUNT, seconds=5.0, duty_s=3.0, duty2_s=2.0
    )
    deviated(copy).learn(1.0, [1.0] * COUNT, 1.0, is_alone=True)
    copy.work_alone(1.0, 1.0)
    copy.forget()
    assert fingerprint == unchanged


def test_a_copy_of_at_most_some_seconds() -> None:
    """Weights of all sums in proportion, so that means and spreads stay; less than that is not changed."""
    fingerprint = everything()

    copy = fingerprint.copy(2.0)

    assert (copy.weight, copy.alone_s, copy.seconds) == (2.0, 1.5, 1.25)
    assert copy.moments[0] / copy.weight == fingerprint.moments[0] / fingerprint.weight
    assert copy.deviations[0] / copy.seconds == fingerprint.deviations[0] / fingerprint.seconds
    assert copy.cap() == fingerprint.cap()
    assert fingerprint.copy(8.0).weight == fingerprint.copy(100.0).weight == 8.0


# -- workloads


def test_a_process_inherits_from_its_workload() -> None:
    """All but its weight, which is INHERITED_S at most: a minute of its own outweighs an hour of others."""
    fingerprints, known = Fingerprints(), of_seconds(5 * INHERITED_S)
    known.work_alone(0.4, 10.0)
    fingerprints.keep(row(1), GPM, known)

    inherited = fingerprints.of(row(2), GPM)

    assert inherited.weight == pytest.approx(INHERITED_S)
    assert inherited.alone_s == pytest.approx(INHERITED_S)
    assert inherited.phi() == pytest.approx(known.phi(), abs=0.01)
    assert inherited.cap() == pytest.approx(0.4)


def test_little_is_inherited_as_it_is() -> None:
    """A workload of ten seconds has the weight of ten seconds."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(1), GPM, of_seconds(10.0))

    assert fingerprints.of(row(2), GPM) == of_seconds(10.0)


def test_a_process_of_another_workload_inherits_nothing() -> None:
    """Other programs and other users are other workloads."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(1), GPM, of_seconds(10.0))

    assert fingerprints.of(row(1, "other"), GPM) == fingerprints.of(row(1, uid=5), GPM) == Fingerprint()


def test_processes_of_a_workload_learn_apart() -> None:
    """What one of two replicas learns is not known to the other, nor to the workload until it is kept."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(1), GPM, of_seconds(10.0))
    first, second = fingerprints.of(row(2), GPM), fingerprints.of(row(3), GPM)

    first.learn(1.0, [0.0] * COUNT, 50.0, is_alone=True)

    assert second == fingerprints.of(row(4), GPM) == of_seconds(10.0)


@pytest.mark.parametrize(("weight", "kept"), [(KEPT, True), (0.99 * KEPT, False), (0.0, False)])
def test_the_least_that_is_kept(weight: float, kept: bool) -> None:
    """A process that hardly worked leaves nothing, and the revision does not change."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(), GPM, Fingerprint(weight=weight))

    assert bool(fingerprints.snapshot()) == bool(fingerprints.learned()) == kept
    assert fingerprints.revision == int(kept)


def names(fingerprints: Fingerprints) -> list[str]:
    """In the order of the snapshot."""
    return [dict(workload)["process_name"] for workload, _ in fingerprints.snapshot()]


def test_the_least_recently_learned_workload_is_first() -> None:
    """In the snapshot; to inherit from a workload is not to learn of it."""
    fingerprints = Fingerprints()
    for name in ("a", "b", "c", "a"):
        fingerprints.keep(row(name=name), GPM, of_seconds(1.0))
    fingerprints.of(row(name="b"), GPM)

    assert names(fingerprints) == ["b", "c", "a"]
    assert fingerprints.revision == 4


def test_the_last_fingerprint_of_a_workload_counts() -> None:
    """It contains what was inherited, so that nothing is counted twice; one that inherited nothing is too short."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(1), GPM, of_seconds(90.0))
    fingerprints.keep(row(2), GPM, of_seconds(61.0))
    fingerprints.keep(row(3), GPM, of_seconds(20.0))

    assert [fingerprint.weight for _, fingerprint in fingerprints.snapshot()] == [61.0]
    assert [learned.seconds for learned in fingerprints.learned()] == [61.0]


def test_a_snapshot_is_a_copy() -> None:
    """The writer of the file reads it while the next ticks learn."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(), GPM, of_seconds(10.0))
    ((_, fingerprint),) = fingerprints.snapshot()

    fingerprint.forget()

    assert fingerprints.of(row(), GPM) == of_seconds(10.0)


def test_a_restart_restores_the_snapshot() -> None:
    """In the same order, as shown before, and without a change that would have to be written again."""
    before, after = Fingerprints(), Fingerprints()
    for name in ("a", "b", "a"):
        before.keep(row(name=name), GPM, of_seconds(10.0))

    after.restore(before.snapshot())

    assert after.snapshot() == before.snapshot()
    assert set(after.learned()) == set(before.learned())
    assert after.revision == 0
    assert after.of(row(name="a"), GPM) == of_seconds(10.0)


def test_what_is_shown_of_a_workload() -> None:
    """Power and activity of a second on the engine, within 1 % of the truth after ten."""
    fingerprints, (activity, power) = Fingerprints(), MATMUL
    fingerprints.keep(row(name="train"), GPM, of_seconds(10.0))

    (learned,) = fingerprints.learned()

    assert dict(learned.workload)["process_name"] == "train"
    assert learned.seconds == 10.0
    assert learned.power_ratio == pytest.approx(power, rel=0.01)
    assert dict(learned.activity) == pytest.approx(dict(zip(UNITS, activity, strict=True)), abs=0.01)


def test_nothing_impossible_is_shown() -> None:
    """No activity is negative or above 1, whatever noise the sums have."""
    fingerprints = Fingerprints()
    for name, moment in (("high", 900.0), ("low", -900.0)):
        fingerprints.keep(row(name=name), GPM, Fingerprint(weight=9.0, moments=[moment] * COUNT))

    high, low = fingerprints.learned()

    assert {part for _, part in high.activity} == {1.0}
    assert {part for _, part in low.activity} == {0.0}
    assert low.power_ratio > 0
