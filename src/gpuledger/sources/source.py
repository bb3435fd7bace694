"""What every source offers the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpuledger.model import Tick


class Source(Protocol):
    """Gives one tick a call and never raises for what a driver may do on a bad day."""

    def read(self) -> Tick:
        """Everything the driver says now; a driver or GPU that is down is said in the tick."""

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Unforeseen failures of driver calls since start, by call and error."""

    def close(self) -> None:
        """Let go of the driver; must return at once even when a call hangs."""


class Collector(Protocol):
    """Adds what somebody else says to a tick whose books are written, so that no book can depend on it."""

    name: str
    """As the metrics of stages show it."""

    def attach(self, tick: Tick) -> Tick:
        """The tick with what is known by now; never waits for anybody."""

    def answered(self) -> bool:
        """Whether it has anything to say by now, or knows that it has not."""

    def close(self) -> None:
        """Ask no more; must return soon even when a call hangs."""
