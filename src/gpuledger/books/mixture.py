"""The shares of processes that use one GPU at the same time, estimated from samples, activity and fingerprints.

The observations of an interval are z = H a + noise: a_i is the part of the time in which process i, in one of its
behaviours, has the compute engine; column i of H is its activity and power while it does. The driver's samples give a
prior for a, and one Kalman update corrects it with the measured activity and power. docs/accuracy.md explains why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from operator import mul

from gpuledger.books.fingerprint import Activities, Alone, Behaviour, Fingerprints
from gpuledger.books.interval import Interval
from gpuledger.books.rows import Row
from gpuledger.books.time import BUFFER_NS

SAMPLES_PER_S = 5
"""Each sample names the process on the engine at one instant: over a second, two equal shares are off by 22 points."""
SAMPLES_SD = 0.3
"""Standard deviation of a share by samples. Larger than the sampling error: samples can alias with time slices."""
ACTIVITY_SD = 0.03
"""Standard deviation of an activity between two runs of the same work."""
POWER_SD = 0.15
"""Relative standard deviation of the sum of powers: clocks fall when processes share; the H200 gave 0.82 to 1.00."""
KNOWN_SD, UNKNOWN_SD = 0.1, 0.5
"""Relative standard deviation of a process's power, with and without a fingerprint."""
SURPRISE = 9.0
"""A residual of more than this many variances (three standard deviations) means that the model does not fit."""
FULL_W = 1000.0
"""Scales power to the range of activities."""
DECAY_S = 5.0
"""Time constant with which samples lose weight."""
LEAST_UNKNOWN = 0.1
"""The least power of a process without a fingerprint, relative to the mean power of all."""
MOST_PENDING = 100
"""Limit of intervals not yet learned from; reached only if the clock is set back."""
WEIGHT_UNIT = 1_000_000_000

Vector = Sequence[float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated amounts and what is needed for their variance."""

    amounts: list[float]
    columns: Sequence[Vector]
    """H, by column."""
    variances: list[float]
    """Diagonal of the prior covariance P; 0 for amounts fixed at zero."""
    inverse: list[list[float]]
    """S^-1, where S = H P H^T + R is the covariance of the observations."""

    def residuals(self, observed: Vector) -> list[float]:
        """Observed minus estimated: z - H a."""
        rows = zip(*self.columns, strict=True)
        return [number - sum(map(mul, row, self.amounts)) for number, row in zip(observed, rows, strict=True)]

    def variance_reduction(self, gradient: Vector) -> float:
        """g^T S^-1 g: how much the observations reduce the variance of a function with gradient g."""
        product: list[float] = [sum(map(mul, row, gradient)) for row in self.inverse]
        return float(sum(map(mul, gradient, product)))


def update(observed: Vector, noise: Vector, columns: Sequence[Vector], prior: Vector, variances: Vector) -> Estimate:
    """Kalman update with a >= 0: a = prior + P H^T S^-1 (z - H prior), S = H P H^T + R.

    `noise` and `variances` are the diagonals of R and P. The most negative amount is fixed at zero and the update
    repeated until all amounts are non-negative. S has the size of the observations, so the cost is linear in the
    number of processes.
    """
    free = list(variances)
    start = list(prior)
    while True:
        rows = list(zip(*columns, strict=True))
        weighted = [list(map(mul, row, free)) for row in rows]
        covariance = [[sum(map(mul, a, b)) for b in rows] for a in weighted]
        for i, variance in enumerate(noise):
            covariance[i][i] += variance
        inverse = invert(covariance)
        innovation = [m - sum(map(mul, row, start)) for m, row in zip(observed, rows, strict=True)]
        gain = [sum(map(mul, row, innovation)) for row in inverse]
        amounts = [
            amount + variance * sum(map(mul, column, gain)) if variance else 0.0
            for amount, variance, column in zip(start, free, columns, strict=True)
        ]
        lowest = min(range(len(amounts)), key=amounts.__getitem__)
        if amounts[lowest] >= 0:
            return Estimate(amounts=amounts, columns=columns, variances=free, inverse=inverse)
        free[lowest] = start[lowest] = 0.0


def invert(matrix: list[list[float]]) -> list[list[float]]:
    """Inverse of a symmetric, well-conditioned matrix (Gauss-Jordan elimination)."""
    size = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = rows[i][i]
        rows[i] = pivot_row = [value / pivot for value in rows[i]]
        for j in range(size):
            if j != i and (factor := rows[j][i]):
                rows[j] = [value - factor * other for value, other in zip(rows[j], pivot_row, strict=True)]
    return [row[size:] for row in rows]


@dataclass(frozen=True, slots=True)
class Part:
    """A process in one of its behaviours."""

    row: Row
    prior: float
    """Part of the time on the compute engine, by samples."""
    watts: float
    """Power above parked power while on the compute engine."""
    power_sd: float
    """Relative standard deviation of `watts`."""
    behaviour: Behaviour | None = None


def by_samples(parts: Sequence[Part]) -> Estimate:
    """The prior, without an observation."""
    return Estimate(
        amounts=[part.prior for part in parts],
        columns=[()] * len(parts),
        variances=[SAMPLES_SD**2] * len(parts),
        inverse=[],
    )


def by_activity(parts: Sequence[Part], activity: Activities, power_w: float) -> Estimate:
    """The amounts that explain activity and power; residuals that are too large are added to the noise."""
    shapes = [part.behaviour.shape() if part.behaviour is not None else [] for part in parts]
    used = [i for i, amount in enumerate(activity) if amount or any(shape[i] for shape in shapes)]
    observed = [*(activity[i] for i in used), power_w / FULL_W]
    columns = [[*(shape[i] for i in used), part.watts / FULL_W] for shape, part in zip(shapes, parts, strict=True)]
    prior = [part.prior for part in parts]
    noise = [ACTIVITY_SD**2] * len(observed)
    noise[-1] += (POWER_SD * power_w / FULL_W) ** 2
    for part, column in zip(parts, columns, strict=True):
        variance = part.behaviour.variance() if part.behaviour is not None else 0.0
        noise = [sensor + variance * (part.prior * amount) ** 2 for sensor, amount in zip(noise, column, strict=True)]
    variances = [SAMPLES_SD**2] * len(parts)
    estimate = update(observed, noise, columns, prior, variances)
    residuals = estimate.residuals(observed)
    if any(residual * residual > SURPRISE * variance for residual, variance in zip(residuals, noise, strict=True)):
        unexplained = sum(residual * residual for residual in residuals)
        noise = [variance + unexplained for variance in noise]
        estimate = update(observed, noise, columns, prior, variances)
    return estimate


@dataclass(slots=True)
class _Moments:
    """Share, prior variance and H P g (`gradient`) of one process, or the sums over all processes."""

    gradient: list[float]
    share: float = 0.0
    variance: float = 0.0


def share_errors(parts: Sequence[Part], estimate: Estimate, unsampled: float) -> dict[Row, float]:
    """Standard deviation of each share s_i = p_i / P, where p_i is the power of process i and P the sum of all.

    Prior: var(s_i) = ((1 - s_i)^2 var(p_i) + s_i^2 sum_{j != i} var(p_j)) / P^2. The observations reduce it by
    g^T S^-1 g; the share of processes without samples adds (s_i x `unsampled`)^2.
    """
    total_w = sum(amount * part.watts for amount, part in zip(estimate.amounts, parts, strict=True))
    size = len(estimate.inverse)
    by_row: dict[Row, _Moments] = {}
    total = _Moments([0.0] * size)
    for part, amount, column, prior in zip(parts, estimate.amounts, estimate.columns, estimate.variances, strict=True):
        slope = part.watts / total_w
        variance = prior * slope * slope + (amount * slope * part.power_sd) ** 2
        for moments in (total, by_row.setdefault(part.row, _Moments([0.0] * size))):
            moments.share += amount * slope
            moments.variance += variance
            moments.gradient = [
                old + prior * slope * number for old, number in zip(moments.gradient, column, strict=True)
            ]
    errors: dict[Row, float] = {}
    for row, own in by_row.items():
        variance = own.variance * (1 - 2 * own.share) + own.share**2 * total.variance
        gradient = [g - own.share * sum_g for g, sum_g in zip(own.gradient, total.gradient, strict=True)]
        variance = max(0.0, variance - estimate.variance_reduction(gradient)) + (own.share * unsampled) ** 2
        errors[row] = min(1.0, round(sqrt(variance), 3))
    return errors


@dataclass(slots=True)
class Recent:
    """The recent compute-engine time of a process, with exponential decay."""

    engine_s: float = 0.0
    seconds: float = 0.0
    worked_ns: int | None = None
    """Time of the last interval with a sample of the process; None if that is longer ago than the sample buffer."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the energy above parked power in one interval."""

    weights: dict[Row, int] | None
    """None if there is no better estimate than the samples."""
    errors: dict[Row, float]
    """Standard deviation of each share."""


class Mixture:
    """The processes of one GPU: learns fingerprints while one process works alone, and estimates shares otherwise."""

    def __init__(self, fingerprints: Fingerprints, *, by_fingerprint: bool = True) -> None:
        self._fingerprints = fingerprints
        self._by_fingerprint = by_fingerprint
        self._recent: dict[Row, Recent] = {}
        self._working: list[Row] = []
        self._pending: deque[tuple[int, Row, Alone]] = deque(maxlen=MOST_PENDING)

    def close(self, interval: Interval, at_end: frozenset[Row] | None, now_ns: int, parked_mw: int) -> Shares | None:
        """Learn from a finished interval; its shares if several processes may have worked."""
        elapsed_s = (now_ns - interval.start_ns) / 1e9
        if interval.failed or interval.restarted or not interval.has_samples or not 0 < elapsed_s <= BUFFER_NS / 1e9:
            return None
        self._update_recent(interval, elapsed_s, now_ns)
        if interval.hidden or interval.unlisted or _is_partitioned(interval):
            return None
        working = sorted(row for row, recent in self._recent.items() if recent.worked_ns is not None)
        unchanged = interval.at_start == at_end and len(interval.rows) == len(at_end or ()) and working == self._working
        self._working = working
        parked_w = parked_mw / 1000
        if len(working) > 1:
            self._pending.clear()
        elif working and unchanged:  # right after a change, samples and joules of other processes may still arrive
            self._add_pending(working[0], interval, elapsed_s, now_ns, parked_w)
        self._learn(now_ns)
        if len(interval.rows) < 2 or not any(interval.busy_ns.get(row) for row in working):
            return None
        power_w = max(0.0, interval.energy_mj / 1000 / elapsed_s - parked_w)
        return self._shares(working, interval, elapsed_s, power_w)

    def _update_recent(self, interval: Interval, elapsed_s: float, now_ns: int) -> None:
        decay = exp(-elapsed_s / DECAY_S)
        previous, self._recent = self._recent, {}
        for row in interval.rows:
            recent = self._recent[row] = previous.get(row) or Recent()
            engine_s = interval.busy_ns.get(row, 0) / 1e9
            recent.engine_s = recent.engine_s * decay + engine_s
            recent.seconds = recent.seconds * decay + elapsed_s
            if engine_s:
                recent.worked_ns = now_ns
            elif recent.worked_ns is not None and not 0 <= now_ns - recent.worked_ns < BUFFER_NS:
                recent.worked_ns, recent.engine_s = None, 0.0

    def _add_pending(self, row: Row, interval: Interval, elapsed_s: float, now_ns: int, parked_w: float) -> None:
        """Queue an interval for learning, delayed if other processes are present: their samples may arrive late."""
        activity = interval.activities(elapsed_s)
        engine_s = interval.busy_ns.get(row, 0) / 1e9
        if activity is not None and any(activity) and engine_s:
            due_ns = now_ns + (BUFFER_NS if len(interval.rows) > 1 else 0)
            joules = interval.energy_mj / 1000 - parked_w * elapsed_s
            alone = Alone(activity, elapsed_s, engine_s, joules, interval.clock())
            self._pending.append((due_ns, row, alone))

    def _learn(self, now_ns: int) -> None:
        while self._pending and self._pending[0][0] <= now_ns:
            _, row, alone = self._pending.popleft()
            self._fingerprints.learn(row, alone)

    def _shares(self, working: Sequence[Row], interval: Interval, elapsed_s: float, power_w: float) -> Shares:
        # Without a fingerprint only samples can show that a process worked.
        working = [row for row in working if interval.busy_ns.get(row) or self._behaviours(row)]
        activity = interval.activities(elapsed_s) if self._by_fingerprint else None
        parts = self._parts(working, power_w) if activity is not None else []
        if activity is None or all(part.behaviour is None for part in parts):
            engine = {row: interval.busy_ns[row] / 1e9 / elapsed_s for row in working if interval.busy_ns.get(row)}
            parts = [Part(row=row, prior=prior, watts=1.0, power_sd=UNKNOWN_SD) for row, prior in engine.items()]
            return Shares(weights=None, errors=share_errors(parts, by_samples(parts), self._unsampled(parts)))
        # A process without a fingerprint has unknown activity, so the activity cannot be explained.
        incomplete = any(part.behaviour is None for part in parts)
        estimate = by_samples(parts) if incomplete else by_activity(parts, activity, power_w)
        weights: dict[Row, int] = {}
        for part, amount in zip(parts, estimate.amounts, strict=True):
            weights[part.row] = weights.get(part.row, 0) + round(amount * part.watts * WEIGHT_UNIT)
        if not any(weights.values()):
            return Shares(weights=None, errors={})
        return Shares(weights=weights, errors=share_errors(parts, estimate, self._unsampled(parts)))

    def _behaviours(self, row: Row) -> list[Behaviour]:
        fingerprint = self._fingerprints.get(row)
        return fingerprint.reliable() if fingerprint is not None else []

    def _unsampled(self, parts: Sequence[Part]) -> float:
        """The share that processes without a sample may have had: 1 / (n + 2) after n samples (rule of succession)."""
        if len({part.row for part in parts}) == len(self._recent):
            return 0.0
        return 1 / (2 + SAMPLES_PER_S * max(recent.seconds for recent in self._recent.values()))

    def _parts(self, working: Sequence[Row], power_w: float) -> list[Part]:
        """The recently working processes. Power that fingerprints do not explain is split among the other processes."""
        parts: list[Part] = []
        unknown: dict[Row, float] = {}
        for row in working:
            recent = self._recent[row]
            prior = recent.engine_s / recent.seconds
            behaviours = self._behaviours(row)
            if not behaviours:
                unknown[row] = prior
            total_s = sum(behaviour.seconds for behaviour in behaviours)
            parts += [
                Part(
                    row=row,
                    prior=prior * behaviour.seconds / total_s,
                    watts=behaviour.watts(),
                    power_sd=KNOWN_SD,
                    behaviour=behaviour,
                )
                for behaviour in behaviours
            ]
        if not unknown:
            return parts
        unknown_time = sum(unknown.values())
        mean_w = power_w / (unknown_time + sum(part.prior for part in parts))
        rest_w = (power_w - sum(part.prior * part.watts for part in parts)) / unknown_time
        watts = max(rest_w, LEAST_UNKNOWN * mean_w)
        return parts + [Part(row=row, prior=prior, watts=watts, power_sd=UNKNOWN_SD) for row, prior in unknown.items()]


def _is_partitioned(interval: Interval) -> bool:
    """Whether MPS or MIG is in use, so that samples and activity do not belong to single processes."""
    return any(row.device.parent_uuid or row.is_mps_server for row in interval.rows)
