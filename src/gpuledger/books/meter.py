"""How much energy a GPU used since the reading before."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.books.kept import KeptMeter
from gpuledger.books.time import BUFFER_NS
from gpuledger.model import Reading

NS_MW_PER_MJ = 1_000_000_000
SLACK_NS = 1_000_000_000
"""The counter moves in steps of 0.1 s on data-center boards and 0.5 s on others, and may be read late."""
CHECKED_MW_NS = 10**18
"""About an hour at 280 W: older ticks then count half in the cross-check."""


@dataclass(frozen=True, slots=True)
class Rise:
    """Millijoules since the reading before; with a reason why nobody can have them, if there is one."""

    mj: int
    reason: str = ""


class Meter:
    """The energy counter of one GPU, or power times time where it has none."""

    def __init__(self, longest_ns: int = BUFFER_NS) -> None:
        self._longest_ns = longest_ns
        self.source = ""
        self.checked_counter_mj = 0
        self._checked_mw_ns = 0
        self._counter_mj = 0
        self._power_mw: int | None = None
        self._limit_mw: int | None = None
        self._at_ns = 0
        self._mw_ns = 0
        self._booked_mj = 0

    def keep(self) -> KeptMeter:
        """How far it has read."""
        return KeptMeter(
            self.source,
            self._at_ns,
            self._counter_mj,
            self._booked_mj,
            self._power_mw,
            self._limit_mw,
            self._mw_ns,
            self.checked_counter_mj,
            self._checked_mw_ns,
        )

    def resume(self, kept: KeptMeter) -> None:
        """Read on from there."""
        self.source, self._at_ns = kept.source, kept.at_ns
        self._counter_mj, self._booked_mj = kept.counter_mj, kept.booked_mj
        self._power_mw, self._limit_mw, self._mw_ns = kept.power_mw, kept.limit_mw, kept.mw_ns
        self.checked_counter_mj, self._checked_mw_ns = kept.checked_counter_mj, kept.checked_mw_ns

    @property
    def checked_power_mj(self) -> int:
        """Power times time over the ticks in which the counter was believed."""
        return self._checked_mw_ns // NS_MW_PER_MJ

    def read(self, reading: Reading, now_ns: int) -> Rise | None:
        """What to book now; None when the GPU does not say."""
        self._limit_mw = reading.power_limit_mw or reading.power_default_limit_mw or self._limit_mw
        elapsed_ns = now_ns - self._at_ns
        mw_ns = 0  # twice, for the mean of both ends is the half of their sum
        close = 0 < elapsed_ns <= self._longest_ns  # further apart, power tells nothing of what was between
        if reading.power_mw is not None and self._power_mw is not None and close:
            mw_ns = (self._power_mw + reading.power_mw) * elapsed_ns
        if reading.energy_mj is not None:
            rise = self._counter(reading.energy_mj, elapsed_ns)
            if not rise.reason and mw_ns:
                self._check(rise.mj, mw_ns // 2)
        elif self.source != "counter" and reading.power_mw is not None:
            self.source = "power"
            self._mw_ns += mw_ns
            whole, self._mw_ns = divmod(self._mw_ns, 2 * NS_MW_PER_MJ)
            rise = Rise(whole)
        else:
            return None
        self._power_mw, self._at_ns = reading.power_mw, now_ns
        self._booked_mj += rise.mj
        return rise

    def _counter(self, counter_mj: int, elapsed_ns: int) -> Rise:
        before, self._counter_mj = self._counter_mj, counter_mj
        if self.source != "counter":
            self.source = "counter"
            return Rise(max(0, counter_mj - self._booked_mj), "before")  # it also counted what power was added up for
        if counter_mj < before:
            return Rise(counter_mj, "reset")
        mj = counter_mj - before
        if self._limit_mw is not None and elapsed_ns >= 0:
            most_mj = (3 * elapsed_ns // 2 + SLACK_NS) * self._limit_mw // NS_MW_PER_MJ
            if mj > most_mj:
                return Rise(mj, "jump")
        return Rise(mj)

    def _check(self, counter_mj: int, mw_ns: int) -> None:
        self.checked_counter_mj += counter_mj
        self._checked_mw_ns += mw_ns
        if self._checked_mw_ns > CHECKED_MW_NS:
            self.checked_counter_mj //= 2
            self._checked_mw_ns //= 2
