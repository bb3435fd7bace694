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
