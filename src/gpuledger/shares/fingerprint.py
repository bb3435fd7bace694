"""Fingerprints: the activity and power of a process, or of its workload, while it has a GPU to itself.

All values are relative to the time on the compute engine, so that they do not depend on how often a process pauses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter, mul, sub
from weakref import WeakKeyDictionary

from gpuledger.ledger.rows import Row
from gpuledger.model import DIVIDED, Activity, Device, Facts, Labelled, Learned, LearnedBehaviour, Owner, Reading

UNITS = DIVIDED[1:]
"""The compared activities. Not `graphics_pct`: it also counts an idle context on the engine."""
UNIT_NAMES = tuple(unit.removesuffix("_pct") for unit in UNITS)
CLOCKED = len(UNITS) - 1
"""All units but DRAM are counted in cycles of the SM clock, which falls at the power limit."""
HALF_LIFE_S = 600.0
"""Half-life of learned values, in seconds of learning."""
RELIABLE_S = 1.5
"""A behaviour observed for less time is not used."""
NEW_DISTANCE = 0.1
"""Minimum `distance` of a new behaviour from all known ones: 18 degrees."""
MOST_BEHAVIOURS = 3
MOST_WORKLOADS = 1000
"""Size of the LRU of workload fingerprints."""
RESTORED_S = 60.0
"""Most seconds of a restored behaviour, so that a minute of new observations outweighs it."""
LABELS = (
    "gpu_model", "process_name", "container", "image", "namespace", "workload_kind", "workload_name", "unit", "uid",
)  # fmt: skip
"""Names of the labels that identify a workload, in their order."""

Activities = tuple[float, ...]
"""Activity of each of UNITS, from 0 to 1."""
Workload = tuple[tuple[str, str], ...]
"""Labels that identify a workload, in the order of LABELS and without empty values."""

_units = attrgetter(*UNITS)


def activities(activity: Activity | None, clock: float) -> Activities | None:
    """Activity of each unit, scaled to the highest SM clock; None without GPM.

    Without the scaling, the activity of a process would depend on the power limit, at which clocks fall.
    """
    if activity is None or activity.sm_pct is None:
        return None
    units = [(pct or 0.0) / 100 for pct in _units(activity)]
    units[:CLOCKED] = [unit * clock for unit in units[:CLOCKED]]
    return tuple(units)


def largest_difference(a: Activities, b: Activities) -> float:
    """Between two activities, over all units."""
    return float(max(map(abs, map(sub, a, b))))


def relative_clock(reading: Reading, clock_mhz: int | None = None) -> float:
    """The SM clock, or a given clock, relative to its highest value; 1 if unknown."""
    clock_mhz = clock_mhz or _sm_clock(reading.clocks_mhz)
    highest_mhz = _sm_clock(reading.max_clocks_mhz)
    return clock_mhz / highest_mhz if clock_mhz and highest_mhz else 1.0


def _sm_clock(clocks_mhz: Labelled) -> int | None:
    return next((mhz for name, mhz in clocks_mhz if name == "sm"), None)


@dataclass(frozen=True, slots=True)
class Alone:
    """An interval in which only one process worked."""

    activities: Activities
    seconds: float
    engine_s: float
    """Time on the compute engine."""
    joules: float
    """Above parked power."""
    clock: float = 1.0
    """SM clock relative to its highest value."""


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a behaviour, relative to the time on the compute engine."""

    shape: Activities
    """Activity while on the compute engine; empty if unknown."""
    watts: float
    """Power above parked power while on the compute engine."""
    clock: float = 1.0
    """SM clock relative to its highest value."""
    seconds: float = 0.0
    """How long it was observed."""
    variance: float = 0.0
    """Relative variance of the shape."""


@dataclass(slots=True)
class Behaviour:
    """One mode of operation of a process, such as training or evaluation: sums with exponential decay."""

    seconds: float = 0.0
    engine_s: float = 0.0
    """Time on the compute engine."""
    joules: float = 0.0
    """Above parked power."""
    clock_s: float = 0.0
    """Relative SM clock x seconds."""
    activity_s: list[float] = field(default_factory=lambda: [0.0] * len(UNITS))
    spread: float = 0.0
    """Mean of `distance` over the observed intervals."""

    def distance(self, observed: Activities) -> float:
        """1 - cos^2 of the angle between two activities: 0 if they differ only in strength, 1 if orthogonal."""
        dot = sum(map(mul, observed, self.activity_s))
        norms = sum(map(mul, observed, observed)) * sum(map(mul, self.activity_s, self.activity_s))
        return max(0.0, 1 - dot * dot / norms) if norms else 1.0

    def learn(self, alone: Alone) -> None:
        """Add one interval; weights halve every HALF_LIFE_S."""
        distance = self.distance(alone.activities) if self.seconds else 0.0
        decay = 0.5 ** (alone.seconds / HALF_LIFE_S)
        self.seconds = self.seconds * decay + alone.seconds
        self.engine_s = self.engine_s * decay + alone.engine_s
        self.joules = self.joules * decay + max(0.0, alone.joules)
        self.clock_s = self.clock_s * decay + alone.clock * alone.seconds
        amounts = zip(self.activity_s, alone.activities, strict=True)
        self.activity_s = [old * decay + new * alone.seconds for old, new in amounts]
        self.spread += (distance - self.spread) * alone.seconds / self.seconds

    def means(self) -> Means:
        """The observed means; their variance is larger while there are few observations."""
        return Means(
            shape=tuple([amount / self.engine_s for amount in self.activity_s]),
            watts=self.joules / self.engine_s,
            clock=self.clock_s / self.seconds,
            seconds=self.seconds,
            variance=self.spread + 0.1 / self.seconds,
        )

    def cap(self, most_s: float) -> None:
        """Reduce the weight of the observations to that of `most_s` seconds; the means do not change."""
        if self.seconds > most_s:
            factor = most_s / self.seconds
            self.seconds = most_s
            self.engine_s *= factor
            self.joules *= factor
            self.clock_s *= factor
            self.activity_s = [amount * factor for amount in self.activity_s]

    def copy(self) -> Behaviour:
        """A copy that later observations do not change."""
        return Behaviour(self.seconds, self.engine_s, self.joules, self.clock_s, list(self.activity_s), self.spread)


@dataclass(slots=True)
class Fingerprint:
    """The behaviours of a process or workload."""

    behaviours: list[Behaviour] = field(default_factory=list)
    peak: float = 0.0
    """Largest part of an interval in which it had the compute engine while alone."""
    _reliable: tuple[Means, ...] | None = field(default=None, compare=False, repr=False)
    """Cache: estimates use it in every tick, and it rarely changes."""

    def learn(self, alone: Alone) -> None:
        """Add an interval to the nearest behaviour, or start a new one in place of the least observed."""
        nearest = min(self.behaviours, key=lambda behaviour: behaviour.distance(alone.activities), default=None)
        if nearest is None or nearest.distance(alone.activities) > NEW_DISTANCE:
            if len(self.behaviours) == MOST_BEHAVIOURS:
                self.behaviours.remove(min(self.behaviours, key=lambda behaviour: behaviour.seconds))
            nearest = Behaviour()
            self.behaviours.append(nearest)
        nearest.learn(alone)
        self._reliable = None
        self.peak = max(self.peak * 0.5 ** (alone.seconds / HALF_LIFE_S), min(1.0, alone.engine_s / alone.seconds))

    def cap(self, most_s: float) -> None:
        """Reduce the weight of the observations of each behaviour to that of `most_s` seconds."""
        for behaviour in self.behaviours:
            behaviour.cap(most_s)
        self._reliable = None

    def copy(self) -> Fingerprint:
        """A copy that later observations do not change."""
        return Fingerprint([behaviour.copy() for behaviour in self.behaviours], self.peak)

    def demand(self) -> float:
        """Mean part of the time in which it had the compute engine while alone."""
        return min(1.0, sum(b.engine_s for b in self.behaviours) / sum(b.seconds for b in self.behaviours))

    def reliable(self) -> tuple[Means, ...]:
        """The behaviours observed for at least RELIABLE_S; the same tuple until they change."""
        if self._reliable is None:
            self._reliable = tuple(
                behaviour.means() for behaviour in self.behaviours if behaviour.seconds >= RELIABLE_S
            )
        return self._reliable


class Fingerprints:
    """Fingerprints of processes, and an LRU of workload fingerprints that outlive them."""

    def __init__(self) -> None:
        self._processes: WeakKeyDictionary[Row, Fingerprint] = WeakKeyDictionary()
        self._workloads: OrderedDict[Workload, Fingerprint] = OrderedDict()
        self._learned: dict[Workload, Learned] = {}
        self.revision = 0
        """Increases with every observation of a workload."""

    def learn(self, row: Row, alone: Alone) -> None:
        """Add an interval in which only this process worked."""
        self._processes.setdefault(row, Fingerprint()).learn(alone)
        workload = workload_of(row.device, row.facts, row.owner)
        if workload is None:
            return
        fingerprint = self._workloads.get(workload) or Fingerprint()
        fingerprint.learn(alone)
        self.revision += 1
        self._put(workload, fingerprint)

    def _put(self, workload: Workload, fingerprint: Fingerprint) -> None:
        """Make a workload the most recently learned one."""
        self._workloads[workload] = fingerprint
        self._workloads.move_to_end(workload)
        behaviours = tuple(_learned(behaviour) for behaviour in fingerprint.behaviours)
        self._learned[workload] = Learned(workload=workload, behaviours=behaviours)
        if len(self._workloads) > MOST_WORKLOADS:
            del self._learned[self._workloads.popitem(last=False)[0]]

    def snapshot(self) -> list[tuple[Workload, Fingerprint]]:
        """A copy of the workload fingerprints, the least recently learned first."""
        return [(workload, fingerprint.copy()) for workload, fingerprint in self._workloads.items()]

    def restore(self, workloads: Iterable[tuple[Workload, Fingerprint]]) -> None:
        """Add fingerprints that were learned before a restart, the least recently learned first."""
        for workload, fingerprint in workloads:
            fingerprint.cap(RESTORED_S)
            self._put(workload, fingerprint)

    def get(self, row: Row) -> Fingerprint | None:
        """The fingerprint of a process, or else that of its workload; None if neither is reliable."""
        fingerprint = self._processes.get(row)
        if fingerprint is None or not fingerprint.reliable():
            workload = workload_of(row.device, row.facts, row.owner)
            fingerprint = self._workloads.get(workload) if workload is not None else None
        return fingerprint if fingerprint is not None and fingerprint.reliable() else None

    def learned(self) -> tuple[Learned, ...]:
        """All workload fingerprints. Cached, because every tick contains them."""
        return tuple(self._learned.values())


def workload_of(device: Device, facts: Facts | None, owner: Owner) -> Workload | None:
    """The key of a workload: GPU model and program, with image and pod template, or with systemd unit and user.

    None if the program is unknown.
    """
    name = facts.name if facts is not None else ""
    labels = [("gpu_model", device.name), ("process_name", name), ("container", owner.container)]
    if owner.image or owner.workload_name:
        labels += [("image", owner.image), ("namespace", owner.namespace)]
        labels += [("workload_kind", owner.workload_kind), ("workload_name", owner.workload_name)]
    elif name:
        uid = None if facts is None else facts.uid
        labels += [("unit", owner.unit), ("uid", "" if uid is None else str(uid))]
    else:
        return None
    return tuple((label, value) for label, value in labels if value)


def _learned(behaviour: Behaviour) -> LearnedBehaviour:
    means = behaviour.means()
    return LearnedBehaviour(
        seconds=round(means.seconds, 1),
        power_mw=round(means.watts * 1000),
        activity=tuple((name, round(amount, 4)) for name, amount in zip(UNIT_NAMES, means.shape, strict=True)),
    )
