"""The result of one check: ok, warning or problem, with its fix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.model.problem import Problem
from gpuledger.web.snapshot.problems import LOG_FIX

OK, WARNING, PROBLEM = LEVELS = ("ok", "warning", "problem")
"""The position of a level is its exit code."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    level: str
    """One of LEVELS."""
    text: str
    fix: str = ""
    """How to fix it, with commands in backticks; empty if the level is ok."""


def ok(name: str, text: str) -> Finding:
    """The check passed."""
    return Finding(name, OK, text)


def unused(name: str, reason: str) -> Finding:
    """The component is not configured."""
    return ok(name, f"not used: {reason}")


def warning(name: str, text: str, fix: str) -> Finding:
    """Some data will be missing."""
    return Finding(name, WARNING, text, fix)


def problem(name: str, text: str, fix: str) -> Finding:
    """A configured component does not work."""
    return Finding(name, PROBLEM, text, fix)


def explained(name: str, cause: Problem) -> Finding:
    """The problem of an error."""
    return problem(name, cause.what, cause.fix or LOG_FIX)


def of_tick(cause: Problem) -> Finding:
    """A problem of a tick; a note counts as ok."""
    level = cause.severity if cause.severity in LEVELS else OK
    return Finding(cause.about.lower(), level, cause.what, cause.fix)


def exit_code(findings: Iterable[Finding]) -> int:
    """0 if all checks passed, 1 with warnings, 2 with problems."""
    return max((LEVELS.index(finding.level) for finding in findings), default=0)
