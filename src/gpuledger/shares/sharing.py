"""The shares of processes that use one GPU at the same time: which estimate applies.

In the order of what is known (docs/accuracy.md explains them):

- Every process that works was observed alone before: `mixture.py`.
- Some were, others (strangers) were not: `strangers.py`.
- None was: by the expected time on the compute engine (`engine.py`), as if all drew the same power.
- Clients of MPS have no samples: by activity where they were observed alone, else in equal parts.
- MIG instances have their own activity: `instances.py`. Processes in one instance are handled like clients of MPS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import hypot, sqrt

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import Proportions, Row
from gpuledger.ledger.split import Weights, mps
from gpuledger.ledger.time import BUFFER_NS
from gpuledger.shares.activity import Mixture
from gpuledger.shares.engine import SAMPLES_PER_S, SAMPLES_SD, EngineTime, Expected
from gpuledger.shares.fingerprint import Alone, Fingerprint, Fingerprints, Means
from gpuledger.shares.instances import Instance, InstancePower, shares_of
from gpuledger.shares.learning import Learning, alone_in
from gpuledger.shares.mixture import (
    KNOWN_SD,
    UNKNOWN_SD,
    WEIGHT_UNIT,
    Part,
    by_activity,
    by_samples,
    proportions_of,
    share_errors,
    weights_of,
)
from gpuledger.shares.shares import LEAST_TOTAL_W, Observed, Shares, Watts, any_split, equal_shares
from gpuledger.shares.strangers import STRANGER_SD, Explanation, hidden_sd, separate, vary

VISIBLE = 1.5
"""Strangers are visible for at least this multiple of their sampled time, or visibility does not count."""
MPS_SD = 0.5
"""Standard deviation of the time of a process without samples."""
UNSAMPLED = 2.0
"""Errors of processes without samples are larger by this factor."""
LEAST_W = 20.0
"""Least power above parked power while strangers work."""
LEAST_BUSY = 1e-6
"""Below this, the compute engine counts as idle."""
SAME_POWER = Means(shape=(), watts=1.0)
"""Of processes of which only the time is known."""


Times = Callable[[bool], tuple[Mapping[Row, float], float]]
"""Expected time on the engine by process, and the standard deviation of the known sum. The argument selects times of
the part of the interval in which strangers are visible."""


class Sharing:
    """The processes of one GPU: learns fingerprints while one process works alone, and estimates shares otherwise."""

    def __init__(self, fingerprints: Fingerprints, *, by_fingerprint: bool = True) -> None:
        self._fingerprints = fingerprints
        self._by_fingerprint = by_fingerprint
        self._engine = EngineTime()
        self._instances = InstancePower()
        self._learning = Learning(fingerprints, self._engine)
        self._explanation = Explanation(())

    def close(
        self,
        interval: Interval,
        at_end: frozenset[Row] | None,
        now_ns: int,
        parked_mw: int,
        limit_mw: int | None = None,
    ) -> Shares | None:
        """Learn from a finished interval; its shares if several processes may have worked."""
        elapsed_s = (now_ns - interval.start_ns) / 1e9
        if interval.failed or interval.restarted or not 0 < elapsed_s <= BUFFER_NS / 1e9:
            return None
        joules = interval.energy_mj / 1000 - parked_mw / 1000 * elapsed_s
        is_steady = interval.at_start == at_end and len(interval.rows) == len(at_end or ())
        if any(row.device.parent_uuid for row in interval.rows):
            return self._instance_shares(interval, elapsed_s, joules, limit_mw, is_steady=is_steady)
        if interval.has_samples:
            unchanged = self._engine.update(interval, elapsed_s, now_ns) and is_steady
            if not interval.hidden and not interval.unlisted:
                return self._sampled_shares(interval, elapsed_s, joules, now_ns, unchanged=unchanged)
        return None

    def _sampled_shares(
        self, interval: Interval, elapsed_s: float, joules: float, now_ns: int, *, unchanged: bool
    ) -> Shares | None:
        servers, clients = mps(interval)
        if servers:
            return self._mps_shares(interval, servers, clients, elapsed_s, joules, unchanged=unchanged)
        self._learning.from_interval(interval, elapsed_s, joules, now_ns, unchanged=unchanged)
        if len(interval.rows) < 2 or not any(interval.busy_ns.get(row) for row in self._engine.working):
            return None
        return self._shares(interval, elapsed_s, max(0.0, joules) / elapsed_s)

    def _shares(self, interval: Interval, elapsed_s: float, power_w: float) -> Shares:
        recent = self._engine.recent
        activity = interval.activities(elapsed_s) if self._by_fingerprint else None
        if activity is None:
            engine = {row: ns / 1e9 / elapsed_s for row, ns in interval.busy_ns.items() if ns and row in recent}
            parts = [Part(row, prior, SAMPLES_SD, SAME_POWER, UNKNOWN_SD) for row, prior in engine.items()]
            return Shares(errors=share_errors(parts, by_samples(parts), self._unsampled(len(engine))))
        known = self._known(self._engine.working)
        strangers = [row for row in self._engine.working if row not in known]
        busy = min(1.0, sum(interval.busy_ns.values()) / 1e9 / elapsed_s)
        observed = Observed(elapsed_s, busy, activity, interval.slots, interval.clock(), power_w)
        if not strangers:
            return self._known_shares(known, observed)

        def times(by_visibility: bool) -> tuple[Mapping[Row, float], float]:
            return self._engine.expected(known, strangers, busy, by_visibility=by_visibility)

        self._learning.from_pauses(interval, strangers, observed)
        if not known:
            expected = dict(times(False)[0])
            return self._weighted(Watts(strangers=expected, mixture=Mixture(expected)), observed, "sm_time")
        return self._weighted(self._known_and_strangers(known, strangers, observed, times), observed)

    def _known(self, rows: Sequence[Row]) -> dict[Row, Fingerprint]:
        """The fingerprints of those processes that have one."""
        return {row: fingerprint for row in rows if (fingerprint := self._fingerprints.get(row)) is not None}

    def _known_shares(self, known: Mapping[Row, Fingerprint], observed: Observed) -> Shares:
        """Every process that worked lately was observed alone."""
        parts = _parts(known, self._engine.of_known(known, observed.busy))
        return _mixed(parts, "fingerprint", observed, self._unsampled(len(known))) or Shares(errors={})

    def _unsampled(self, sampled: int) -> float:
        """The share that processes without a sample may have had: 1 / (n + 2) after n samples (rule of succession)."""
        if sampled == len(self._engine.recent):
            return 0.0
        return 1 / (2 + SAMPLES_PER_S * max(recent.short_seconds for recent in self._engine.recent.values()))

    def _known_and_strangers(
        self,
        known: Mapping[Row, Fingerprint],
        strangers: Sequence[Row],
        observed: Observed,
        times: Times,
        *,
        sampled: bool = True,
    ) -> Watts:
        """Known processes and strangers. In a slot that known processes explain, the strangers paused."""
        rows = list(known)
        slots = observed.slots if vary(observed.slots) else [observed.activity]
        explanation = self._explanation_by(known)
        columns = explanation.columns
        amounts = [explanation.amounts(slot) for slot in slots]
        visible = amounts.count(None) / len(slots)
        recent = [self._engine.recent[row] for row in strangers] if sampled else []
        for stranger in recent:
            stranger.add_visible(visible, observed.seconds)
        by_visibility = all(stranger.visible() >= VISIBLE * stranger.share() for stranger in recent)
        if not by_visibility:
            amounts, visible = [None] * len(slots), 1.0
        watts = Watts(known=dict.fromkeys(known, 0.0), strangers=dict.fromkeys(strangers, 0.0))
        explained = [slot_amounts for slot_amounts in amounts if slot_amounts is not None]
        parts = [sum(column) / len(slots) for column in zip(*explained, strict=True)] or [0.0] * len(columns)
        explained_w = sum([behaviour.watts * part for (_, behaviour), part in zip(columns, parts, strict=True)])
        watts.strangers_sd = explained_w * hidden_sd(observed.activity)
        if visible:
            shown = [slot for slot, slot_amounts in zip(slots, amounts, strict=True) if slot_amounts is None]
            activity = tuple([sum(unit) / len(shown) for unit in zip(*shown, strict=True)])
            expected, time_sd = times(by_visibility)
            powers = separate(
                columns,
                [expected[row] for row in rows],
                time_sd,
                activity=activity,
                power_w=max(LEAST_W, (observed.power_w - explained_w) / visible),
                busy=observed.busy,
                most_busy=observed.busy / visible,
                clock=observed.clock,
            )
            parts = [part + amount * visible for part, amount in zip(parts, powers.amounts, strict=True)]
            strangers_time = sum(expected[row] for row in strangers)
            for row in strangers:
                part = visible * expected[row] / strangers_time
                watts.strangers[row] = powers.strangers_w * part
                watts.mixture.engine[row] = powers.strangers_time * part
            watts.known_sd = powers.known_sd_w * visible
            watts.strangers_sd = hypot(watts.strangers_sd, powers.strangers_sd_w * visible)
        for (number, behaviour), part in zip(columns, parts, strict=True):
            watts.add(rows[number], behaviour, part)
        return watts

    def _explanation_by(self, known: Mapping[Row, Fingerprint]) -> Explanation:
        """Cached until a known process comes, goes or is observed alone."""
        behaviours = tuple([fingerprint.reliable() for fingerprint in known.values()])
        if self._explanation.behaviours != behaviours:
            self._explanation = Explanation(behaviours)
        return self._explanation

    def _weighted(self, watts: Watts, observed: Observed, method: str = "fingerprint") -> Shares:
        """Shares by power, with the errors of sampled processes."""
        recent = self._engine.recent
        relative = {
            row: recent[row].variance() / max(0.05, recent[row].share() ** 2) + STRANGER_SD**2
            for row in watts.strangers
        }
        unsampled = self._unsampled(len(watts.known) + len(watts.strangers))
        return watts.shares(method, observed.activity, relative, scale=1.0, unsampled=unsampled)

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
        self._learning.drop()
        engine_s = sum(interval.busy_ns.get(server, 0) for server in servers) / 1e9
        if len(clients) == 1 and unchanged and interval.rows == servers | clients:
            alone = alone_in(interval, elapsed_s, engine_s, joules)
            if alone is not None:
                (client,) = clients
                self._fingerprints.learn(client, alone)
            return None
        activity = interval.activities(elapsed_s) if self._by_fingerprint else None
        others = interval.rows - servers - clients
        if activity is None or not engine_s or any(interval.busy_ns.get(row) for row in others):
            return Shares(dict.fromkeys(clients, any_split(len(clients))))
        busy, power_w = min(1.0, engine_s / elapsed_s), max(0.0, joules) / elapsed_s
        observed = Observed(elapsed_s, busy, activity, interval.slots, interval.clock(), power_w)
        return self._without_samples(sorted(clients), observed, "mps")

    def _without_samples(self, rows: Sequence[Row], observed: Observed, method: str) -> Shares:
        """Processes of which no samples exist: by activity where some were observed alone, else in equal parts."""
        known = self._known(rows)
        times = dict.fromkeys(rows, observed.busy / len(rows))
        if not known or observed.busy < LEAST_BUSY:
            return equal_shares(rows, method)
        if len(known) < len(rows):
            times |= {row: min(times[row], fingerprint.demand()) for row, fingerprint in known.items()}
            time_sd = MPS_SD * sum(times[row] for row in known)
            strangers = [row for row in rows if row not in known]
            watts = self._known_and_strangers(known, strangers, observed, lambda _: (times, time_sd), sampled=False)
            relative = dict.fromkeys(strangers, 1.0)
            return watts.shares(method, observed.activity, relative, scale=UNSAMPLED, unsampled=0.0)
        parts = _parts(known, {row: Expected(time, MPS_SD) for row, time in times.items()})
        return _mixed(parts, method, observed, 0.0) or equal_shares(rows, method)

    def _instance_shares(
        self, interval: Interval, elapsed_s: float, joules: float, limit_mw: int | None, *, is_steady: bool
    ) -> Shares | None:
        """Processes in MIG instances: the power of each instance, then that of its processes."""
        by_instance: dict[str, list[Row]] = {}
        for row in sorted(interval.rows):
            by_instance.setdefault(row.device.uuid, []).append(row)
        measured = interval.mig_activity
        if not self._by_fingerprint or interval.mig_missing & set(by_instance) or not set(by_instance) <= set(measured):
            return None
        whole = interval.gpu_size or sum(interval.mig_sizes.values())
        instances = {
            uuid: Instance(
                activity=tuple(unit / (interval.mig_measured_s[uuid] or elapsed_s) for unit in units),
                size=interval.mig_sizes[uuid] / whole,
                program=tuple(row.number for row in by_instance.get(uuid, ())) or uuid,
            )
            for uuid, units in measured.items()
        }
        limit_w = limit_mw / 1000 if limit_mw else None
        learned_s = 0.0 if interval.mig_held else elapsed_s
        watts = self._instances.divide(instances, max(0.0, joules) / elapsed_s, learned_s, limit_w)
        total_w = sum(power for power, _ in watts.values())
        if len(interval.rows) < 2 or total_w < LEAST_TOTAL_W:
            return None
        shares = shares_of(watts)
        weights: dict[Row, int] = {}
        errors: dict[Row, float] = {}
        activity: dict[Row, Proportions] = {}
        unseen = 0.0
        for uuid, (power_w, _) in watts.items():
            rows = by_instance.get(uuid, [])
            if not rows:
                unseen += power_w
                continue
            share, variance = shares[uuid]
            busy = min(1.0, interval.mig_engine_s[uuid] / (interval.mig_measured_s[uuid] or elapsed_s))
            observed = Observed(elapsed_s, busy, instances[uuid].activity, (), interval.mig_clock, power_w)
            if len(rows) == 1:
                if is_steady and busy and any(observed.activity) and not interval.mig_held:
                    alone = Alone(observed.activity, elapsed_s, busy * elapsed_s, power_w * elapsed_s, observed.clock)
                    self._fingerprints.learn(rows[0], alone)
                inside = Shares({rows[0]: 0.0}, Weights("mig", {rows[0]: 1}))
            else:
                inside = self._without_samples(rows, observed, "mig")
            activity |= inside.proportions
            inner = inside.weights.rows if inside.weights is not None else dict.fromkeys(rows, 1)
            for row, weight in inner.items():
                part = weight / (sum(inner.values()) or 1)
                weights[row] = round(part * power_w * WEIGHT_UNIT)
                own = share * inside.errors.get(row, any_split(len(rows)))
                errors[row] = min(1.0, round(sqrt(part * part * variance + own * own), 3))
        if not any(weights.values()):
            return None
        return Shares(errors, Weights("mig", weights, round(unseen * WEIGHT_UNIT)), activity)


def _parts(known: Mapping[Row, Fingerprint], expected: Mapping[Row, Expected]) -> list[Part]:
    """Each process in each of its behaviours; the expected time is divided in proportion to their observed time."""
    parts = []
    for row, fingerprint in known.items():
        behaviours = fingerprint.reliable()
        time, sd = expected[row]
        seconds = sum([behaviour.seconds for behaviour in behaviours])
        parts += [Part(row, time * behaviour.seconds / seconds, sd, behaviour, KNOWN_SD) for behaviour in behaviours]
    return parts


def _mixed(parts: Sequence[Part], method: str, observed: Observed, unsampled: float) -> Shares | None:
    """Shares by the mixture of fingerprints that explains activity and power; None if no process drew power."""
    estimate = by_activity(parts, observed.activity, observed.power_w)
    weights = weights_of(parts, estimate)
    if not any(weights.values()):
        return None
    errors = share_errors(parts, estimate, unsampled)
    return Shares(errors, Weights(method, weights), proportions_of(parts, estimate, observed.activity))
