"""When to sample the MIG instances of a GPU: in rounds after a change, and now and then.

On an H200 the GPM sample of an instance takes 8 to 15 ms of CPU time. Activity is the mean since the previous sample,
so it takes two rounds to measure it; a burst has one round right after a reading, and one late in each of the next
ticks. Between bursts, the last activity is held.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple

LATE_ROUNDS = 3
"""Readings with new activity in a burst."""
LARGEST_SHARE = 0.012
"""Part of one core."""
CHANGE, CHANGE_MW = 0.1, 10_000
"""A change of power, relative and in milliwatts."""


class Plan(NamedTuple):
    """The samples between two readings."""

    at_once: bool
    """Whether to sample all instances right after the reading."""
    late: bool
    """Whether to sample all instances shortly before the next one."""
    outdated: bool
    """Whether the last activity is outdated."""


class Rounds:
    """Decides after each reading whether to begin a burst."""

    def __init__(self) -> None:
        self._processes: Mapping[str, Hashable] = {}
        self._power_mw: int | None = None
        self._late_rounds = 0
        """Late rounds that remain in the burst."""
        self._allowance_s = 0.0
        """CPU time that may be used for samples; negative after a burst."""
        self._at_s: float | None = None

    def plan(self, processes: Mapping[str, Hashable], power_mw: int | None, cost_s: float, now_s: float) -> Plan:
        """What to sample until the next reading; `cost_s` is the time of a round.

        `processes` are those of each instance, and `power_mw` is that of the GPU.
        """
        burst_s = (1 + LATE_ROUNDS) * cost_s
        elapsed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._allowance_s = min(2 * burst_s, self._allowance_s + LARGEST_SHARE * elapsed_s)
        is_other = processes != self._processes or has_changed(self._power_mw, power_mw)
        begins = not self._late_rounds and self._allowance_s >= (-burst_s if is_other else burst_s)
        if begins:
            self._processes, self._power_mw = processes, power_mw
            self._late_rounds = LATE_ROUNDS
            self._allowance_s -= burst_s
        is_late = self._late_rounds > 0
        self._late_rounds -= is_late
        return Plan(at_once=begins, late=is_late, outdated=begins and is_other)


def has_changed(before_mw: int | None, power_mw: int | None) -> bool:
    """Whether power has changed; also if it became known or unknown."""
    if power_mw is None or before_mw is None:
        return power_mw != before_mw
    return abs(power_mw - before_mw) > CHANGE * before_mw + CHANGE_MW
