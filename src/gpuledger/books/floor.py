"""The power a GPU draws while nothing happens, learned from the intervals in which nothing did."""

from __future__ import annotations

FALL_NS = 4_000_000_000
RISE_NS = 60_000_000_000


class Floor:
    """Follows a low value quickly and a high one slowly.

    Not the lowest ever seen: the counter moves every 0.1 s, so one interval of a second may be a tenth off, and
    a GPU that was set to other clocks draws another power from then on.
    """

    def __init__(self) -> None:
        self.power_mw: int | None = None

    def seen(self, power_mw: int, elapsed_ns: int) -> None:
        """Take in the power of one quiet interval."""
        if self.power_mw is None:
            self.power_mw = power_mw
            return
        step_mw = power_mw - self.power_mw
        pace_ns = RISE_NS if step_mw > 0 else FALL_NS
        self.power_mw += step_mw * min(elapsed_ns, pace_ns) // pace_ns
