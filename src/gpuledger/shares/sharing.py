"""Which processes share a GPU and what was measured of them: the input of the model, and its shares.

- Processes on a whole GPU, with activity by GPM (`fingerprint`) or with utilization and power (`power`).
- Clients of MPS: the samples name only their server, so any division of the time is possible (`mps`).
- MIG instances have their own activity (`mig`). Processes in one instance are handled like clients of MPS.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import Proportions, Row
from gpuledger.ledger.split import Weights, mps
from gpuledger.ledger.time import BUFFER_NS
from gpuledger.shares.activity import proportions
from gpuledger.shares.fingerprint import Fingerprints
from gpuledger.shares.instances import instance_shares
from gpuledger.shares.model import Estimate, Model, Seen, Slot
from gpuledger.shares.shares import Shares, any_split, equal_shares, sampled_shares
from gpuledger.shares.units import GPM, LIMIT_W, WITHOUT_GPM, activities, without_gpm

WEIGHT_UNIT = 1_000_000_000
"""Weights of energy are integers."""
LEAST_MEASURED = 0.8
"""Part of an interval in which activity was measured, at least."""


class Sharing:
    """The processes of one GPU: learns their programs, and estimates shares where several may have worked."""

    def __init__(self, fingerprints: Fingerprints, *, by_fingerprint: bool = True) -> None:
        self._fingerprints = fingerprints
        self._by_fingerprint = by_fingerprint
        self._models: dict[str, Model] = {}
        """By uuid of the GPU or MIG instance."""

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
        if interval.failed or interval.restarted or not interval.rows or not 0 < elapsed_s <= BUFFER_NS / 1e9:
            return None
        limit_w = limit_mw / 1000 if limit_mw else LIMIT_W
        power = max(0.0, interval.energy_mj / 1000 / elapsed_s - parked_mw / 1000) / limit_w
        if any(row.device.parent_uuid for row in interval.rows):
            return self._instances(interval, elapsed_s, power)
        if not interval.has_samples or interval.hidden:
            return None
        if len(interval.rows) == 1 and interval.at_start != at_end:
            return None  # part of the power is that of a GPU without the process
        return self._gpu(interval, self._seen(interval, elapsed_s, power, parked_mw, limit_w))

    def _gpu(self, interval: Interval, seen: Seen | None) -> Shares | None:
        """Processes on a whole GPU."""
        servers, clients = mps(interval)
        rows = sorted(interval.rows - servers, key=Row.key)
        if not rows:
            return None
        if clients and any(interval.busy_ns.get(row) for row in interval.rows - servers - clients):
            seen = None
        if seen is None:
            if not clients:
                return sampled_shares(interval.busy_ns)
            return Shares(dict.fromkeys(clients, any_split(len(clients))))
        if clients:
            seen = seen._replace(busy={}, sampled_ns={}, named=False)
        estimate = self._model(rows[0].gpu).step(rows, seen)
        method = "mps" if clients else "fingerprint" if seen.population is GPM else "power"
        if estimate is not None:
            return _shares(estimate, method)
        if clients:
            return Shares(dict.fromkeys(clients, any_split(len(clients)))) if len(rows) > 1 else None
        return sampled_shares(interval.busy_ns) if len(rows) > 1 else None

    def _model(self, uuid: str) -> Model:
        return self._models.setdefault(uuid, Model(self._fingerprints))

    def _seen(self, interval: Interval, elapsed_s: float, power: float, parked_mw: int, limit_w: float) -> Seen | None:
        """The measurements of a whole GPU; None if its activity, or its power by slot, is not known."""
        if not self._by_fingerprint:
            return None
        population, slots = GPM, [(activities(o.slot.activity, o.clock), o) for o in interval.slots]
        if not any(activity for activity, _ in slots):
            population = WITHOUT_GPM
            alone = power if len(interval.rows) == 1 else None
            slots = [(without_gpm(o.slot, parked_mw, limit_w, alone), o._replace(clock=1.0)) for o in interval.slots]
        elif interval.activity_measured_s < LEAST_MEASURED * elapsed_s:
            return None
        known = [(activity, o) for activity, o in slots if activity is not None]
        if not known:
            return None
        busy = min(1.0, sum(interval.busy_ns.values()) / 1e9 / elapsed_s)
        engine = engine_by_slot([activity[0] / o.clock for activity, o in known], busy)
        by_pid = {row.pid: row for row in interval.rows}
        return Seen(
            population,
            elapsed_s,
            [Slot(activity, part, o.end_ns) for (activity, o), part in zip(known, engine, strict=True)],
            power,
            {row: ns / 1e9 for row, ns in interval.busy_ns.items() if ns},
            {by_pid[pid]: ns for pid, ns in interval.sampled_ns.items() if pid in by_pid},
        )

    def _instances(self, interval: Interval, elapsed_s: float, power: float) -> Shares | None:
        """Processes in MIG instances: the power of each instance, then that of its processes."""
        by_instance: dict[str, list[Row]] = {}
        for row in sorted(interval.rows):
            by_instance.setdefault(row.device.uuid, []).append(row)
        measured_s = {uuid: interval.mig_measured_s[uuid] or elapsed_s for uuid in interval.mig_activity}
        if (
            not self._by_fingerprint
            or len(interval.rows) < 2
            or interval.mig_missing & set(by_instance)
            or not set(by_instance) <= set(measured_s)
        ):
            return None
        whole = interval.gpu_size or sum(interval.mig_sizes.values())
        instances = {
            uuid: (interval.mig_sizes[uuid] / whole, tuple(unit / measured_s[uuid] for unit in units))
            for uuid, units in interval.mig_activity.items()
        }
        shares = instance_shares(instances)
        if not shares:
            return None
        weights: dict[Row, int] = {}
        errors: dict[Row, float] = {}
        activity: dict[Row, Proportions] = {}
        for uuid, rows in by_instance.items():
            share, error = shares[uuid]
            engine = min(1.0, interval.mig_engine_s[uuid] / measured_s[uuid])
            size, units = instances[uuid]
            slots = [Slot(units, engine, 0)]
            seen = Seen(GPM, elapsed_s, slots, power * share / size, {}, {}, named=False, held=interval.mig_held)
            estimate = self._model(uuid).step(rows, seen)
            inside = (_shares(estimate, "mig") if estimate is not None else None) or equal_shares(rows, "mig")
            parts = inside.weights.rows if inside.weights is not None else {}
            total = sum(parts.values())
            for row in rows:
                part = parts[row] / total
                weights[row] = round(part * share * WEIGHT_UNIT)
                own = share * inside.errors[row] if len(rows) > 1 else 0.0
                errors[row] = min(1.0, round(sqrt((part * error) ** 2 + own * own), 3))
            activity |= inside.proportions
        unseen = sum(share for uuid, (share, _) in shares.items() if uuid not in by_instance)
        if not any(weights.values()):
            return None
        return Shares(errors, Weights("mig", weights, round(unseen * WEIGHT_UNIT)), activity)


def _shares(estimate: Estimate, method: str) -> Shares | None:
    """The estimate as integer weights; None if no process drew power."""
    rows = estimate.rows
    weights = {row: round(power * WEIGHT_UNIT) for row, power in zip(rows, estimate.powers, strict=True)}
    if not any(weights.values()):
        return None
    errors = {row: min(1.0, round(error, 3)) for row, error in zip(rows, estimate.errors, strict=True)}
    return Shares(errors, Weights(method, weights), proportions(rows, estimate.times, estimate.activities))


def engine_by_slot(active: Sequence[float], busy: float) -> list[float]:
    """Busy time of the engine in each slot: min(1, k x SM activity) with the mean `busy`, and at least the activity."""
    count = len(active)
    left, free, result = max(busy * count, sum(active)), sum(active), [0.0] * count
    for i in sorted(range(count), key=lambda i: -active[i]):
        result[i] = min(1.0, active[i] * left / free) if free > 0 else 0.0
        left -= result[i]
        free -= active[i]
    return result
