"""Fingerprints: what is known of a process per second on the compute engine, and an LRU of those of workloads."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import exp
from operator import add

from gpuledger.ledger.rows import Row
from gpuledger.model import Device, Facts, Learned, Owner
from gpuledger.shares.units import ALL_UNITS, POPULATIONS, UNITS, Population, Units

LEARN_S = 300.0
"""Time constant of what is learned."""

NOISE = 0.3
"""A program varies by this much around its mean, in standard deviations of all programs."""
NEW_S = 0.1
"""Odds that a program does something new: NEW_S to the seconds it was observed."""
USUAL = 0.25
"""Largest variance of what a program does while it does nothing new: half a standard deviation of all programs."""
INHERITED_S = 60.0
"""Most weight that a process inherits from its workload, so that a minute of new observations outweighs it."""
KEPT = 0.05
"""Least weight of a fingerprint that is kept for its workload."""
LEAST_DUTY_S = 0.15
"""Time on the engine while alone from which on the duty is known."""
LEAST_CAP = 0.01
"""A process that worked alone uses some of the engine, whatever a file says."""
RECENT_AT_START = 0.0055
"""A process without a sample counts as resting after 3 s: the mean falls below 0.005 then."""
MOST_WORKLOADS = 1000
"""Size of the LRU of workload fingerprints."""
LABELS = (
    "gpu_model", "process_name", "program", "container", "image", "namespace", "workload_kind", "workload_name", "unit",
    "uid", "job", "signals",
)  # fmt: skip
"""Names of the labels that identify a workload, in their order."""

Workload = tuple[tuple[str, str], ...]
"""Labels that identify a workload, in the order of LABELS and without empty values."""
TUNED = ("LEARN_S", "NOISE", "NEW_S", "USUAL", "LEAST_DUTY_S")
"""Chosen on tests/data/h200; `bench.sensitivity` prints what halving and doubling them changes."""


def _zeros() -> Units:
    return [0.0] * len(ALL_UNITS)


@dataclass(slots=True)
class Fingerprint:
    """The sums of a least-squares problem of one process, with exponential decay."""

    weight: float = 0.0
    """sum w x^2: x is the time on the engine, w the weight of a slot."""
    alone_s: float = 0.0
    """The part of `weight` that was learned while alone."""
    moments: Units = field(default_factory=_zeros)
    """sum w x y: y is the activity and power of the GPU."""
    deviations: Units = field(default_factory=_zeros)
    """sum w x^2 (y / x - phi)^2"""
    seconds: float = 0.0
    """sum w x^2 of the slots in `deviations`."""
    duty_s: float = 0.0
    """Time on the engine while alone: sum x."""
    duty2_s: float = 0.0
    """sum x^2"""
    recent: float = RECENT_AT_START
    """Mean part of the time on the engine, by the samples of the last half minute."""
    doubt: float = 0.0
    """Log likelihood ratio of the last intervals that it does something new."""
    distrust: float = 0.0
    """The same, if programs that were never alone count as unknown; a mean over the last intervals."""

    def fade(self, decay: float) -> None:
        """Reduce the weight of what was learned."""
        self.weight *= decay
        self.alone_s *= decay
        self.seconds *= decay
        self.moments = [moment * decay for moment in self.moments]
        self.deviations = [deviation * decay for deviation in self.deviations]

    def forget(self) -> None:
        """Start again."""
        self.fade(0.0)
        self.duty_s = self.duty2_s = self.doubt = self.distrust = 0.0

    def learn(self, time: float, observed: Units, weight: float, *, is_alone: bool) -> None:
        """Add slots in which the process had the engine for a part of the time."""
        step = weight * time
        self.weight += step * time
        if is_alone:
            self.alone_s += step * time
        self.moments = [moment + step * unit for moment, unit in zip(self.moments, observed, strict=True)]

    def deviate(
        self, time: float, residuals: Units, totals: Units, variances: Units, *, weight: float, repeated: float
    ) -> None:
        """Add to the spread, as often as `repeated`.

        Of a residual r with variance `totals`, k r is that of the process, k = x V / totals.
        """
        amount = weight * time * time
        before = max(NOISE**2, NOISE**2 + self.weight - amount)
        self.seconds += repeated * amount
        amount *= repeated * before / (before + amount)  # Welford: the mean moves with the observation
        gains = [time * variance / total for variance, total in zip(variances, totals, strict=True)]
        self.deviations = [
            sum_ + amount * ((gain * residual) ** 2 + variance * (1 - time * gain))
            for sum_, gain, residual, variance in zip(self.deviations, gains, residuals, variances, strict=True)
        ]

    def work_alone(self, engine: float, seconds: float) -> None:
        """Learn which part of the engine the process uses while no other process works."""
        decay = exp(-seconds / LEARN_S)
        self.duty_s = self.duty_s * decay + engine * seconds
        self.duty2_s = self.duty2_s * decay + engine * engine * seconds

    def cap(self) -> float:
        """Largest part of the engine: sum x^2 / sum x while alone, so that loading and pauses hardly count."""
        return 1.0 if self.duty_s < LEAST_DUTY_S else min(1.0, max(LEAST_CAP, self.duty2_s / self.duty_s))

    def variance(self, phi: Units, mean_variance: float) -> Units:
        """Variance of what the program does: var(phi) + (NEW_S (1 + phi^2) + deviations) / (NEW_S + seconds)."""
        seconds = NEW_S + self.seconds
        return [
            mean_variance + (NEW_S * (1 + unit * unit) + deviation) / seconds
            for unit, deviation in zip(phi, self.deviations, strict=True)
        ]

    def phi(self) -> Units:
        """The program as learned while alone: sum w x y / (sum w x^2 + NOISE^2)."""
        return [moment / (self.weight + NOISE**2) for moment in self.moments]

    def usual_variance(self) -> Units:
        """Variance of what the program does while it does nothing new."""
        mean_variance = NOISE**2 / (self.weight + NOISE**2)
        return [min(USUAL, mean_variance + deviation / max(1.0, self.seconds)) for deviation in self.deviations]

    def add(self, other: Fingerprint) -> None:
        """Add what was learned of the same program elsewhere."""
        self.weight += other.weight
        self.alone_s += other.alone_s
        self.seconds += other.seconds
        self.duty_s += other.duty_s
        self.duty2_s += other.duty2_s
        self.moments = list(map(add, self.moments, other.moments))
        self.deviations = list(map(add, self.deviations, other.deviations))

    def copy(self, most_s: float = float("inf")) -> Fingerprint:
        """A copy with the weight of at most this many seconds."""
        copy = replace(self, doubt=0.0, distrust=0.0, recent=RECENT_AT_START)
        if self.weight > most_s:
            copy.fade(most_s / self.weight)
        return copy


class Fingerprints:
    """LRU of workload fingerprints, which outlive processes."""

    def __init__(self) -> None:
        self._workloads: OrderedDict[Workload, Fingerprint] = OrderedDict()
        self._learned: dict[Workload, Learned] = {}
        self.revision = 0
        """Increases with every change."""

    def of(self, row: Row, population: Population) -> Fingerprint:
        """The fingerprint of a new process: that of its workload, or one without knowledge."""
        workload = workload_of(row.device, row.facts, row.owner, population.signals)
        known = self._workloads.get(workload) if workload is not None else None
        return Fingerprint() if known is None else known.copy(INHERITED_S)

    def keep(self, row: Row, population: Population, fingerprint: Fingerprint) -> None:
        """Keep what was learned of a process for its workload, unless more is known of that."""
        workload = workload_of(row.device, row.facts, row.owner, population.signals)
        if workload is None or fingerprint.weight < KEPT:
            return
        known = self._workloads.get(workload)
        if known is None or fingerprint.weight > 0.5 * min(known.weight, INHERITED_S):
            self._put(workload, fingerprint.copy())
            self.revision += 1

    def _put(self, workload: Workload, fingerprint: Fingerprint) -> None:
        """Make a workload the most recently learned one."""
        self._workloads[workload] = fingerprint
        self._workloads.move_to_end(workload)
        self._learned[workload] = _learned(workload, fingerprint)
        if len(self._workloads) > MOST_WORKLOADS:
            self._evict()

    def _evict(self) -> None:
        """Drop the least recently learned workload of the tenant that has most: a process can rename itself."""
        (tenant, _), *_ = Counter(map(_tenant_of, self._workloads)).most_common(1)
        evicted = next(workload for workload in self._workloads if _tenant_of(workload) == tenant)
        del self._workloads[evicted], self._learned[evicted]

    def snapshot(self) -> list[tuple[Workload, Fingerprint]]:
        """A copy of the workload fingerprints, the least recently learned first."""
        return [(workload, fingerprint.copy()) for workload, fingerprint in self._workloads.items()]

    def restore(self, workloads: Iterable[tuple[Workload, Fingerprint]]) -> None:
        """Add fingerprints that were learned before a restart, the least recently learned first."""
        for workload, fingerprint in workloads:
            self._put(workload, fingerprint)

    def learned(self) -> tuple[Learned, ...]:
        """All workload fingerprints. Cached, because every tick contains them."""
        return tuple(self._learned.values())


def _learned(workload: Workload, fingerprint: Fingerprint) -> Learned:
    """A fingerprint as shown."""
    population = population_of(workload)
    phi = population.bounded(fingerprint.phi())
    return Learned(
        workload=workload,
        seconds=round(fingerprint.weight, 1),
        power_ratio=round(population.power(phi), 4),
        activity=tuple((name, round(unit, 4)) for name, unit in zip(UNITS, population.activity(phi), strict=True)),
    )


def population_of(workload: Workload) -> Population:
    """The population with which a workload was compared."""
    return POPULATIONS[dict(workload).get("signals", "")]


def _tenant_of(workload: Workload) -> str:
    """The namespace, the user of a host process, or else the container."""
    labels = dict(workload)
    return labels.get("namespace") or labels.get("uid") or labels.get("container", "")


def workload_of(device: Device, facts: Facts | None, owner: Owner, signals: str = "") -> Workload | None:
    """The key of a workload: GPU model and program, with image and pod template, or with systemd unit, user and job.

    The program is the executable with its script or module; without it, all Python programs of a user would be one.
    None if the program is unknown, or only id and image of its container are: other tenants may have such containers.
    """
    name, program, uid = ("", "", None) if facts is None else (facts.name, facts.program, facts.uid)
    user = "" if uid is None or owner.namespace else str(uid)  # the daemons of two users may use equal names
    labels = [("gpu_model", device.name), ("process_name", name), ("program", program)]
    if owner.workload_name or (owner.image and (owner.container or owner.namespace)):
        labels += [("container", owner.container), ("image", owner.image), ("namespace", owner.namespace)]
        labels += [("workload_kind", owner.workload_kind), ("workload_name", owner.workload_name), ("uid", user)]
    elif program and not owner.container_id and not owner.pod_uid:
        labels += [("unit", owner.unit), ("uid", user)]
    else:
        return None
    labels += [("job", owner.job), ("signals", signals)]
    return tuple((label, value) for label, value in labels if value)
