"""The shares of processes on one device: states, times, programs and one update, in every interval.

docs/accuracy.md explains the steps. The same model covers known and unknown programs: what was learned of a workload is
only the start of what is learned of its processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from operator import mul
from typing import NamedTuple

from gpuledger.ledger.rows import Row
from gpuledger.shares.fingerprint import Fingerprint, Fingerprints
from gpuledger.shares.kalman import LEAST_POWER, Observation, update
from gpuledger.shares.regression import HOLD_S, LEAST_BUSY, RESTING, Part, Program, Regression, changed
from gpuledger.shares.states import MEMORY_S, State, States
from gpuledger.shares.times import Times, any_times, engine_times
from gpuledger.shares.units import Activities, Population, Units

SAMPLES_PER_S = 5
"""The driver's samples."""
MOST_ROWS = 16
"""Most processes whose programs are learned and compared; bounds the cost with many processes."""
LOCAL = 0.5
"""Weight of the samples of the interval itself, beyond their part in the samples of its states."""
ALIAS_SD = 0.15
"""Standard deviation of the part of the samples of half a minute that name a process, from aliasing."""
ALONE, CERTAIN = 0.95, 0.005
"""A process with more of the busy time of a state, and less variance of its time, works alone in it."""
TUNED = ("LOCAL", "ALIAS_SD")
"""Chosen on tests/data/h200; `bench.sensitivity` prints what halving and doubling them changes."""


class Slot(NamedTuple):
    """A part of an interval, about 0.2 s."""

    activity: Activities
    engine: float
    """Part of the time in which the engine was busy."""
    end_ns: int


class Seen(NamedTuple):
    """What was measured in one interval."""

    population: Population
    seconds: float
    slots: Sequence[Slot]
    """Of equal length; at least one."""
    power: float
    """Above parked power, relative to the power limit."""
    busy: Mapping[Row, float]
    """Seconds on the engine by the driver's samples."""
    sampled_ns: Mapping[Row, int]
    """Time of the last sample of a process."""
    named: bool = True
    """Whether samples name the processes; those of clients of MPS name their server."""
    held: bool = False
    """Whether the activity is that of an earlier interval, of which nothing is learned again."""


class Estimate(NamedTuple):
    """Of each process that may have worked in an interval."""

    rows: list[Row]
    powers: list[float]
    errors: list[float]
    """Standard deviation of the share of the power."""
    times: list[float]
    """Part of the time on the compute engine."""
    activities: list[list[float]]
    """Of each unit."""


class Model:
    """The processes of one device."""

    def __init__(self, fingerprints: Fingerprints) -> None:
        self._fingerprints = fingerprints
        self._population: Population | None = None
        self._states = States()
        self._now_s = 0.0
        self._sampled_s: dict[Row, float] = {}
        """When each process was last sampled, if there are more than MOST_ROWS."""

    def step(self, rows: list[Row], seen: Seen) -> Estimate | None:
        """Learn from an interval and estimate it.

        None if one process is on the device, nothing names a process, or more than MOST_ROWS may have worked.
        """
        if seen.population is not self._population:
            self._population, self._states = seen.population, States()
            self._regression = Regression(seen.population, self._fingerprints)
        self._now_s += seen.seconds
        self._states.among(rows)
        rows = self._working(rows, seen)
        if not 0 < len(rows) <= MOST_ROWS:
            return None
        known = self._regression.among(rows)
        parts = self._parts(rows, known, seen)
        if parts is None:
            return None
        if not seen.held:
            self._regression.learn(parts, seen.seconds)
        if len(rows) == 1:
            return None
        whole = _whole(parts, seen)
        programs = self._regression.programs()
        found = update(whole, programs, seen.population)
        errors = _errors(known, whole.times, found.powers, found.errors)
        working = [i for i, time in enumerate(whole.times) if time > RESTING]
        only = working[0] if len(working) == 1 else None
        is_contradicted = only is not None and any(self._regression.contradicts(part, only) for part in parts)
        if only is not None:
            expected = whole.times[only] * seen.population.power(programs[only].phi)
            errors = _unsampled(known[only], expected, seen.power, errors, is_contradicted=is_contradicted)
        if not is_contradicted:
            self._regression.doubt(whole.times, whole.squares, found.residual, found.residual_variances)
        return Estimate(
            rows,
            found.powers,
            errors,
            found.times,
            [
                [max(0.0, time) * unit for unit in seen.population.activity(program.phi)]
                for time, program in zip(found.times, programs, strict=True)
            ],
        )

    def _parts(self, rows: list[Row], known: Sequence[Fingerprint], seen: Seen) -> list[Part] | None:
        """The slots by state, with the times of the processes; None if nothing names a process."""
        population = seen.population
        states = [self._states.of(slot.activity, self._now_s) for slot in seen.slots]
        place_samples(states, seen)
        slots: dict[State, list[Slot]] = {}
        for slot, state in zip(seen.slots, states, strict=True):
            slots.setdefault(state, []).append(slot)
        activities = [_mean([slot.activity for slot in of]) for of in slots.values()]
        usual = [population.usual_power(activity) for activity in activities]
        whole_usual = sum([power * len(of) for power, of in zip(usual, slots.values(), strict=True)]) / len(seen.slots)
        # The same for all slots: the power of single slots is noise.
        scale = seen.power / whole_usual if whole_usual else 0.0
        caps = _caps(rows, known, seen)
        busy_s = sum(seen.busy.values())
        local = [LOCAL * seen.busy.get(row, 0.0) / busy_s if busy_s else 0.0 for row in rows]
        length_s = seen.seconds / len(seen.slots)
        parts: list[Part] = []
        for (state, of), activity, power in zip(slots.items(), activities, usual, strict=True):
            engine = sum([slot.engine for slot in of]) / len(of)
            counts = [state.samples.get(row, 0.0) + own for row, own in zip(rows, local, strict=True)]
            observed = population.deviations(activity, scale * power, engine)
            if engine < RESTING:
                times = [0.0] * len(rows), [0.0] * len(rows)
            elif len(rows) == 1:
                times = [engine], [0.0]
            elif not seen.named:
                programs = self._regression.programs()
                times = unnamed_times(observed, programs, any_times(engine, caps), population.measured)
            elif any(counts):
                times = engine_times(counts, state.jitter, engine, caps)
            else:
                return None
            parts.append(Part(*times, observed, len(of) * length_s, state.slots * length_s, engine))
            _learn_duty(known, parts[-1])
        return parts

    def _working(self, rows: list[Row], seen: Seen) -> list[Row]:
        """All processes, or of many those that were sampled lately: the others have no time on the engine."""
        if len(rows) <= MOST_ROWS or not seen.named:
            self._sampled_s = {}
            return rows
        self._sampled_s |= dict.fromkeys(seen.busy, self._now_s)
        present, since_s = set(rows), self._now_s - MEMORY_S
        self._sampled_s = {row: s for row, s in self._sampled_s.items() if s > since_s and row in present}
        return sorted(self._sampled_s, key=Row.key)


def _errors(
    known: Sequence[Fingerprint], times: Sequence[float], powers: Sequence[float], errors: list[float]
) -> list[float]:
    """Errors of shares, as a program may have changed since it was alone, with the odds CHANGED_S : seconds alone.

    Then only the times are known: var(s_i) += P(changed) (1 - P(changed)) (s_i - x_i / sum x)^2.
    """
    alone = [of.alone_s for of, time in zip(known, times, strict=True) if time > RESTING]
    held = [seconds for seconds in alone if seconds > HOLD_S]
    if not held or len(alone) < 2:
        return errors
    odds = changed(min(held))
    power, time = sum(powers), sum(times)
    return [
        sqrt(error * error + odds * (1 - odds) * (p / power - x / time) ** 2)
        for error, p, x in zip(errors, powers, times, strict=True)
    ]


def _unsampled(
    only: Fingerprint, expected: float, power: float, errors: list[float], *, is_contradicted: bool
) -> list[float]:
    """Errors if the samples name one process only, whose program was learned alone and does not explain the interval.

    Either its program has changed, or another process works between the samples, as likely as not: var(s) += (u / 2)^2,
    where u is the unexplained part of the power, |P - x p| / P, and 1 if the activity contradicts the program.
    """
    if only.alone_s <= HOLD_S or power <= 0:
        return errors
    unexplained = 1.0 if is_contradicted else min(1.0, abs(power - expected) / max(power, LEAST_POWER))
    return [sqrt(error * error + (unexplained / 2) ** 2) for error in errors]


def _caps(rows: Sequence[Row], known: Sequence[Fingerprint], seen: Seen) -> list[float]:
    """The most that a process has the engine: its part alone, or any if the samples of half a minute contradict that.

    What a process did alone must not limit what it pays later.
    """
    decay = exp(-seen.seconds / MEMORY_S)
    caps = []
    for row, fingerprint in zip(rows, known, strict=True):
        fingerprint.recent += (1 - decay) * (seen.busy.get(row, 0.0) / seen.seconds - fingerprint.recent)
        cap = fingerprint.cap()
        caps.append(1.0 if fingerprint.recent - ALIAS_SD > cap else cap)
    return caps


def unnamed_times(observed: Units, programs: Sequence[Program], together: Times, measured: Sequence[float]) -> Times:
    """Times of processes that no sample names: the mean over the sets of them that may work, by their likelihood.

    The sets are each process alone, with r = y - g phi_i and S = g^2 V_i + R, and all together, where any division of
    the time is as likely as another; log L = -1/2 sum_u (r^2 / S + log S).
    """
    engine = sum(together[0])
    squares = [time * time + v for time, v in zip(*together, strict=True)]
    logs = [_log_likelihood(observed, [(engine, engine * engine, program)], measured) for program in programs]
    logs.append(_log_likelihood(observed, list(zip(together[0], squares, programs, strict=True)), measured))
    highest = max(logs)
    weights = [exp(value - highest) for value in logs]
    whole = sum(weights)
    all_weight = weights.pop() / whole
    means, variances = [], []
    for weight, time, square in zip(weights, together[0], squares, strict=True):
        mean = weight / whole * engine + all_weight * time
        means.append(mean)
        variances.append(max(0.0, weight / whole * engine * engine + all_weight * square - mean * mean))
    return means, variances


def _log_likelihood(
    observed: Units, working: Sequence[tuple[float, float, Program]], measured: Sequence[float]
) -> float:
    """Of an observation, by the time, its mean square and the program of each process that works."""
    result = 0.0
    for unit, noise in enumerate(measured):
        residual, variance = observed[unit], noise
        for time, square, program in working:
            residual -= time * program.phi[unit]
            variance += square * program.variance[unit] + (square - time * time) * program.phi[unit] ** 2
        result -= 0.5 * (residual * residual / variance + log(variance))
    return result


def _learn_duty(known: Sequence[Fingerprint], part: Part) -> None:
    """Learn which part of the engine a process uses in a state in which it works alone."""
    most = max(range(len(known)), key=part.times.__getitem__)
    if part.engine > LEAST_BUSY and part.times[most] > ALONE * part.engine and part.variances[most] < CERTAIN:
        known[most].work_alone(part.engine, part.seconds)


def _mean(columns: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each number."""
    if len(columns) == 1:
        return list(columns[0])
    return [sum(numbers) / len(columns) for numbers in zip(*columns, strict=True)]


def _whole(parts: Sequence[Part], seen: Seen) -> Observation:
    """The interval as a whole: means over its parts, weighted by their length."""
    squares = [list(map(mul, part.times, part.times)) for part in parts]
    if len(parts) == 1:
        return Observation(parts[0].times, parts[0].variances, squares[0], parts[0].observed, seen.power)
    weights = [part.seconds / seen.seconds for part in parts]

    def mean(columns: Sequence[Sequence[float]]) -> list[float]:
        return [sum(map(mul, weights, numbers)) for numbers in zip(*columns, strict=True)]

    return Observation(
        times=mean([part.times for part in parts]),
        variances=mean([part.variances for part in parts]),
        squares=mean(squares),
        observed=mean([part.observed for part in parts]),
        power=seen.power,
    )


def place_samples(states: Sequence[State], seen: Seen) -> None:
    """Add the samples of an interval to the states of its slots: five for each second in which the engine worked.

    The driver tells the part of the samples that name a process and the time of the last one. The others are spread
    over the slots in proportion to the busy time.
    """
    busy_s = sum(seen.busy.values())
    working = [i for i, slot in enumerate(seen.slots) if slot.engine >= RESTING]
    if not busy_s or not working:
        return
    each = SAMPLES_PER_S * seen.seconds / len(seen.slots)
    left = {row: each * len(working) * seconds / busy_s for row, seconds in seen.busy.items() if seconds}
    free = dict.fromkeys(working, each)
    for row, at_ns in sorted(seen.sampled_ns.items(), key=lambda item: (item[1], item[0].key())):
        i = next((i for i in working if at_ns <= seen.slots[i].end_ns), working[-1])
        if row in left and free[i] > 0:
            number = min(1.0, left[row], free[i])
            states[i].sample(row, number)
            left[row] -= number
            free[i] -= number
    weights = {i: number * seen.slots[i].engine for i, number in free.items() if number > 0}
    total = sum(weights.values())
    for row, number in left.items():
        for i, weight in weights.items():
            states[i].sample(row, number * weight / total)
