"""The states of a shared GPU: slots of like activity, whose samples are pooled.

A GPU that several programs share has few states, such as "both compute" and "one waits for its host". In slots of one
state each process has the compute engine for about the same time, however far apart in time the slots are. So the
driver's samples of all of them are draws from the same times, which halves the noise of a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp

from gpuledger.ledger.rows import Row
from gpuledger.shares.units import Activities

RADIUS = 0.04
"""Slots whose activity differs by less in every unit are of one state."""
MEMORY_S = 30.0
"""Time constant of the samples of a state."""
MOST_STATES = 48
"""Bounds the cost of a look-up; the recordings have 10 to 25 states with ten slots or more."""
NEW_JITTER = 0.3 * RADIUS
"""Jitter of a state until its slots show it."""
LEAST_STEP = 0.05
"""Least weight of a slot in the centre and the jitter of its state, which may drift."""
TUNED = ("RADIUS", "MEMORY_S")
"""Chosen on tests/data/h200; `bench.sensitivity` prints what halving and doubling them changes."""


@dataclass(slots=True, eq=False)
class State:
    """Slots of like activity."""

    centre: Activities
    seen_s: float
    slots: float = 0.0
    """Number of slots, with exponential decay."""
    jitter: float = NEW_JITTER
    """Mean distance of the slots from the centre."""
    samples: dict[Row, float] = field(default_factory=dict)
    """Number of samples of each process, with exponential decay."""

    def add(self, activity: Activities, distance: float, now_s: float) -> None:
        """Add a slot."""
        decay = exp((self.seen_s - now_s) / MEMORY_S)
        self.seen_s = now_s
        if decay < 1:
            self.samples = {row: number * decay for row, number in self.samples.items()}
        self.slots = self.slots * decay + 1
        step = max(LEAST_STEP, 1 / self.slots)
        self.centre = tuple([old + step * (new - old) for old, new in zip(self.centre, activity, strict=True)])
        self.jitter += max(LEAST_STEP, 1 / (self.slots + 2)) * (distance - self.jitter)

    def sample(self, row: Row, number: float) -> None:
        """Add samples that name a process."""
        self.samples[row] = self.samples.get(row, 0.0) + number


class States:
    """The states of one GPU. They hold for one set of processes and start again if it changes."""

    def __init__(self) -> None:
        self._states: list[State] = []
        self._rows: frozenset[Row] = frozenset()

    def among(self, rows: Iterable[Row]) -> None:
        """Set the processes on the GPU."""
        rows = frozenset(rows)
        if rows != self._rows:
            self._rows, self._states = rows, []

    def of(self, activity: Activities, now_s: float) -> State:
        """The nearest state within RADIUS, with the slot added; a new state if there is none."""
        nearest, least = None, RADIUS
        sm, occupancy, tensor, fp64, fp32, fp16, dram = activity
        for state in self._states:
            c_sm, c_occupancy, c_tensor, c_fp64, c_fp32, c_fp16, c_dram = state.centre
            # The units that differ most between states come first; this is the hottest loop of the estimate.
            if abs(sm - c_sm) >= least or abs(dram - c_dram) >= least or abs(tensor - c_tensor) >= least:
                continue
            distance = max(
                abs(sm - c_sm), abs(dram - c_dram), abs(tensor - c_tensor), abs(occupancy - c_occupancy),
                abs(fp32 - c_fp32), abs(fp16 - c_fp16), abs(fp64 - c_fp64),
            )  # fmt: skip
            if distance < least:
                nearest, least = state, distance
        if nearest is None:
            if len(self._states) >= MOST_STATES:
                self._states.remove(min(self._states, key=lambda state: state.seen_s))
            nearest, least = State(activity, now_s), NEW_JITTER
            self._states.append(nearest)
        nearest.add(activity, least, now_s)
        return nearest
