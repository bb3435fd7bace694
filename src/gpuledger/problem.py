"""One thing that is wrong, and what to do about it.

A problem is created where it is detected and carried as fields: by an error, by the health of a component, by a tick.
`doctor`, the page, `top`, the JSON API and the log show the same fields; no code reads the text.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBLEM, WARNING, NOTE = SEVERITIES = ("problem", "warning", "note")
"""Something does not work; something is missing; worth knowing. Worst first."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, in one line without a full stop."""

    what: str
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
