"""The regression that separates programs, against least squares over all slots at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from math import ceil, exp, isfinite, log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.rows import Row
from gpuledger.shares.fingerprint import LEARN_S, NEW_S, NOISE, Fingerprint, Fingerprints
from gpuledger.shares.kalman import Observation, update
from gpuledger.shares.regression import (
    ENGINE_SD,
    FADE_S,
    FRESH,
    HOLD_S,
    LEAST_BUSY,
    MOST_EVIDENCE,
    PATIENCE,
    RESTING,
    UNKEPT,
    Part,
    Program,
    Regression,
)
from gpuledger.shares.units import ALL_UNITS, GPM, Units
from tests.builders import row

A, B, C = row(1, "a"), row(2, "b"), row(3, "c")
COUNT = len(ALL_UNITS)
MATMUL = GPM.deviations((0.95, 0.14, 0.93, 0.0, 0.0, 0.0, 0.17), 0.81, 1.0)
DECODE = GPM.deviations((0.88, 0.12, 0.03, 0.0, 0.0, 0.0, 0.88), 0.35, 1.0)
LIGHT = GPM.deviations((0.3, 0.05, 0.1, 0.0, 0.0, 0.0, 0.1), 0.15, 1.0)
PRIOR = NOISE**2
SHORT = 1e-6
"""Seconds after which nothing fades."""


def regression(*rows: Row) -> Regression:
    """That of a GPU with these processes, of which nothing is known."""
    made = Regression(GPM, Fingerprints())
    made.among(list(rows))
    return made


def mixed(times: Sequence[float], phis: Sequence[Units]) -> Units:
    """The activity and power of all programs: sum_i x_i phi_i."""
    return [sum(time * phi[unit] for time, phi in zip(times, phis, strict=True)) for unit in ALL_UNITS]


def part(
    times: Sequence[float], observed: Units, seconds: float = 1.0, variances: Sequence[float] | None = None
) -> Part:
    """Slots in which the processes had the engine for these parts of the time."""
    return Part(list(times), list(variances or [0.0] * len(times)), observed, seconds, seconds, sum(times))


def weight_of(slots: Part) -> float:
    """Weight of slots: seconds / (|x|^2 + r + 2 / NOISE^2 sum v x seconds of the state)."""
    noise = (ENGINE_SD * GPM.mean[0] / GPM.sd[0] / NOISE) ** 2
    uncertain = 2 / PRIOR * sum(slots.variances) * slots.state_s
    return slots.seconds / (sum(time * time for time in slots.times) + noise + uncertain)


def least_squares(slots: Sequence[Part]) -> list[Units]:
    """(sum w x x^T + NOISE^2 I)^-1 sum w x y^T over all slots, by Gauss-Jordan elimination; possible units only."""
    size = len(slots[0].times)
    system = [[PRIOR * (i == j) for j in range(size)] + [0.0] * COUNT for i in range(size)]
    for of in slots:
        for i, time in enumerate(of.times):
            numbers = [*of.times, *of.observed]
            system[i] = [old + weight_of(of) * time * new for old, new in zip(system[i], numbers, strict=True)]
    for i in range(size):
        system[i] = [number / system[i][i] for number in system[i]]
        for j in range(size):
            if j != i:
                system[j] = [old - system[j][i] * new for old, new in zip(system[j], system[i], strict=True)]
    return [GPM.bounded(equation[size:]) for equation in system]


def phis(of: Regression) -> list[Units]:
    """What is known now, whether or not the programs were solved again."""
    return [phi for phi, _ in of._means()]


def is_known(of: Regression, expected: Sequence[Units], tolerance: float = 1e-6) -> bool:
    """Whether all programs are these."""
    return all(found == pytest.approx(phi, abs=tolerance) for found, phi in zip(phis(of), expected, strict=True))


# -- means


def test_a_process_alone_has_the_mean() -> None:
    """The sum of w x y over that of w x^2, plus NOISE^2; its fingerprint shows the same."""
    gpu = regression(A)
    (known,) = gpu.among([A])
    slots = [part([time], [time * phi for phi in MATMUL], 0.5) for time in (0.2, 0.9, 1.0)]

    for of in slots:
        gpu.learn([of], SHORT)

    assert is_known(gpu, least_squares(slots))
    assert known.phi() == pytest.approx(phis(gpu)[0])
    assert known.weight == known.alone_s == pytest.approx(sum(weight_of(of) * of.times[0] ** 2 for of in slots))


def test_programs_that_are_never_alone_are_separated() -> None:
    """Times of 0.7 and 0.3, then 0.3 and 0.7: within a minute, phi is right to 0.1 of 2.5."""
    gpu, truth = regression(A, B), [MATMUL, DECODE]
    for second in range(60):
        times = [0.7, 0.3] if second % 2 else [0.3, 0.7]
        gpu.learn([part(times, mixed(times, truth))], 1.0)

    assert is_known(gpu, truth, 0.1)
    assert [known.alone_s for known in gpu.among([A, B])] == [0, 0]


def test_noise_averages_out() -> None:
    """Three programs, times and activity with noise: after 5 minutes, phi is right to 0.25 of 2.5."""
    random, gpu, truth = Random(3), regression(A, B, C), [MATMUL, DECODE, LIGHT]
    for _ in range(300):
        times = [random.uniform(0.05, 0.4) for _ in truth]
        observed = [unit + random.gauss(0, 0.1) for unit in mixed(times, truth)]
        gpu.learn([part([max(0.0, time + random.gauss(0, 0.01)) for time in times], observed)], 1.0)

    assert is_known(gpu, truth, 0.25)


def test_programs_with_equal_times_are_not_separated() -> None:
    """One equation for two programs: the sum of phi is known, and both are the same, as the prior has them."""
    gpu, truth = regression(A, B), [MATMUL, DECODE]
    for _ in range(60):
        gpu.learn([part([0.5, 0.5], mixed([0.5, 0.5], truth))], 1.0)

    first, second = phis(gpu)
    assert first == pytest.approx(second)
    assert first == pytest.approx(mixed([0.5, 0.5], truth), abs=0.01)


def test_uncertain_times_have_a_limited_weight() -> None:
    """However many seconds of a state: their errors are the same, so the sum is that of some seconds."""
    gpu = regression(A, B)
    for second in range(100):
        slots = part([0.5, 0.5], [1.0] * COUNT, variances=[0.02, 0.02])
        gpu.learn([slots._replace(state_s=second + 1.0)], SHORT)

    limit = 0.25 / (2 / PRIOR * 0.04) * sum(1 / n for n in range(1, 101))
    assert 0 < gpu.among([A, B])[0].weight < limit


def test_a_resting_engine_and_a_resting_process_teach_nothing() -> None:
    """Less than RESTING: noise of the activity at rest is not divided by a tiny time."""
    gpu = regression(A, B)
    gpu.learn([part([0.4 * RESTING, 0.4 * RESTING], [5.0] * COUNT)], 1.0)
    gpu.learn([part([0.5, 0.9 * RESTING], mixed([0.5], [MATMUL]))], 1.0)

    first, second = gpu.among([A, B])
    assert first.alone_s == first.weight > 0
    assert second == Fingerprint()


# -- processes that are known, and those that come and leave


def test_a_known_program_is_not_relearned_in_a_mixture() -> None:
    """More than HOLD_S alone: the other program has what it does not explain, though the times may be wrong."""
    gpu = regression(A, B)
    for _ in range(10):
        gpu.learn([part([1.0, 0.0], MATMUL)], SHORT)
    held, other = gpu.among([A, B])
    before = astuple(held)
    assert held.alone_s > HOLD_S
    for _ in range(10):
        gpu.learn([part([0.5, 0.5], mixed([0.5, 0.5], [phis(gpu)[0], DECODE]))], SHORT)

    shrink = other.weight / (other.weight + PRIOR)
    assert astuple(held) == before
    assert other.weight > 0
    assert phis(gpu)[1] == pytest.approx([shrink * unit for unit in DECODE])


def test_a_known_program_is_relearned_alone() -> None:
    """HOLD_S is about mixtures: alone, a program is learned at all times."""
    gpu = regression(A, B)
    for _ in range(10):
        gpu.learn([part([1.0, 0.0], MATMUL)], SHORT)
    (known, _) = gpu.among([A, B])
    before = known.weight
    gpu.learn([part([1.0, 0.0], DECODE)], SHORT)

    assert known.weight > before


def random_slots(count: int, seed: int, here: Sequence[int] = (0, 1, 2)) -> list[Part]:
    """Of three processes with noise, of which only some work."""
    random, slots = Random(seed), []
    for _ in range(count):
        times = [random.uniform(0.1, 0.4) if i in here else 0.0 for i in range(3)]
        observed = [unit + random.gauss(0, 0.02) for unit in mixed(times, [MATMUL, DECODE, LIGHT])]
        slots.append(part(times, observed, random.uniform(0.2, 2)))
    return slots


def without(slots: Part, i: int) -> Part:
    """The same slots without a process."""
    keep = [j for j in range(3) if j != i]
    return slots._replace(times=[slots.times[j] for j in keep], variances=[slots.variances[j] for j in keep])


@pytest.mark.parametrize("leaves", [0, 1, 2])
def test_a_process_that_leaves_takes_nothing_away(leaves: int) -> None:
    """Programs of the others are those of least squares over all slots, with the ones before it left."""
    rows, before, after = [A, B, C], random_slots(12, 1), random_slots(12, 2, [i for i in range(3) if i != leaves])
    gpu = regression(*rows)
    for slots in before:
        gpu.learn([slots], SHORT)
    expected = least_squares(before)
    assert is_known(gpu, expected)

    gpu.among([process for process in rows if process is not rows[leaves]])

    assert is_known(gpu, [phi for i, phi in enumerate(expected) if i != leaves])
    for slots in after:
        gpu.learn([without(slots, leaves)], SHORT)
    expected = least_squares(before + after)
    assert is_known(gpu, [phi for i, phi in enumerate(expected) if i != leaves])


def test_processes_that_leave_together() -> None:
    """The last one has what least squares over all slots has."""
    gpu, slots = regression(A, B, C), random_slots(12, 3)
    for of in slots:
        gpu.learn([of], SHORT)

    gpu.among([B])

    assert is_known(gpu, least_squares(slots)[1:2])


def test_a_process_that_linked_two_others_leaves() -> None:
    """A and B worked with C, but not with each other: that they depend on each other is still known when they do."""
    gpu = regression(A, B, C)
    before = [*random_slots(6, 4, [0, 2]), *random_slots(6, 5, [1, 2])]
    after = random_slots(4, 6, [0, 1])
    for slots in before:
        gpu.learn([slots], SHORT)
    gpu.among([A, B])
    assert is_known(gpu, least_squares(before)[:2])

    for slots in after:
        gpu.learn([without(slots, 2)], SHORT)

    assert is_known(gpu, least_squares(before + after)[:2])


def test_a_process_that_comes_is_unknown_and_changes_nothing() -> None:
    """The others are as before; its workload was never there."""
    gpu = regression(A, B)
    for slots in random_slots(12, 1):
        gpu.learn([without(slots, 2)], SHORT)
    before = phis(gpu)

    gpu.among([A, B, C])

    assert is_known(gpu, [*before, [0.0] * COUNT])


def test_what_was_learned_is_kept_when_the_processes_change() -> None:
    """For the workloads, with the weight that the regression gives them: the mean of another process has it, too."""
    fingerprints = Fingerprints()
    gpu = Regression(GPM, fingerprints)
    gpu.among([A, B])
    for second in range(60):
        times = [0.7, 0.3] if second % 2 else [0.3, 0.7]
        gpu.learn([part(times, mixed(times, [MATMUL, DECODE]))], 1.0)
    expected, (own, _) = phis(gpu), gpu.among([A, B])

    gpu.among([])

    (_, first), (_, second_) = fingerprints.snapshot()
    assert first.phi() == pytest.approx(expected[0])
    assert second_.phi() == pytest.approx(expected[1])
    assert first.weight < own.weight  # a part of it is known only of the sum of both


def test_what_was_learned_is_kept_while_the_processes_stay() -> None:
    """Whenever it has grown by UNKEPT, and programs are solved if one has grown by FRESH: a restart loses no more."""
    fingerprints = Fingerprints()
    gpu = Regression(GPM, fingerprints)
    (own,) = gpu.among([A])
    for _ in range(60):
        gpu.learn([part([1.0], MATMUL)], 1.0)
        gpu.programs()

        ((_, kept),) = fingerprints.snapshot()
        assert own.weight / (1 + UNKEPT) / (1 + FRESH) - PRIOR <= kept.weight <= own.weight + 1e-9
    assert kept.phi() == pytest.approx(MATMUL, abs=0.01)


# -- decay


def test_what_was_learned_fades() -> None:
    """By e^-1 in LEARN_S, whether or not the engine works, in steps of FADE_S: all slots have that part of a weight."""
    gpu, slots = regression(A, B), [without(of, 2) for of in random_slots(12, 1)]
    for of in slots:
        gpu.learn([of], SHORT)
    rest = [part([0.0, 0.0], [0.0] * COUNT)]

    gpu.learn(rest, 0.9 * FADE_S)
    assert is_known(gpu, least_squares(slots))
    gpu.learn(rest, LEARN_S - 0.9 * FADE_S)

    assert is_known(gpu, least_squares([of._replace(seconds=exp(-1) * of.seconds) for of in slots]))


def test_a_program_that_changes_slowly_is_followed() -> None:
    """Ten minutes of one program, then 15 of another: e^-3 of the first is left."""
    gpu = regression(A)
    for seconds, phi in ((600, MATMUL), (900, DECODE)):
        for _ in range(seconds // 3):
            gpu.learn([part([1.0], phi, 3.0)], 3.0)

    expected = [new + exp(-3) * (old - new) for old, new in zip(MATMUL, DECODE, strict=True)]
    assert is_known(gpu, [expected], 0.05)


def test_programs_are_solved_again_once_enough_was_learned() -> None:
    """The same object until the weight of a program has grown by FRESH; the cost is that of a Cholesky factor."""
    gpu, slots = regression(A, B), part([0.6, 0.4], mixed([0.6, 0.4], [MATMUL, DECODE]), 10.0)
    gpu.learn([slots], SHORT)
    programs = gpu.programs()
    weight = gpu.among([A, B])[0].weight
    each = 0.45 * FRESH * (weight + PRIOR)

    for _ in range(2):
        gpu.learn([slots._replace(seconds=each * slots.seconds / weight)], SHORT)
        assert gpu.programs() is programs
    gpu.learn([slots._replace(seconds=each * slots.seconds / weight)], SHORT)

    assert gpu.programs() is not programs


def test_programs_are_solved_again_for_other_processes() -> None:
    """One program each."""
    gpu = regression(A, B)
    assert gpu.programs() is gpu.programs()

    gpu.among([A, B, C])

    assert len(gpu.programs()) == 3


# -- spread


def test_the_spread_is_learned_from_the_residual_of_the_longest_part() -> None:
    """As often as the interval is longer than it; r = y - sum x phi and S = R + sum x^2 V are those of all programs."""
    gpu = regression(A, B)
    for slots in random_slots(3, 1):
        gpu.learn([without(slots, 2)], SHORT)
    gpu.among([B])
    rows = gpu.among([A, B])
    programs, before = gpu.programs(), [known.copy() for known in rows]
    long = part([0.4, 0.3], [0.7] * COUNT, 0.6)

    gpu.learn([part([0.3, 0.4], [0.2] * COUNT, 0.4), long], 1.0)

    expected_y = mixed(long.times, [program.phi for program in programs])
    residuals = [seen - mean for seen, mean in zip(long.observed, expected_y, strict=True)]
    totals = [
        noise + sum(time**2 * program.variance[unit] for time, program in zip(long.times, programs, strict=True))
        for unit, noise in enumerate(GPM.measured)
    ]
    for time, known, expected, (_, variance) in zip(long.times, rows, before, programs, strict=True):
        expected.weight = known.weight
        expected.deviate(time, residuals, totals, variance, weight=weight_of(long), repeated=1.0 / 0.6)
        assert known.seconds == pytest.approx(expected.seconds)
        assert known.deviations == pytest.approx(expected.deviations)


@pytest.mark.parametrize(("times", "learned"), [([0.5, 0.1], [True, False]), ([0.03, 0.01], [False, False])])
def test_no_spread_is_learned_from_little_time(times: list[float], learned: list[bool]) -> None:
    """A fifth of the busy time at least, which is 5 % at least: the residual is that of others, or noise."""
    gpu = regression(A, B)

    gpu.learn([part(times, [0.5] * COUNT)], 1.0)

    assert [known.seconds > 0 for known in gpu.among([A, B])] == learned
    assert all(known.weight > 0 for known in gpu.among([A, B]))


# -- doubt


def known_gpu(seconds: int = 20) -> Regression:
    """Two programs that are known from times alone."""
    gpu = regression(A, B)
    for _ in range(seconds):
        gpu.learn([part([1.0, 0.0], MATMUL)], 1.0)
        gpu.learn([part([0.0, 1.0], DECODE)], 1.0)
    return gpu


def doubted(gpu: Regression, times: Sequence[float], truth: Sequence[Units]) -> None:
    """An interval in which the programs did this: r = y - sum x phi, S = R + sum x^2 V."""
    programs: list[Program] = gpu.programs()
    squares = [time * time for time in times]
    expected = mixed(times, [program.phi for program in programs])
    residual = [seen - mean for seen, mean in zip(mixed(times, truth), expected, strict=True)]
    variances = [
        noise + sum(square * program.variance[unit] for square, program in zip(squares, programs, strict=True))
        for unit, noise in enumerate(GPM.measured)
    ]
    gpu.doubt(times, squares, residual, variances)


def weights(gpu: Regression) -> list[float]:
    """Of both programs."""
    return [known.weight for known in gpu.among([A, B])]


def test_a_program_that_does_what_is_known_is_kept() -> None:
    """Ten minutes next to another known one."""
    gpu = known_gpu()
    before = weights(gpu)
    for _ in range(600):
        doubted(gpu, [0.5, 0.5], [MATMUL, DECODE])

    assert weights(gpu) == before
    assert [known.doubt for known in gpu.among([A, B])] == [0, 0]


def test_a_program_that_contradicts_what_is_known_is_forgotten() -> None:
    """After log(1 + weight / NEW_S) + PATIENCE of evidence, of which an interval has MOST_EVIDENCE; the other stays."""
    gpu = known_gpu()
    before = weights(gpu)
    intervals = ceil((log(1 + before[0] / NEW_S) + PATIENCE) / MOST_EVIDENCE)
    for _ in range(intervals - 1):
        doubted(gpu, [0.9, 0.1], [LIGHT, DECODE])
    assert weights(gpu) == before

    doubted(gpu, [0.9, 0.1], [LIGHT, DECODE])

    assert intervals == 5
    assert weights(gpu) == [0, before[1]]
    assert phis(gpu)[0] == [0.0] * COUNT
    assert [known.doubt for known in gpu.among([A, B])] == [0, 0]


def test_a_forgotten_program_does_not_change_others() -> None:
    """What the other did together with it is forgotten, too: the other is known by the squares of its own time."""
    gpu = regression(A, B)
    for slots in random_slots(30, 1):
        gpu.learn([without(slots, 2)], SHORT)
    gpu.among([A, B])[0].doubt = 100.0
    other = gpu.among([A, B])[1]

    doubted(gpu, [0.9, 0.1], [LIGHT, DECODE])

    assert weights(gpu)[0] == 0
    assert phis(gpu)[1] == pytest.approx(GPM.bounded(other.phi()))


@pytest.mark.parametrize("weight", [1e3, 1e9])
def test_one_surprise_does_not_forget_a_program(weight: float) -> None:
    """Times and activity of an interval may be of different moments; what follows removes the doubt."""
    gpu = known_gpu()
    before = weights(gpu)
    doubted(gpu, [0.9, 0.1], [[weight] * COUNT, DECODE])
    assert gpu.among([A, B])[0].doubt == MOST_EVIDENCE

    for _ in range(3):
        doubted(gpu, [0.9, 0.1], [MATMUL, DECODE])

    assert weights(gpu) == before
    assert gpu.among([A, B])[0].doubt == 0


def test_short_and_unknown_programs_are_not_doubted() -> None:
    """Less than LEAST_BUSY of the time, or a weight of less than NEW_S: the residual is that of others."""
    gpu = known_gpu()
    before = weights(gpu)
    for _ in range(50):
        doubted(gpu, [0.9 * LEAST_BUSY, 0.0], [[50.0] * COUNT, DECODE])
    unknown = regression(A, B)
    for _ in range(50):
        doubted(unknown, [0.5, 0.5], [LIGHT, DECODE])

    assert [known.doubt for known in (*gpu.among([A, B]), *unknown.among([A, B]))] == [0] * 4
    assert weights(gpu) == before


def test_nothing_is_doubted_without_power() -> None:
    """The update has no residual then."""
    gpu = known_gpu()
    gpu.doubt([0.5, 0.5], [0.25, 0.25], [], [])

    assert [known.doubt for known in gpu.among([A, B])] == [0, 0]


def known_next_to_unknown(seconds: int = 10) -> Regression:
    """A GPU with a light program that was alone for so long, and one that never was."""
    gpu = regression(A)
    for _ in range(seconds):
        gpu.learn([part([1.0], LIGHT)], 1.0)
    gpu.among([A, B])
    return gpu


def test_gentle_work_alone_is_not_believed_next_to_an_improbable_program() -> None:
    """Two matrix products; if one of them were light, the other would be beyond what programs do."""
    gpu = known_next_to_unknown()
    for _ in range(3):
        doubted(gpu, [0.5, 0.5], [MATMUL, MATMUL])

    assert weights(gpu) == [0, 0]


def test_work_alone_is_believed_next_to_a_usual_program() -> None:
    """A light program next to a matrix product: nothing is improbable."""
    gpu = known_next_to_unknown()
    before = weights(gpu)
    for _ in range(60):
        doubted(gpu, [0.5, 0.5], [LIGHT, MATMUL])

    assert weights(gpu) == before


@pytest.mark.parametrize(("work", "recent", "seconds", "expected"), [
    (MATMUL, 0.0, 10, True),
    (LIGHT, 0.0, 10, False),  # as it was alone
    (MATMUL, 0.1, 10, False),  # samples name the other one, too
    (MATMUL, 0.0, 1, False),  # not known well
])  # fmt: skip
def test_activity_that_contradicts_the_samples(work: Units, recent: float, seconds: int, expected: bool) -> None:
    """The only sampled process does something else than alone, and another one is never sampled."""
    gpu = known_next_to_unknown(seconds)
    gpu.among([A, B])[1].recent = recent
    slots = part([1.0, 0.0], work)

    assert gpu.contradicts(slots, 0) == expected
    before = weights(gpu)[0]
    gpu.learn([slots], SHORT)
    assert (weights(gpu)[0] > before) != expected, "nothing is learned from a contradiction"


# -- odd inputs

PART_OF_TIME = st.sampled_from([0.0, 1e-9, 1.0]) | st.floats(0, 1)
ODD = st.sampled_from([0.0, 1e6, -1e6]) | st.floats(-3, 3)
PARTS = st.builds(
    Part,
    st.lists(PART_OF_TIME, min_size=3, max_size=3),
    st.lists(PART_OF_TIME, min_size=3, max_size=3),
    st.lists(ODD, min_size=COUNT, max_size=COUNT),
    st.sampled_from([0.0, 0.2, 10.0]),
    st.floats(0, 1e4),
    PART_OF_TIME,
)
LEAVING = st.lists(st.sampled_from([[A, B, C], [A, C], [B], [B, C], []]), max_size=4)


@given(st.lists(st.lists(PARTS, min_size=1, max_size=3), min_size=1, max_size=6), LEAVING)
def test_odd_slots_raise_nothing(intervals: list[list[Part]], leaving: list[list[Row]]) -> None:
    """Programs are possible and finite, and variances positive, whatever the slots say and whoever leaves."""
    gpu = regression(A, B, C)
    for parts in intervals:
        first = parts[0]
        longest = Part([0.5, 0.5, 0.0], [0.0] * 3, first.observed, 20.0, 20.0, 1.0)  # no interval is of no length
        gpu.learn([*parts, longest], 20.0)
        squares = [time * time for time in first.times]
        for power in (0.0, 0.5, 1e4):
            found = update(
                Observation(first.times, first.variances, squares, first.observed, power), gpu.programs(), GPM
            )
            gpu.doubt(first.times, squares, found.residual, found.residual_variances)
        check(gpu)
    for rows in leaving:
        gpu.among(rows)
        check(gpu)


def check(gpu: Regression) -> None:
    """Of all programs."""
    for phi, variance in gpu.programs():
        assert phi == GPM.bounded(phi)
        assert all(map(isfinite, phi))
        assert all(0 < number < float("inf") for number in variance)
