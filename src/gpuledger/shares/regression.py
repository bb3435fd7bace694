"""What each program does per second on the compute engine, learned from all slots in which it takes part.

A program is a vector phi of activity and power per second on the engine, in standard deviations of all programs from
their mean. The activity and power of a slot are y = sum_i x_i phi_i + noise, where x_i is the time of process i on the
engine. So least squares of y on x separates programs that are never alone. A process of which nothing is known has
phi = 0: it is an average program, and its share is its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import exp, log
from operator import mul
from typing import NamedTuple

from gpuledger.ledger.rows import Row
from gpuledger.shares.algebra import root_of, solve
from gpuledger.shares.fingerprint import LEARN_S, NEW_S, NOISE, Fingerprint, Fingerprints, workload_of
from gpuledger.shares.units import Population, Units

ENGINE_SD = 0.025
"""Standard deviation of the busy time of the engine: samples and activity do not cover quite the same time."""
HOLD_S = 2.0
"""A program that was observed alone for longer is not learned from slots with others: their times are uncertain."""
RESTING = 0.005
"""An engine or a process that is busy for less rests: nothing is learned."""
FRESH = 0.02
"""Programs are solved again if the weight of one has increased by this part."""
UNKEPT = 0.1
"""The fingerprint of a workload is updated if so much of the weight is new."""
FADE_S = 3.0
"""The weight of what was learned is reduced in steps of 1 %."""
LEAST_BUSY, LEAST_SHARE = 0.05, 0.2
"""The spread is learned from slots that are busier, by processes with a larger share of them."""
UNKNOWN = 2.0
"""Variance of what an unknown program does: 1 between programs, and 1 within."""
MOST_EVIDENCE = 2.0
"""Largest log likelihood ratio of one interval: times and activity may be of different moments."""
PATIENCE = 4.0
"""Log odds, beyond those of doing something new, at which a program is forgotten."""
CHANGED_S = 2.0
"""The odds are even that a program has changed that was alone for so long."""
DISTRUST = 0.5
"""Weight of an interval in the mean of log likelihood ratios, of which each sees the same programs again."""
CONTRADICTED = 4.0
"""Mean r^2 / S of the units, above which activity contradicts the samples: two standard deviations in each."""
TUNED = ("ENGINE_SD", "HOLD_S", "MOST_EVIDENCE", "PATIENCE", "CHANGED_S", "DISTRUST", "CONTRADICTED")
"""Chosen on tests/data/h200; `bench.sensitivity` prints what halving and doubling them changes."""


def changed(alone_s: float) -> float:
    """The probability that a program has changed that was alone for so long, before it is compared with others."""
    return CHANGED_S / (CHANGED_S + alone_s)


class Program(NamedTuple):
    """What is known of a process."""

    phi: Units
    variance: Units
    """Of what the program does in one interval, around phi."""


class Part(NamedTuple):
    """The slots of an interval that are of one state."""

    times: list[float]
    """Of each process, part of the time on the engine."""
    variances: list[float]
    """Of the times."""
    observed: Units
    """y: activity and power beyond those of an average program, in standard deviations."""
    seconds: float
    state_s: float
    """Seconds of all slots of the state, of this interval and before."""
    engine: float
    """Part of the time in which the engine was busy."""


class Regression:
    """Least squares over the processes of one device, with exponential decay."""

    def __init__(self, population: Population, fingerprints: Fingerprints) -> None:
        self._population = population
        self._fingerprints = fingerprints
        self._rows: list[Row] = []
        self._known: list[Fingerprint] = []
        """Of each of the rows."""
        self._products: dict[tuple[Row, Row], float] = {}
        """sum w x_i x_j of two processes; the squares are in the fingerprints."""
        self._programs: list[Program] | None = None
        self._gains: list[float] = []
        """Of each of the rows, what was learned since the programs were solved."""
        self._unnamed: set[Row] = set()
        """Processes whose workload is not known yet: their program or container may be known some ticks later."""
        self._unfaded_s = 0.0
        self._unkept: list[float] = []
        """Of each of the rows, what was learned since the fingerprint of its workload was updated."""
        # Variance of y by the busy time, of the SMs, in which it is largest, relative to the noise of a program.
        self._engine_noise = (ENGINE_SD * population.mean[0] / population.sd[0] / NOISE) ** 2

    def among(self, rows: list[Row]) -> list[Fingerprint]:
        """Set the processes on the device; their fingerprints."""
        if rows != self._rows:
            self._keep(self._means(), 0.0)
            before = dict(zip(self._rows, self._known, strict=True))
            present = set(rows)
            for row in [row for row in before if row not in present]:
                self._leave(row, before)
            self._unnamed = {row for row in rows if row in self._unnamed or row not in before}
            self._known = [before.get(row) or Fingerprint() for row in rows]
            self._rows, self._programs, self._unkept = rows, None, [0.0] * len(rows)
        for row in [row for row in self._unnamed if workload_of(row.device, row.facts, row.owner) is not None]:
            self._unnamed.remove(row)
            self._known[rows.index(row)].add(self._fingerprints.of(row, self._population))
            self._programs = None
        return self._known

    def _product(self, row: Row, other: Row) -> float:
        return self._products.get((row, other), 0.0) + self._products.get((other, row), 0.0)

    def _leave(self, row: Row, known: dict[Row, Fingerprint]) -> None:
        """Remove a process, but not what is known of the others together with it (Schur complement).

        A_jk -= A_ji A_ik / A_ii and b_j -= A_ji b_i / A_ii
        """
        left = known.pop(row)
        whole = left.weight + NOISE**2
        products = {other: self._product(row, other) for other in known}
        self._products = {pair: value for pair, value in self._products.items() if row not in pair}
        rows = list(known)
        for j, other in enumerate(rows):
            if not (part := products[other] / whole):
                continue
            of = known[other]
            of.weight = max(0.0, of.weight - part * products[other])
            of.moments = [moment - part * unit for moment, unit in zip(of.moments, left.moments, strict=True)]
            for third in rows[:j]:
                pair = other, third
                self._products[pair] = self._products.get(pair, 0.0) - part * products[third]

    def _keep(self, means: Sequence[tuple[Units, float]], part: float) -> None:
        """Keep what was learned for the workloads, if more than this part of it is new."""
        prior = NOISE**2
        for i, (row, known, (phi, inverse)) in enumerate(zip(self._rows, self._known, means, strict=True)):
            if self._unkept[i] <= part * (known.weight + prior):
                continue
            self._unkept[i] = 0.0
            kept = known.copy()
            kept.weight = max(0.0, 1 / inverse - prior)
            kept.moments = [unit / inverse for unit in phi]
            self._fingerprints.keep(row, self._population, kept)

    def programs(self) -> list[Program]:
        """Of each process: phi = (A + NOISE^2 I)^-1 b, A = sum w x x^T, b = sum w x y^T, and its variance."""
        if self._programs is None:
            self._gains = [0.0] * len(self._rows)
            means = self._means()
            self._keep(means, UNKEPT)
            self._programs = [
                Program(phi, known.variance(phi, NOISE**2 * inverse))
                for known, (phi, inverse) in zip(self._known, means, strict=True)
            ]
        return self._programs

    def _means(self) -> list[tuple[Units, float]]:
        """Of each process phi, and the diagonal of (A + NOISE^2 I)^-1."""
        rows, known, count = self._rows, self._known, len(self._rows)
        root = root_of([
            [*[self._product(row, other) for other in rows[:i]], known[i].weight + NOISE**2]
            for i, row in enumerate(rows)
        ])  # fmt: skip
        moments = list(zip(*[of.moments for of in known], strict=True))
        means = []
        for i in range(count):
            inverse = solve(root, [float(i == j) for j in range(count)])
            phi = self._population.bounded([sum(map(mul, inverse, unit)) for unit in moments])
            means.append((phi, inverse[i]))
        return means

    def learn(self, parts: Sequence[Part], seconds: float) -> None:
        """Add the slots of one interval.

        The weight of a part is w = seconds / (|x|^2 + r + 2 / NOISE^2 sum v x seconds of the state): uncertain times of
        a state do not average out over its slots, so their sum has a limited weight.
        """
        rows, known, programs = self._rows, self._known, self.programs()
        self._fade(seconds)
        longest = max(parts, key=lambda part: part.seconds)
        for part in parts:
            if part.engine < RESTING:
                continue
            times = part.times
            uncertain = 2 / NOISE**2 * sum(part.variances) * part.state_s
            weight = part.seconds / (sum(map(mul, times, times)) + self._engine_noise + uncertain)
            working = [i for i, time in enumerate(times) if time > RESTING]
            is_alone = len(working) == 1
            free = working if is_alone else [i for i in working if known[i].alone_s <= HOLD_S]
            if not free or (is_alone and self.contradicts(part, working[0])):
                continue
            observed = part.observed
            for i in working:
                if i not in free:
                    observed = [seen - times[i] * unit for seen, unit in zip(observed, programs[i].phi, strict=True)]
            for i in free:
                known[i].learn(times[i], observed, weight, is_alone=is_alone)
                gain = weight * times[i] * times[i]
                self._gains[i] += gain
                self._unkept[i] += gain
            for i, j in combinations(free, 2):
                pair = rows[j], rows[i]
                self._products[pair] = self._products.get(pair, 0.0) + weight * times[i] * times[j]
            if part is longest and part.engine >= LEAST_BUSY:
                self._learn_spread(part, working, free, weight, seconds / part.seconds)
        if any(gain > FRESH * (of.weight + NOISE**2) for gain, of in zip(self._gains, known, strict=True)):
            self._programs = None

    def contradicts(self, part: Part, i: int) -> bool:
        """Whether the only process that the samples name does something else than while it was alone.

        Another one that no sample names may work between the samples. Nothing is learned then.
        """
        others = [of for j, of in enumerate(self._known) if j != i]
        if self._known[i].alone_s <= HOLD_S or all(of.recent >= RESTING for of in others):
            return False
        phi, variance = self.programs()[i]
        time = part.times[i]
        residual = [y - time * unit for y, unit in zip(part.observed, phi, strict=True)]
        noises = [n + time * time * v for n, v in zip(self._population.measured, variance, strict=True)]
        return sum([r * r / n for r, n in zip(residual, noises, strict=True)]) > CONTRADICTED * len(phi)

    def _fade(self, seconds: float) -> None:
        """Reduce the weight of what was learned, now and then."""
        self._unfaded_s += seconds
        if self._unfaded_s < FADE_S:
            return
        decay, self._unfaded_s = exp(-self._unfaded_s / LEARN_S), 0.0
        self._products = {pair: value * decay for pair, value in self._products.items()}
        for fingerprint in self._known:
            fingerprint.fade(decay)

    def _learn_spread(
        self, part: Part, working: Sequence[int], free: Sequence[int], weight: float, repeated: float
    ) -> None:
        """Spread of each program: its part k_i r of the residual r = y - sum_i x_i phi_i, k_i = x_i V_i / var(r)."""
        times, programs = part.times, self.programs()
        residuals, variances = part.observed, list(self._population.measured)
        for i in working:
            time, square, (phi, own) = times[i], times[i] * times[i], programs[i]
            residuals = [r - time * unit for r, unit in zip(residuals, phi, strict=True)]
            variances = [v + square * unit for v, unit in zip(variances, own, strict=True)]
        for i in free:
            if times[i] >= LEAST_SHARE * part.engine:
                self._known[i].deviate(
                    times[i], residuals, variances, programs[i].variance, weight=weight, repeated=repeated
                )

    def distrust(
        self, times: Sequence[float], squares: Sequence[float], residual: Units, residual_variances: Units
    ) -> bool:
        """Forget a program that was alone and makes the others improbable; whether one was forgotten.

        A program that was never alone is learned from what is left of the activity. If a process worked gently while
        alone and works hard now, its work is learned as that of the others. So the others count as unknown here,
        with r = y - sum_alone x phi and S = sum_others x^2 UNKNOWN + the rest, and program i is compared with one that
        changed: r' = r + x_i phi_i, S' = S + x_i^2 (1 - V_i). It is forgotten if that is more likely than not, and with
        it what was learned of the others.
        """
        others = [i for i, of in enumerate(self._known) if of.alone_s <= HOLD_S]
        if not residual or all(times[i] < LEAST_BUSY for i in others):
            return False
        programs, noise = self.programs(), self._population.measured
        r, s = residual, residual_variances
        for i in others:
            phi, variance = programs[i]
            r = [unit + times[i] * own for unit, own in zip(r, phi, strict=True)]
            s = [unit + squares[i] * (UNKNOWN - own) for unit, own in zip(s, variance, strict=True)]
        s = list(map(max, noise, s))
        for i, fingerprint in enumerate(self._known):
            if i in others or times[i] < LEAST_BUSY:
                continue
            phi, variance = programs[i]
            log_ratio = 0.0
            for unit, known in enumerate(s):
                new = max(noise[unit], known + squares[i] * (1 - variance[unit]))
                rest = r[unit] + times[i] * phi[unit]
                log_ratio += 0.5 * (r[unit] * r[unit] / known - rest * rest / new + log(known / new))
            fingerprint.distrust += DISTRUST * (log_ratio - fingerprint.distrust)
            prior = changed(fingerprint.alone_s)
            if fingerprint.distrust > log((1 - prior) / prior):
                for other in (i, *others):
                    self._known[other].forget()
                self._products, self._programs = {}, None
                return True
        return False

    def doubt(
        self, times: Sequence[float], squares: Sequence[float], residual: Units, residual_variances: Units
    ) -> None:
        """Forget a program that contradicts what was learned of it.

        Compares the likelihood of the residual r, with variances S, to that with an unknown program in place of
        program i: r' = r + x_i phi_i, S' = S + x_i^2 (UNKNOWN - V_i). The log likelihood ratios of intervals are summed
        up, as long as the sum is positive (CUSUM).
        """
        if not residual or self.distrust(times, squares, residual, residual_variances):
            return
        programs = self.programs()
        contradicted, most = None, 0.0
        for i, fingerprint in enumerate(self._known):
            time, square = times[i], squares[i]
            if time < LEAST_BUSY or fingerprint.weight < NEW_S:
                continue
            phi, variance, usual = programs[i].phi, programs[i].variance, fingerprint.usual_variance()
            log_ratio = 0.0
            for unit, (r, s) in enumerate(zip(residual, residual_variances, strict=True)):
                as_known = max(self._population.measured[unit], s + square * (usual[unit] - variance[unit]))
                as_new = s + square * (UNKNOWN - variance[unit])
                log_ratio += r * r / as_known - (r + time * phi[unit]) ** 2 / as_new + log(as_known / as_new)
            evidence = min(MOST_EVIDENCE, max(-MOST_EVIDENCE, 0.5 * log_ratio))
            fingerprint.doubt = max(0.0, fingerprint.doubt + evidence)
            excess = fingerprint.doubt - log(1 + fingerprint.weight / NEW_S) - PATIENCE
            if excess > most:
                contradicted, most = i, excess
        if contradicted is not None:
            row = self._rows[contradicted]
            self._known[contradicted].forget()
            for fingerprint in self._known:
                fingerprint.doubt = 0.0
            self._products = {pair: value for pair, value in self._products.items() if row not in pair}
            self._programs = None
