"""Finds slots of a shared GPU in which only one process works, although no process was ever alone for longer.

A GPU that a steady process shares with one that works in bursts has two states, by the activity of its slots. In one of
them a single process works. The driver's samples tell which: a process that is absent from a state is not sampled while
the state lasts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuledger.ledger.rows import Row
from gpuledger.shares.fingerprint import Activities, largest_difference
from gpuledger.shares.strangers import EXPLAINED

MOST_SLOTS = 100
"""Slots that are remembered, about 20 s."""
EVERY = 2
"""Intervals between two evaluations."""
NEAR = 0.25
"""A slot belongs to a state if it is at most this part of the distance between the states from its centre."""
LEAST_DISTANCE = 3 * EXPLAINED
"""States differ at least by this activity of some unit."""
ROUNDS = 2
"""Rounds of the 2-means clustering."""
LEAST_MISSED = 8
"""Slots of a state in which an absent process was not sampled, at least."""
MOST_SAMPLED = 0.05
"""Largest part of the slots of a state in which an absent process was sampled."""
LEAST_SAMPLED = 4
"""Samples of the single process in its state, at least."""


@dataclass(frozen=True, slots=True, eq=False)
class PowerSlot:
    """A slot: activity, and power above parked power at its end."""

    activity: Activities
    power_w: float
    seconds: float
    sampled: frozenset[Row]
    """Processes whose last sample in the interval was in this slot."""
    missed: frozenset[Row]
    """Processes that were sampled earlier in the interval, but not in this slot."""


class Pauses:
    """The recent slots of one GPU."""

    def __init__(self) -> None:
        self._slots: deque[PowerSlot] = deque(maxlen=MOST_SLOTS)
        self._intervals = 0
        self._rows: list[Row] = []
        self._returned: set[PowerSlot] = set()

    def observe(self, slots: Sequence[PowerSlot], rows: Sequence[Row]) -> Mapping[Row, list[PowerSlot]]:
        """Add the slots of an interval; slots in which a single process worked, every few intervals.

        `rows` are the processes that work lately. If they change, the earlier slots are forgotten.
        """
        if list(rows) != self._rows:
            self._rows = list(rows)
            self._slots.clear()
            self._returned.clear()
        self._slots.extend(slots)
        self._intervals += 1
        if self._intervals % EVERY:
            return {}
        result: dict[Row, list[PowerSlot]] = {}
        recent = list(self._slots)
        for state in _states(slots, recent):
            if (single := _single(state, rows)) is not None:
                # Power is measured at the end of a slot, so the next slot must be in the same state.
                inside = set(state)
                found = [slot for slot, after in pairwise(recent) if slot in inside and after in inside]
                result[single] = [slot for slot in found if slot not in self._returned]
                self._returned |= set(found)
        self._returned &= set(recent)
        return result


def _states(newest: Sequence[PowerSlot], slots: Sequence[PowerSlot]) -> list[list[PowerSlot]]:
    """The slots of both states (2-means clustering), without slots in between; none if the newest are similar."""
    pairs = [(a.activity, b.activity) for i, a in enumerate(newest) for b in newest[:i]]
    centres = list(max(pairs, key=lambda pair: largest_difference(*pair), default=((0.0,), (0.0,))))
    states: list[list[PowerSlot]] = []
    for _ in range(ROUNDS):
        apart = largest_difference(*centres)
        if apart < LEAST_DISTANCE:
            return []
        states = [
            [slot for slot in slots if largest_difference(slot.activity, centre) <= NEAR * apart] for centre in centres
        ]
        if not all(states):
            return []
        centres = [_mean(state) for state in states]
    return states


def _mean(slots: Sequence[PowerSlot]) -> Activities:
    return tuple(sum(unit) / len(slots) for unit in zip(*(slot.activity for slot in slots), strict=True))


def _single(slots: Sequence[PowerSlot], rows: Sequence[Row]) -> Row | None:
    """The only process that works in a state; None if there may be others."""
    sampled = Counter(row for slot in slots for row in slot.sampled)
    missed = Counter(row for slot in slots for row in slot.missed)
    present = [
        row for row in rows
        if missed[row] < LEAST_MISSED or sampled[row] > MOST_SAMPLED * (sampled[row] + missed[row])
    ]  # fmt: skip
    return present[0] if len(present) == 1 and sampled[present[0]] >= LEAST_SAMPLED else None
