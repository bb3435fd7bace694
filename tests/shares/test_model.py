"""The model of a shared GPU, step by step and as a whole, on made-up programs whose power is known."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod, sqrt
from random import Random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.ledger.rows import Row
from gpuledger.shares.fingerprint import Fingerprint, Fingerprints
from gpuledger.shares.model import (
    SAMPLES_PER_S,
    Estimate,
    Model,
    Seen,
    Slot,
    _caps,
    place_samples,
    unnamed_times,
)
from gpuledger.shares.regression import RESTING, Program
from gpuledger.shares.states import State
from gpuledger.shares.times import any_times
from gpuledger.shares.units import ALL_UNITS, GPM, POWER, UNITS, Activities
from tests.builders import S, row

MATMUL, DECODE, LIGHT = row(1, "matmul"), row(2, "decode"), row(3, "light")
PROGRAMS: dict[Row, tuple[Activities, float]] = {
    MATMUL: ((0.95, 0.14, 0.93, 0.0, 0.0, 0.0, 0.17), 0.81),
    DECODE: ((0.88, 0.12, 0.03, 0.0, 0.0, 0.0, 0.88), 0.35),
    LIGHT: ((0.3, 0.05, 0.1, 0.0, 0.0, 0.0, 0.1), 0.15),
}
"""Activity and power per time on the engine; power relative to the power limit."""
SLOTS = 5
"""Of one second."""
Times = Mapping[Row, float]


def slots_of(*engines: float) -> list[Slot]:
    """Slots of 0.2 s with this part of busy time."""
    return [Slot((0.5,) * len(UNITS), engine, (i + 1) * S // SLOTS) for i, engine in enumerate(engines)]


def placed(slots: list[Slot], busy: Times, last_ns: Mapping[Row, int], seconds: float = 1.0) -> list[dict[Row, float]]:
    """The samples in the state of each slot; all slots have different states."""
    states = [State(slot.activity, 0.0) for slot in slots]
    place_samples(states, Seen(GPM, seconds, slots, 0.5, busy, last_ns))
    return [state.samples for state in states]


def test_the_last_sample_is_placed_in_its_slot() -> None:
    """Of five samples, three name one process, last in the first slot, and two the other, last in the fourth."""
    samples = placed(slots_of(*[1.0] * 5), {MATMUL: 0.6, DECODE: 0.4}, {MATMUL: 150_000_000, DECODE: 700_000_000})

    assert samples[0] == {MATMUL: 1.0}
    assert samples[3] == {DECODE: 1.0}
    for i in (1, 2, 4):
        assert samples[i] == pytest.approx({MATMUL: 2 / 3, DECODE: 1 / 3})


def test_other_samples_are_spread_by_busy_time() -> None:
    """Slots that are busy for 1, 1/2 and 1/4 of the time have 4, 2 and 1 of seven parts of three samples."""
    samples = placed(slots_of(1.0, 0.5, 0.25), {MATMUL: 0.35}, {}, seconds=0.6)

    assert [sample[MATMUL] for sample in samples] == pytest.approx([3 * part / 7 for part in (4, 2, 1)])


def test_slots_at_rest_have_no_samples() -> None:
    """Neither the last sample, which is placed in the next slot in which the engine worked, nor others."""
    samples = placed(slots_of(RESTING / 2, 1.0, 0.0), {MATMUL: 0.2}, {MATMUL: 100_000_000}, seconds=0.6)

    assert samples == [{}, {MATMUL: 1.0}, {}]


def test_a_last_sample_after_all_slots_is_placed_in_the_last_one() -> None:
    """The clocks of samples and slots differ by a few milliseconds."""
    samples = placed(slots_of(1.0, 1.0), {MATMUL: 0.4, DECODE: 0.4}, {MATMUL: 405_000_000}, seconds=0.4)

    assert (samples[0][DECODE], samples[1][MATMUL]) == (1.0, 1.0)


def test_only_the_last_sample_of_a_process_has_a_known_time() -> None:
    """A slot of half a second has 2.5 samples; the last one of each process is certain, if it has samples at all."""
    slots = [Slot((0.5,) * len(UNITS), 1.0, S // 2), Slot((0.5,) * len(UNITS), 1.0, S)]
    last_ns = {MATMUL: 100_000_000, DECODE: 900_000_000, LIGHT: 900_000_000}

    samples = placed(slots, {MATMUL: 0.6, DECODE: 0.4, LIGHT: 0.0}, last_ns)

    # Two more of MATMUL and one more of DECODE, in equal parts: both slots have 1.5 left.
    assert [sample[MATMUL] for sample in samples] == pytest.approx([2.0, 1.0])
    assert [sample[DECODE] for sample in samples] == pytest.approx([0.5, 1.5])
    assert LIGHT not in samples[1]


@pytest.mark.parametrize(("engine", "busy"), [(0.0, {MATMUL: 0.5}), (1.0, {}), (1.0, {MATMUL: 0.0})])
def test_nothing_is_placed_without_work_or_samples(engine: float, busy: Times) -> None:
    """The engine rested, or the driver had no sample."""
    assert placed(slots_of(engine, engine), busy, {MATMUL: 0}) == [{}, {}]


PARTS = st.lists(st.floats(0.01, 1), min_size=1, max_size=3)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.6, 1.0]), min_size=1, max_size=8), PARTS, st.floats(0.2, 2), st.data())
def test_no_sample_is_lost(engines: list[float], busy: list[float], seconds: float, data: st.DataObject) -> None:
    """Each process has its part of five samples for each second of the slots in which the engine worked."""
    named = dict(zip(PROGRAMS, busy, strict=False))
    last_ns = {process: data.draw(st.integers(0, 2 * S)) for process in named}

    samples = placed(slots_of(*engines), named, last_ns, seconds)

    working = sum(engine >= RESTING for engine in engines) / len(engines)
    for process, busy_s in named.items():
        expected = SAMPLES_PER_S * seconds * working * busy_s / sum(busy)
        assert sum(sample.get(process, 0.0) for sample in samples) == pytest.approx(expected)
    assert all(number >= 0 for sample in samples for number in sample.values())


def program(process: Row, variance: float = 0.05) -> Program:
    """A process of which everything is known."""
    activity, power = PROGRAMS[process]
    return Program(GPM.deviations(activity, power, 1.0), [variance] * len(ALL_UNITS))


def mixed(times: Times) -> tuple[Activities, float]:
    """Activity and power of the GPU."""
    activity = tuple(sum(time * PROGRAMS[p][0][unit] for p, time in times.items()) for unit in range(POWER))
    return activity, sum(time * PROGRAMS[p][1] for p, time in times.items())


@pytest.mark.parametrize("working", [MATMUL, DECODE])
def test_a_program_that_explains_the_activity_has_the_time(working: Row) -> None:
    """Only one of the clients of MPS works."""
    observed = GPM.deviations(*mixed({working: 0.6}), 0.6)

    times, variances = unnamed_times(
        observed, [program(MATMUL), program(DECODE)], any_times(0.6, [1.0, 1.0]), GPM.measured
    )

    assert times[[MATMUL, DECODE].index(working)] == pytest.approx(0.6, abs=0.01)
    assert sum(times) == pytest.approx(0.6)
    assert max(variances) < 0.01


def test_programs_that_explain_it_together_share_the_time() -> None:
    """Any division is possible: u^2 / 12 is the variance of a part of u."""
    observed = GPM.deviations(*mixed({MATMUL: 0.3, DECODE: 0.3}), 0.6)

    times, variances = unnamed_times(
        observed, [program(MATMUL), program(DECODE)], any_times(0.6, [1.0, 1.0]), GPM.measured
    )

    assert times == pytest.approx([0.3, 0.3], abs=0.01)
    assert variances == pytest.approx([0.6**2 / 12] * 2, rel=0.1)


@given(st.floats(0.05, 1), st.lists(st.floats(-2, 2), min_size=8, max_size=8), st.lists(PARTS, min_size=3, max_size=3))
def test_unnamed_times_are_means_over_sets(engine: float, observed: list[float], more: list[list[float]]) -> None:
    """By Gaussian densities of the residual: each of three processes alone, and all with variances of any division."""
    programs = [program(process, variance[0]) for process, variance in zip(PROGRAMS, more, strict=True)]
    fair, variance = engine / 3, (engine / 3) ** 2 * 2 / 4
    alone = [
        prod(
            NormalDist(engine * p.phi[u], sqrt(GPM.measured[u] + engine**2 * p.variance[u])).pdf(observed[u])
            for u in ALL_UNITS
        )
        for p in programs
    ]
    together = prod(
        NormalDist(
            sum(fair * p.phi[u] for p in programs),
            sqrt(
                GPM.measured[u] + sum((fair**2 + variance) * p.variance[u] + variance * p.phi[u] ** 2 for p in programs)
            ),
        ).pdf(observed[u])
        for u in ALL_UNITS
    )
    whole = sum(alone) + together

    times, variances = unnamed_times(observed, programs, any_times(engine, [1.0] * 3), GPM.measured)

    if whole < 1e-250:  # the densities underflow; their logarithms do not
        assert sum(times) == pytest.approx(engine)
        return
    for i, density in enumerate(alone):
        mean = (density * engine + together * fair) / whole
        square = (density * engine**2 + together * (fair**2 + variance)) / whole
        assert times[i] == pytest.approx(mean, abs=1e-9)
        assert variances[i] == pytest.approx(square - mean**2, abs=1e-9)


class SharedGpu:
    """A GPU and its model, second by second; samples are drawn at random or exact."""

    def __init__(self, fingerprints: Fingerprints | None = None, random: Random | None = None) -> None:
        self.model = Model(fingerprints or Fingerprints())
        self.random = random
        self.now_ns = 0

    def second(
        self, processes: list[Row], times: Times, *, samples: bool = True, named: bool = True, seconds: float = 1.0
    ) -> Estimate | None:
        """An interval of a second, or more, in which the processes had the engine for these parts of the time."""
        activity, power = mixed(times)
        engine = sum(times.values())
        slots = [Slot(activity, engine, self.now_ns + (i + 1) * S // SLOTS) for i in range(SLOTS)]
        busy, last_ns = {process: time * seconds for process, time in times.items()}, dict[Row, int]()
        if self.random is not None:
            names = self.random.choices(list(times), weights=list(times.values()), k=SLOTS)
            busy = {process: engine * names.count(process) / SLOTS for process in set(names)}
            last_ns = {process: slot.end_ns - S // 10 for process, slot in zip(names, slots, strict=True)}
        self.now_ns += S
        if not (samples and named):
            busy, last_ns = {}, {}
        return self.model.step(processes, Seen(GPM, seconds, slots, power, busy, last_ns, named))

    def shares(self, processes: list[Row], times: Times, *, named: bool = True) -> list[float]:
        """The estimated shares of a second."""
        estimate = self.second(processes, times, named=named)
        assert estimate is not None
        return [power / sum(estimate.powers) for power in estimate.powers]


def true_shares(processes: list[Row], times: Times) -> list[float]:
    """By the power of the programs."""
    powers = [times.get(process, 0.0) * PROGRAMS[process][1] for process in processes]
    return [power / sum(powers) for power in powers]


BOTH = [MATMUL, DECODE]
HALVES = {MATMUL: 0.5, DECODE: 0.5}


@pytest.mark.parametrize("seed", range(3))
def test_programs_that_alternate_are_learned(seed: int) -> None:
    """Two seconds each, then both: within 24 s shares are right to 0.03, and powers to 6 %, though samples are few."""
    gpu = SharedGpu(random=Random(seed))
    for second in range(24):
        gpu.second(BOTH, [{MATMUL: 1.0}, {DECODE: 1.0}, HALVES][second // 2 % 3])

    estimate = gpu.second(BOTH, HALVES)

    assert estimate is not None
    assert estimate.powers == pytest.approx([0.5 * PROGRAMS[process][1] for process in BOTH], rel=0.06)
    assert estimate.powers[0] / sum(estimate.powers) == pytest.approx(true_shares(BOTH, HALVES)[0], abs=0.03)
    assert estimate.activities[0] == pytest.approx([0.5 * unit for unit in PROGRAMS[MATMUL][0]], abs=0.05)


def test_programs_that_are_never_alone_are_learned() -> None:
    """Two states with different times are two equations: the regression separates the programs within a minute."""
    gpu, less = SharedGpu(), {MATMUL: 0.3, DECODE: 0.7}
    for second in range(60):
        gpu.second(BOTH, [{MATMUL: 0.7, DECODE: 0.3}, less][second // 2 % 2])

    assert gpu.shares(BOTH, less) == pytest.approx(true_shares(BOTH, less), abs=0.05)


def test_unknown_programs_have_shares_by_time() -> None:
    """In the first second, a heavy and a light program are both average programs."""
    first = SharedGpu().shares(BOTH, HALVES)

    assert first == pytest.approx([0.5, 0.5], abs=0.01)


def test_a_process_alone_is_learned_but_not_estimated() -> None:
    """Its share is 1; next to an unknown one, it is known: their shares are not those of SM time, 0.5, any more."""
    gpu = SharedGpu()
    for _ in range(10):
        assert gpu.second([MATMUL], {MATMUL: 1.0}) is None

    assert gpu.shares(BOTH, HALVES) == pytest.approx(true_shares(BOTH, HALVES), abs=0.06)


def test_a_known_workload_is_known_to_a_new_model() -> None:
    """The fingerprint of a process outlives it, and nothing else does."""
    fingerprints = Fingerprints()
    gpu = SharedGpu(fingerprints)
    for process in PROGRAMS:
        for _ in range(10):
            gpu.second([process], {process: 1.0})

    shares = SharedGpu(fingerprints).shares(BOTH, HALVES)

    assert shares == pytest.approx(true_shares(BOTH, HALVES), abs=0.02)


def test_without_samples_there_is_no_estimate() -> None:
    """Nothing names a process that works, until a sample of this or an earlier slot of the state does."""
    gpu = SharedGpu()

    assert gpu.second(BOTH, HALVES, samples=False) is None
    assert gpu.second(BOTH, HALVES) is not None
    assert gpu.second(BOTH, HALVES, samples=False) is not None


def test_an_engine_at_rest_has_no_shares() -> None:
    """Nothing draws power above parked power."""
    estimate = SharedGpu().second(BOTH, {MATMUL: 0.0})

    assert estimate is not None
    assert estimate.powers == estimate.times == [0.0, 0.0]


@pytest.mark.parametrize("working", BOTH)
def test_clients_of_mps_are_told_apart_by_activity(working: Row) -> None:
    """Both were alone before; no sample names them."""
    fingerprints = Fingerprints()
    gpu = SharedGpu(fingerprints)
    for process in (MATMUL, DECODE):
        for _ in range(10):
            gpu.second([process], {process: 1.0}, named=False)

    shares = gpu.shares(BOTH, {working: 0.8}, named=False)

    assert shares[BOTH.index(working)] > 0.95


@pytest.mark.parametrize("present", [[LIGHT], [DECODE, LIGHT]])
def test_little_work_alone_limits_the_time_unless_samples_contradict(present: list[Row]) -> None:
    """A process uses a tenth of the engine alone, then half of it next to another one for a second and a minute."""
    gpu, processes = SharedGpu(), [DECODE, LIGHT]
    for _ in range(20):
        gpu.second(present, {LIGHT: 0.1})

    estimates = [gpu.second(processes, {DECODE: 0.5, LIGHT: 0.5}) for _ in range(60)]

    times = [estimate.times[1] for estimate in estimates if estimate is not None]
    assert times[0] < 0.25
    assert times[-1] > 0.3


def test_work_next_to_others_is_no_limit() -> None:
    """A process had a fifth of the engine, but never alone: the other one may have been in its way."""
    gpu, processes = SharedGpu(), [DECODE, LIGHT]
    for _ in range(20):
        gpu.second(processes, {DECODE: 0.05, LIGHT: 0.2})

    estimate = gpu.second(processes, {DECODE: 0.5, LIGHT: 0.5})

    assert estimate is not None
    assert estimate.times == pytest.approx([0.5, 0.5], abs=0.03)


def test_a_cap_follows_the_samples_of_half_a_minute() -> None:
    """A tenth while alone; unknown once the samples of half a minute say that it does more."""
    fingerprint, slots = Fingerprint(), slots_of(1.0)
    fingerprint.work_alone(0.1, 10.0)
    half = Seen(GPM, 0.5, slots, 0.5, {LIGHT: 0.25}, {})

    caps = [_caps([LIGHT], [fingerprint], half)[0] for _ in range(120)]

    assert caps[0] == pytest.approx(0.1)
    assert caps[-1] == 1.0


def test_an_interval_may_be_longer() -> None:
    """After 2 s, the times are parts of the interval, not seconds."""
    estimate = SharedGpu().second(BOTH, {MATMUL: 0.4, DECODE: 0.4}, seconds=2.0)

    assert estimate is not None
    assert estimate.times == pytest.approx([0.4, 0.4], abs=0.01)


def test_states_keep_the_samples_of_a_pause_apart() -> None:
    """A process that pauses for half of the time has no time while it pauses, and half of it while it works."""
    gpu = SharedGpu(random=Random(1))
    for second in range(30):
        gpu.second(BOTH, HALVES if second % 2 else {DECODE: 1.0})

    alone, together = gpu.second(BOTH, {DECODE: 1.0}), gpu.second(BOTH, HALVES)

    assert alone is not None
    assert together is not None
    assert alone.times == pytest.approx([0, 1], abs=0.02)
    assert together.times == pytest.approx([0.5, 0.5], abs=0.07)
