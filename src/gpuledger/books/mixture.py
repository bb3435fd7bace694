"""The shares of processes that use one GPU at the same time, estimated from samples, activity and fingerprints.

Three cases, in the order of what is known (docs/accuracy.md explains them):

- Every process was observed alone. The observations are z = H a + noise: a_i is the part of the time in which process
  i, in one of its behaviours, has the compute engine; column i of H is its activity and power while it does. The
  driver's samples give a prior for a, and one Kalman update corrects it with the measured activity and power.
- Some processes were observed alone, others (strangers) were not: `strangers.py`.
- No process was observed alone: by the expected time on the engine, as if all drew the same power.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from gpuledger.books.engine import SAMPLES_PER_S, EngineTime
from gpuledger.books.fingerprint import Activities, Alone, Behaviour, Fingerprint, Fingerprints
from gpuledger.books.interval import Interval, mps
from gpuledger.books.kalman import Estimate, update
from gpuledger.books.rows import Row
from gpuledger.books.strangers import EXPLAINED, STRANGER_SD, Column, explained, separate
from gpuledger.books.time import BUFFER_NS

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
VISIBLE = 1.5
"""Strangers are visible for at least this multiple of their sampled time, or visibility does not count."""
MPS_SD = 0.5
"""Standard deviation of the time of an MPS client: nothing but activity and power tells clients apart."""
LEAST_W = 20.0
"""Least power above parked power while strangers work."""
MOST_PENDING = 100
"""Limit of intervals not yet learned from; reached only if the clock is set back."""
WEIGHT_UNIT = 1_000_000_000


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


def by_activity(parts: Sequence[Part], activity: Activities, power_w: float, prior_sd: float) -> Estimate:
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
    variances = [prior_sd**2] * len(parts)
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


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the energy above parked power in one interval."""

    errors: dict[Row, float]
    """Standard deviation of each share."""
    weights: tuple[str, dict[Row, int]] | None = None
    """Method and weights; None if there is no better estimate than the samples of the interval."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was measured of the whole GPU in one interval."""

    seconds: float
    busy: float
    """Part of the interval in which the compute engine was busy."""
    activity: Activities
    slots: Sequence[Activities]
    clock: float
    """SM clock relative to its highest value."""
    power_w: float
    """Above parked power."""


Times = Callable[[bool], tuple[Mapping[Row, float], float]]
"""Expected time on the engine by process and the standard deviation of the known sum; by visibility, or not."""


@dataclass(slots=True)
class _Watts:
    """Mean power above parked power of each process in an interval, and what its errors are made of."""

    known: dict[Row, float] = field(default_factory=dict)
    strangers: dict[Row, float] = field(default_factory=dict)
    known_sd: float = 0.0
    strangers_sd: float = 0.0


class Mixture:
    """The processes of one GPU: learns fingerprints while one process works alone, and estimates shares otherwise."""

    def __init__(self, fingerprints: Fingerprints, *, by_fingerprint: bool = True) -> None:
        self._fingerprints = fingerprints
        self._by_fingerprint = by_fingerprint
        self._engine = EngineTime()
        self._pending: deque[tuple[int, Row, Alone]] = deque(maxlen=MOST_PENDING)

    def close(self, interval: Interval, at_end: frozenset[Row] | None, now_ns: int, parked_mw: int) -> Shares | None:
        """Learn from a finished interval; its shares if several processes may have worked."""
        elapsed_s = (now_ns - interval.start_ns) / 1e9
        if interval.failed or interval.restarted or not interval.has_samples or not 0 < elapsed_s <= BUFFER_NS / 1e9:
            return None
        unchanged = self._engine.update(interval, elapsed_s, now_ns)
        if interval.hidden or interval.unlisted or any(row.device.parent_uuid for row in interval.rows):
            return None
        unchanged &= interval.at_start == at_end and len(interval.rows) == len(at_end or ())
        joules = interval.energy_mj / 1000 - parked_mw / 1000 * elapsed_s
        servers, clients = mps(interval)
        if servers:
            return self._mps_shares(interval, servers, clients, elapsed_s, joules, unchanged=unchanged)
        working = self._engine.working
        if len(working) > 1:
            self._pending.clear()
        elif working and unchanged:  # right after a change, samples and joules of other processes may still arrive
            # Delayed if other processes are present: they may work without having been sampled yet.
            others = [recent.quiet_ns for row, recent in self._engine.recent.items() if row is not working[0]]
            due_ns = now_ns + max(others, default=0)
            alone = _alone(interval, elapsed_s, interval.busy_ns.get(working[0], 0) / 1e9, joules)
            if alone is not None:
                self._pending.append((due_ns, working[0], alone))
        while self._pending and self._pending[0][0] <= now_ns:
            self._fingerprints.learn(*self._pending.popleft()[1:])
        if len(interval.rows) < 2 or not any(interval.busy_ns.get(row) for row in working):
            return None
        return self._shares(interval, elapsed_s, max(0.0, joules) / elapsed_s)

    def _shares(self, interval: Interval, elapsed_s: float, power_w: float) -> Shares:
        recent = self._engine.recent
        fingerprints = {row: self._fingerprints.get(row) for row in self._engine.working}
        known = {row: fingerprint for row, fingerprint in fingerprints.items() if fingerprint is not None}
        strangers = [row for row in fingerprints if row not in known and recent[row].engine_s]
        activity = interval.activities(elapsed_s) if self._by_fingerprint else None
        if activity is None:
            engine = {row: ns / 1e9 / elapsed_s for row, ns in interval.busy_ns.items() if ns and row in recent}
            parts = [Part(row=row, prior=prior, watts=1.0, power_sd=UNKNOWN_SD) for row, prior in engine.items()]
            return Shares(errors=share_errors(parts, by_samples(parts), self._unsampled(len(engine))))
        busy = min(1.0, sum(interval.busy_ns.values()) / 1e9 / elapsed_s)
        observed = Observed(elapsed_s, busy, activity, interval.slots, interval.clock(), power_w)
        if not strangers:
            return self._known_shares(known, observed)

        def times(by_visibility: bool) -> tuple[Mapping[Row, float], float]:
            return self._engine.expected(known, strangers, busy, by_visibility=by_visibility)

        if not known:
            return self._weighted(_Watts(strangers=dict(times(False)[0])), "sm_time")
        return self._weighted(self._company(known, strangers, observed, times))

    def _known_shares(self, known: Mapping[Row, Fingerprint], observed: Observed) -> Shares:
        """Every process that worked lately was observed alone."""
        parts = [
            Part(
                row=row,
                prior=self._engine.recent[row].short_share() * behaviour.seconds / total_s,
                watts=behaviour.watts(),
                power_sd=KNOWN_SD,
                behaviour=behaviour,
            )
            for row, fingerprint in known.items()
            for total_s in [sum(behaviour.seconds for behaviour in fingerprint.reliable())]
            for behaviour in fingerprint.reliable()
        ]
        estimate = by_activity(parts, observed.activity, observed.power_w, SAMPLES_SD)
        weights = _weights(parts, estimate)
        if not any(weights.values()):
            return Shares(errors={})
        return Shares(share_errors(parts, estimate, self._unsampled(len(known))), ("fingerprint", weights))

    def _unsampled(self, sampled: int) -> float:
        """The share that processes without a sample may have had: 1 / (n + 2) after n samples (rule of succession)."""
        if sampled == len(self._engine.recent):
            return 0.0
        return 1 / (2 + SAMPLES_PER_S * max(recent.short_seconds for recent in self._engine.recent.values()))

    def _company(
        self, known: Mapping[Row, Fingerprint], strangers: Sequence[Row], observed: Observed, times: Times
    ) -> _Watts:
        """Known processes and strangers. In a slot that the known ones explain, the strangers paused."""
        rows = list(known)
        columns = [
            Column(number, behaviour.shape(), behaviour.watts(), behaviour.clock(), behaviour.seconds)
            for number, fingerprint in enumerate(known.values())
            for behaviour in fingerprint.reliable()
        ]
        slots = observed.slots if _vary(observed.slots) else [observed.activity]
        amounts = [explained(columns, slot) for slot in slots]
        visible = amounts.count(None) / len(slots)
        recent = [self._engine.recent[row] for row in strangers]
        for stranger in recent:
            stranger.see(visible, observed.seconds)
        by_visibility = all(stranger.visible() >= VISIBLE * stranger.share() for stranger in recent)
        if not by_visibility:
            amounts, visible = [None] * len(slots), 1.0
        watts = _Watts(known=dict.fromkeys(known, 0.0), strangers=dict.fromkeys(strangers, 0.0))
        for slot_amounts in amounts:
            for column, amount in zip(columns, slot_amounts or (), strict=False):
                watts.known[rows[column.number]] += amount * column.watts / len(slots)
        if not visible:
            return watts
        shown = [slot for slot, slot_amounts in zip(slots, amounts, strict=True) if slot_amounts is None]
        mean = tuple(sum(unit) / len(shown) for unit in zip(*shown, strict=True))
        power_w = max(LEAST_W, (observed.power_w - sum(watts.known.values())) / visible)
        expected, time_sd = times(by_visibility)
        powers = separate(
            columns,
            [expected[row] for row in rows],
            time_sd,
            activity=mean,
            power_w=power_w,
            busy=observed.busy,
            clock=observed.clock,
        )
        for row, power in zip(rows, powers.known_w, strict=True):
            watts.known[row] += power * visible
        strangers_time = sum(expected[row] for row in strangers)
        for row in strangers:
            watts.strangers[row] = powers.strangers_w * visible * expected[row] / strangers_time
        watts.known_sd, watts.strangers_sd = powers.known_sd_w * visible, powers.strangers_sd_w * visible
        return watts

    def _weighted(self, watts: _Watts, method: str = "fingerprint") -> Shares:
        """Shares by power. The errors combine those of known power, strangers' power and each stranger's part."""
        known_w, strangers_w = sum(watts.known.values()), sum(watts.strangers.values())
        total_w = known_w + strangers_w
        if not total_w > 0:
            return Shares(errors={})
        error = sqrt((strangers_w * watts.known_sd) ** 2 + (known_w * watts.strangers_sd) ** 2) / total_w**2
        errors = {row: error * power / known_w for row, power in watts.known.items()} if known_w else {}
        relative = {
            row: self._engine.recent[row].variance() / max(0.05, self._engine.recent[row].share() ** 2) + STRANGER_SD**2
            for row in watts.strangers
        }
        for row, power in watts.strangers.items():
            part = power / strangers_w if strangers_w else 1 / len(relative)
            others = [relative[other] for other in relative if other is not row]
            own = part * (1 - part) * sqrt(relative[row] + sum(others) / len(others)) if others else 0.0
            errors[row] = sqrt((error * part) ** 2 + (own * strangers_w / total_w) ** 2)
        unsampled = self._unsampled(len(errors))
        errors = {row: min(1.0, round(sqrt(e * e + unsampled * unsampled), 3)) for row, e in errors.items()}
        weights = {row: round(power * WEIGHT_UNIT) for row, power in (watts.known | watts.strangers).items()}
        return Shares(errors, (method, weights))

    def _mps_shares(
        self,
        interval: Interval,
        servers: set[Row],
        clients: set[Row],
        elapsed_s: float,
        joules: float,
        *,
        unchanged: bool,
    ) -> Shares | None:
        """Clients of MPS. The samples name only the server, so activity and power are the only inputs."""
        self._pending.clear()
        engine_s = sum(interval.busy_ns.get(server, 0) for server in servers) / 1e9
        if len(clients) == 1 and unchanged and interval.rows == servers | clients:
            alone = _alone(interval, elapsed_s, engine_s, joules)
            if alone is not None:
                (client,) = clients
                self._fingerprints.learn(client, alone)
            return None
        activity = interval.activities(elapsed_s) if self._by_fingerprint else None
        fingerprints = {client: self._fingerprints.get(client) for client in sorted(clients)}
        known = {client: fingerprint for client, fingerprint in fingerprints.items() if fingerprint is not None}
        others = interval.rows - servers - clients
        if activity is None or not known or not engine_s or any(interval.busy_ns.get(row) for row in others):
            # Any split is as likely as another: the standard deviation of one of n parts.
            count = len(clients)
            return Shares(errors=dict.fromkeys(clients, round(sqrt((count - 1) / (count + 1)) / count, 3)))
        busy = min(1.0, engine_s / elapsed_s)
        observed = Observed(elapsed_s, busy, activity, interval.slots, interval.clock(), max(0.0, joules) / elapsed_s)
        if len(known) < len(clients):
            times = dict.fromkeys(clients, busy / len(clients))
            times |= {row: min(times[row], fingerprint.demand()) for row, fingerprint in known.items()}
            time_sd = MPS_SD * sum(times[row] for row in known)
            strangers = [client for client in fingerprints if client not in known]
            return self._weighted(self._company(known, strangers, observed, lambda _: (times, time_sd)), "mps")
        parts = [
            Part(row, busy / len(clients), behaviour.watts(), KNOWN_SD, behaviour)
            for row, fingerprint in known.items()
            for behaviour in fingerprint.reliable()
        ]
        estimate = by_activity(parts, activity, observed.power_w, MPS_SD)
        weights = _weights(parts, estimate)
        return Shares(share_errors(parts, estimate, 0.0), ("mps", weights)) if any(weights.values()) else Shares({})


def _alone(interval: Interval, elapsed_s: float, engine_s: float, joules: float) -> Alone | None:
    """What an interval in which one process worked tells about it; None if that is nothing."""
    activity = interval.activities(elapsed_s)
    if activity is None or not any(activity) or not engine_s:
        return None
    return Alone(activity, elapsed_s, engine_s, joules, interval.clock())


def _weights(parts: Sequence[Part], estimate: Estimate) -> dict[Row, int]:
    """Power of each process, as integers."""
    weights: dict[Row, int] = {}
    for part, amount in zip(parts, estimate.amounts, strict=True):
        weights[part.row] = weights.get(part.row, 0) + round(amount * part.watts * WEIGHT_UNIT)
    return weights


def _vary(slots: Sequence[Activities]) -> bool:
    """Whether the activity of a unit differs between slots."""
    return any(max(unit) - min(unit) > EXPLAINED for unit in zip(*slots, strict=True))
