"""The power of a GPU on which no process works: without a process (idle), and with waiting processes (parked)."""

from __future__ import annotations

from dataclasses import dataclass

FALL_NS = 4_000_000_000
RISE_NS = 60_000_000_000
"""Power at rest falls within 4 s of rest, and rises within 60 s: a pause may be shorter than the interval."""
LOWEST_S = 300.0
"""Time constant with which the lowest power rises again."""
MODELS_MW = {"H200": 122_000}
"""Parked power by GPU model, as measured."""
OF_LIMIT = 0.17
"""Parked power of other models, relative to the power limit; that of the H200 is 122 of 700 W."""
OF_LOWEST = 0.9
"""Parked power is at most this part of the lowest power at which a process worked."""
MOST_OF_MODEL, MOST_OF_LIMIT = 1.25, 0.5
"""Parked power is at most this part of the model's, or of the power limit of other models. That of H200s was 119 to
132 W, by clocks and temperature; boards with a low limit come closest to it. More is work that was not detected.
"""


def resting_power(known_mw: int | None, power_mw: int, elapsed_ns: int) -> int:
    """Update the power of a GPU at rest with that of one quiet interval: falls within 4 s, rises within 60 s.

    Not the minimum: the counter moves every 0.1 s, so a single interval may be 10 % off, and new clock settings change
    the power at rest.
    """
    if known_mw is None:
        return power_mw
    step_mw = power_mw - known_mw
    pace_ns = RISE_NS if step_mw > 0 else FALL_NS
    return known_mw + step_mw * min(elapsed_ns, pace_ns) // pace_ns


@dataclass(slots=True)
class ParkedPower:
    """Parked power of one GPU: measured while all processes wait, else from the journal, else usual for the GPU model.

    It is not fitted to a varying load: programs differ in the power of their activity, so that the fit of a GPU with
    122 W was 160 to 190 W.
    """

    measured_mw: int | None = None
    earlier_mw: int | None = None
    """From the journal."""
    lowest_mw: int | None = None
    """Lowest power of an interval in which a process worked, over the last minutes."""

    def rest(self, power_mw: int, elapsed_ns: int) -> None:
        """Learn from an interval in which all processes waited."""
        self.measured_mw = resting_power(self.measured_mw, power_mw, elapsed_ns)

    def work(self, power_mw: int, seconds: float) -> None:
        """Learn from an interval in which a process worked."""
        lowest_mw = power_mw if self.lowest_mw is None else self.lowest_mw
        rise_mw = int((power_mw - lowest_mw) * min(1.0, seconds / LOWEST_S))
        self.lowest_mw = min(power_mw, lowest_mw + max(0, rise_mw))

    def best(self, model: str, limit_mw: int | None, idle_mw: int | None = None) -> tuple[int | None, str]:
        """Parked power and its source: `measured`, `earlier`, `model`, or none.

        At least idle power, and at most what waiting processes can draw; if it is not measured, less than the lowest
        power at which a process worked.
        """
        usual_mw = next((mw for name, mw in MODELS_MW.items() if name in model), None)
        most_mw = None if usual_mw is None else int(MOST_OF_MODEL * usual_mw)
        if usual_mw is None and limit_mw is not None:
            usual_mw, most_mw = int(OF_LIMIT * limit_mw), int(MOST_OF_LIMIT * limit_mw)
        known = {"measured": self.measured_mw, "earlier": self.earlier_mw, "model": usual_mw}
        source, power_mw = next(((source, mw) for source, mw in known.items() if mw is not None), ("", None))
        if power_mw is None:
            return None, ""
        if self.lowest_mw is not None and source != "measured":
            power_mw = min(power_mw, int(OF_LOWEST * self.lowest_mw))
        if most_mw is not None:
            power_mw = min(power_mw, most_mw)
        return max(power_mw, idle_mw or 0), source

    def learned_mw(self) -> int | None:
        """Parked power for the journal: anything but the usual one of the model."""
        return self.earlier_mw if self.measured_mw is None else self.measured_mw
