"""A problem and its fix, as shown by `doctor`, the page, `top`, the JSON API and the log.

Errors, the health of components and ticks contain problems. Code compares `kind`, never the text.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM, WARNING, NOTE = SEVERITIES = ("problem", "warning", "note")
"""Worst first: something does not work, something is missing, information."""
REPORT = "report it, with `gpuledger doctor --bundle FILE`"
"""The fix of a problem that is a bug of gpuledger."""
HANG_FIX = "look for the reason with `sudo dmesg | grep -i -e nvrm -e xid`; if the call never returns, reboot"
"""The fix of a driver call that does not return."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one component."""

    what: str
    """One line without a full stop."""
    fix: str = ""
    """What to do about it, with commands in backticks; empty if nothing can be done."""
    kind: str = ""
    """A stable word for code and metrics, such as `permission`, `unreachable` or `timeout`; may be empty."""
    severity: str = PROBLEM
    """One of SEVERITIES."""
    about: str = ""
    """The component or device it concerns, such as `docker` or `GPU 0`."""

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}" if self.fix else self.what
