"""What a process looks like while it has the GPU to itself: which parts of the chip it uses, and the power it takes.

In parts of the time it has the compute engine, so that it is the same whether it works all of the time or little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter, mul

from gpuledger.model import Labelled, Reading

PARTS = ("sm_pct", "occupancy_pct", "tensor_pct", "integer_pct", "fp64_pct", "fp32_pct", "fp16_pct", "dram_pct")
"""Of the activity. Not the engine as a whole: it also counts a context that holds it and does nothing."""
CLOCKED = len(PARTS) - 1
"""All but the last are counted in cycles of the compute clock, which falls at the power limit; memory has its own."""
HALF_LIFE_S = 600.0
"""Of what was learned, in time spent learning."""
SURE_S = 3.0
"""Seen for less, a behaviour is not used."""
OTHER = 0.1
"""From this much of its square outside, an activity is another behaviour: 18 degrees apart."""
MOST_BEHAVIOURS = 3

Activities = tuple[float, ...]

_parts = attrgetter(*PARTS)


def activities(reading: Reading) -> Activities | None:
    """How busy each part was, from 0 to 1; None where a GPU has no GPM.

    At three quarters of the highest clock a part that was always busy did three quarters: the same process at the power
    limit and below it then looks the same.
    """
    if reading.activity is None or reading.activity.sm_pct is None:
        return None
    parts = [(pct or 0.0) / 100 for pct in _parts(reading.activity)]
    clock_mhz, most_mhz = _sm(reading.clocks_mhz), _sm(reading.max_clocks_mhz)
    if clock_mhz and most_mhz:
        parts[:CLOCKED] = [part * clock_mhz / most_mhz for part in parts[:CLOCKED]]
    return tuple(parts)


def _sm(clocks_mhz: Labelled) -> int | None:
    return next((mhz for name, mhz in clocks_mhz if name == "sm"), None)


@dataclass(frozen=True, slots=True)
class Alone:
    """An interval in which only one process worked."""

    activities: Activities
    seconds: float
    engine_s: float
    """How long it had the compute engine."""
    joules: float


@dataclass(slots=True)
class Behaviour:
    """One way in which a process works: sums over the time it was seen so, older ones counting less."""

    seconds: float = 0.0
    engine_s: float = 0.0
    """How long it had the compute engine in that time."""
    joules: float = 0.0
    activity_s: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    strays: float = 0.0
    """The mean of how much of an activity's square is outside of the mean of all."""

    def outside(self, seen: Activities) -> float:
        """How much of the square of an activity is not of this kind: 0 is the same but for strength, 1 another."""
        along = sum(map(mul, seen, self.activity_s))
        both = sum(map(mul, seen, seen)) * sum(map(mul, self.activity_s, self.activity_s))
        return max(0.0, 1 - along * along / both) if both else 1.0

    def learn(self, seen: Alone) -> None:
        """Take in one more interval."""
        outside = self.outside(seen.activities) if self.seconds else 0.0
        kept = 0.5 ** (seen.seconds / HALF_LIFE_S)
        self.seconds = self.seconds * kept + seen.seconds
        self.engine_s = self.engine_s * kept + seen.engine_s
        self.joules = self.joules * kept + seen.joules
        amounts = zip(self.activity_s, seen.activities, strict=True)
        self.activity_s = [old * kept + new * seen.seconds for old, new in amounts]
        self.strays += (outside - self.strays) * seen.seconds / self.seconds

    def shape(self) -> list[float]:
        """Activity while it has the engine."""
        return [amount / self.engine_s for amount in self.activity_s]

    def watts(self, parked_w: float) -> float:
        """Power above parked while it has the engine."""
        return max(0.0, self.joules - parked_w * self.seconds) / self.engine_s

    def doubt(self) -> float:
        """Variance of its shape, relative: how it strays, and more while it is new."""
        return self.strays + 0.1 / self.seconds


@dataclass(slots=True)
class Fingerprint:
    """The behaviours of a process or workload."""

    behaviours: list[Behaviour] = field(default_factory=list)

    def learn(self, seen: Alone) -> None:
        """Take in an interval: as one more of a behaviour that is alike, or as a new one."""
        nearest = min(self.behaviours, key=lambda one: one.outside(seen.activities), default=None)
        if nearest is None or nearest.outside(seen.activities) > OTHER:
            if len(self.behaviours) == MOST_BEHAVIOURS:
                self.behaviours.remove(min(self.behaviours, key=lambda one: one.seconds))
            nearest = Behaviour()
            self.behaviours.append(nearest)
        nearest.learn(seen)

    def sure(self) -> list[Behaviour]:
        """Those seen for long enough."""
        return [one for one in self.behaviours if one.seconds >= SURE_S]
