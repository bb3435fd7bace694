"""When to read the energy counter and the utilization of processes.

On an H200 both calls together take 5 to 6 ms of CPU time, more than all other calls of a tick. The counter is
cumulative and the driver keeps 10 s of utilization, so that a later reading contains everything. While several
processes share a GPU, their shares need every tick.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from gpuledger.driver.rounds import has_changed

SETTLED_S = 5.0
"""How long the processes must be the same: after a change, others often follow."""


class Deferral:
    """Decides in each tick whether the counters of one GPU are due."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        """Time between two readings with one process or none; 0 to read in every tick."""
        self._pids: AbstractSet[int] | None = None
        self._changed_s = 0.0
        """When the processes changed."""
        self._power_mw: int | None = None
        """Power at the last reading."""
        self._read_s = 0.0

    def is_due(
        self, pids: AbstractSet[int] | None, power_mw: int | None, utilization_pct: int | None, now_s: float
    ) -> bool:
        """Whether to read the counters now. None: not known."""
        if pids != self._pids:
            self._pids, self._changed_s = pids, now_s
        is_due = (
            pids is None
            or len(pids) > 1
            or now_s - self._changed_s < SETTLED_S
            or not self._interval_s
            # the same tick for all GPUs: the energy of a program on several is of the same time
            or now_s // self._interval_s != self._read_s // self._interval_s
            or has_changed(self._power_mw, power_mw)
            or bool(utilization_pct and not pids)
        )
        if is_due:
            self._read_s, self._power_mw = now_s, power_mw
        return is_due
