"""The energy of one GPU from reading to reading: by its counter, or by power over time."""

from __future__ import annotations

from gpuledger.ledger.split import NS_MW_PER_MJ
from gpuledger.ledger.time import BUFFER_NS
from gpuledger.model import Reading
from gpuledger.model.record import dataclass

SLACK_NS = 1_000_000_000
"""The counter moves in steps of 0.1 s on data-center boards and 0.5 s on others, and may be read late."""
CONFIRMATIONS = 2
"""Further readings that must confirm a counter that decreased or jumped; a single wrong reading is ignored."""
LARGEST_MJ = 10**15
"""A larger counter is wrong: it would be 45 years at 700 W."""
CHECKED_MW_NS = 10**18
"""Both sums of the cross-check are halved at this power x time, about an hour at 280 W."""
STUCK_MJ, STUCK_NS = 50_000, 2_500_000_000
"""Energy drawn and time passed after which a counter that has not moved is stuck.

An idle GPU of 10 W takes 5 s for this energy: a counter that is updated rarely at low power is not stuck.
"""


@dataclass(frozen=True, slots=True)
class Rise:
    """Energy since the previous reading."""

    mj: int
    reason: str = ""
    """Why it cannot be attributed; empty if it can."""


@dataclass(slots=True)
class Meter:
    """Reads the energy counter of one GPU; integrates power over time if there is none or it is stuck.

    Part of the journal.
    """

    source: str = ""
    """`counter` or `power`."""
    at_ns: int = 0
    counter_mj: int = 0
    booked_mj: int = 0
    suspect_mj: int | None = None
    """The last reading, if it does not follow from `counter_mj`."""
    confirmations: int = 0
    """Readings that confirm it."""
    power_mw: int | None = None
    limit_mw: int | None = None
    mw_ns: int = 0
    """Twice the power x time that is not yet a whole millijoule."""
    still_ns: int = 0
    """Time since the counter last moved, as far as power is known."""
    still_mw_ns: int = 0
    """Twice the power x time of `still_ns`."""
    stuck_mj: int | None = None
    """Energy booked by power since the counter last moved; None unless the counter is stuck."""
    checked_counter_mj: int = 0
    """Energy by counter in the ticks of the cross-check."""
    checked_mw_ns: int = 0
    """Power x time in the same ticks."""

    @property
    def checked_power_mj(self) -> int:
        """Energy by power x time in the ticks of the cross-check."""
        return self.checked_mw_ns // NS_MW_PER_MJ

    def read(self, reading: Reading, now_ns: int, longest_ns: int = BUFFER_NS) -> Rise | None:
        """Energy since the previous reading; None if the GPU reports neither energy nor power, or a wrong counter."""
        self.limit_mw = reading.power_limit_mw or reading.power_default_limit_mw or self.limit_mw
        elapsed_ns = now_ns - self.at_ns
        mw_ns = 0  # (p0 + p1) x elapsed: twice the trapezoid, an integer
        if reading.power_mw is not None and self.power_mw is not None and 0 < elapsed_ns <= longest_ns:
            mw_ns = (self.power_mw + reading.power_mw) * elapsed_ns
        rise: Rise | None = None
        if reading.energy_mj is not None and reading.energy_mj <= LARGEST_MJ:
            has_power = reading.power_mw is not None
            rise = self._read_counter(reading.energy_mj, elapsed_ns, mw_ns, has_power=has_power)
        elif self.source != "counter" and reading.power_mw is not None:
            self.source = "power"
            rise = Rise(self._integrate(mw_ns))
        if rise is not None:
            self.power_mw, self.at_ns = reading.power_mw, now_ns
            self.booked_mj += rise.mj
        return rise

    def _read_counter(self, counter_mj: int, elapsed_ns: int, mw_ns: int, *, has_power: bool) -> Rise | None:
        """Energy since the last reading that was booked; None while a reset or a jump is not confirmed."""
        mj = counter_mj - self.counter_mj
        if self.source != "counter" and self.stuck_mj is None:
            # The counter includes the energy that was booked from power until now.
            rise = Rise(max(0, counter_mj - self.booked_mj), "before")
        elif not mj:
            self.suspect_mj, self.confirmations = None, 0
            return self._stand_still(elapsed_ns, mw_ns) if has_power or self.stuck_mj is None else None
        elif mj < 0:
            by_power_mj = mw_ns // (2 * NS_MW_PER_MJ)
            if self._is_jump(counter_mj, elapsed_ns):  # too much for a counter that has started from 0 meanwhile
                rise = Rise(by_power_mj, "reset")
            else:
                rise = Rise(counter_mj if self.stuck_mj is None else max(counter_mj, by_power_mj), "reset")
        else:
            mj = self._beyond_power(mj, mw_ns)
            rise = Rise(mj, "jump") if self._is_jump(mj, elapsed_ns) else Rise(mj)
        if rise.reason in ("reset", "jump") and not self._is_confirmed(counter_mj):
            return None
        if mw_ns and not rise.reason and self.stuck_mj is None:
            self._check(rise.mj, (self.still_mw_ns + mw_ns) // 2)
        self.source, self.counter_mj, self.suspect_mj, self.confirmations = "counter", counter_mj, None, 0
        self.still_ns, self.still_mw_ns, self.stuck_mj = 0, 0, None
        return rise

    def _stand_still(self, elapsed_ns: int, mw_ns: int) -> Rise:
        """The counter has not moved: no energy, or by power if the counter is stuck."""
        if self.stuck_mj is not None:
            return Rise(self._integrate(mw_ns))
        if mw_ns:
            self.still_ns += elapsed_ns
            self.still_mw_ns += mw_ns
        if self.still_ns < STUCK_NS or self.still_mw_ns < 2 * STUCK_MJ * NS_MW_PER_MJ:
            return Rise(0)
        self.source, self.stuck_mj = "power", 0
        return Rise(self._integrate(self.still_mw_ns), "stuck")

    def _beyond_power(self, mj: int, mw_ns: int) -> int:
        """The part of the counter's increase that is not booked by power yet.

        A counter that was stuck either includes the energy of that time or continues where it stopped.
        """
        if self.stuck_mj is None:
            return mj
        if 2 * mj < self.stuck_mj:
            return mw_ns // (2 * NS_MW_PER_MJ)
        return max(0, mj - self.stuck_mj)

    def _integrate(self, mw_ns: int) -> int:
        """Power x time in whole millijoules; the rest is left for the next reading."""
        whole_mj, self.mw_ns = divmod(self.mw_ns + mw_ns, 2 * NS_MW_PER_MJ)
        if self.stuck_mj is not None:
            self.stuck_mj += whole_mj
        return whole_mj

    def _is_jump(self, mj: int, elapsed_ns: int) -> bool:
        if self.limit_mw is None or elapsed_ns < 0:
            return False
        return mj > (3 * elapsed_ns // 2 + SLACK_NS) * self.limit_mw // NS_MW_PER_MJ

    def _is_confirmed(self, counter_mj: int) -> bool:
        is_in_order = self.suspect_mj is not None and self.suspect_mj <= counter_mj
        self.suspect_mj, self.confirmations = counter_mj, self.confirmations + 1 if is_in_order else 0
        return self.confirmations >= CONFIRMATIONS

    def _check(self, counter_mj: int, mw_ns: int) -> None:
        self.checked_counter_mj += counter_mj
        self.checked_mw_ns += mw_ns
        if self.checked_mw_ns > CHECKED_MW_NS:
            self.checked_counter_mj //= 2
            self.checked_mw_ns //= 2
