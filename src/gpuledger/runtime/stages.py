"""Sources of readings: the driver or a recording, and collectors that add values to a booked tick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpuledger.model import Tick
from gpuledger.model.problem import Problem

REPORT = "report it, with `gpuledger doctor --bundle FILE`"
"""The fix of a problem that is a bug of gpuledger."""
HANG_FIX = "look for the reason with `sudo dmesg | grep -i -e nvrm -e xid`; if the call never returns, reboot"
"""The fix of a driver call that does not return."""


class Source(Protocol):
    """Returns one tick per call. A failed driver or GPU is reported in the tick, not by an exception."""

    def read(self) -> Tick:
        """The current readings of all GPUs."""

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Unexpected failures of driver calls since the start, by call and error."""

    def problems(self) -> tuple[Problem, ...]:
        """Unexpected failures of driver calls as problems, with their fixes."""

    def close(self) -> None:
        """Release the driver; returns at once even if a call hangs."""


class Collector(Protocol):
    """Adds values of another program to a tick after the books, so that no book can depend on them."""

    name: str
    """Name of the stage in the metrics."""

    def attach(self, tick: Tick) -> Tick:
        """The tick with the latest values; does not wait for them."""

    def answered(self) -> bool:
        """Whether values have arrived, or failed to."""

    def close(self) -> None:
        """Stop collecting; returns soon even if a call hangs."""
