"""What a check says: fine or not, what was found, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.view import advice

OK, WARNING, PROBLEM = LEVELS = ("ok", "warning", "problem")
"""By their exit codes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    name: str
    level: str
    """One of LEVELS."""
    text: str
    fix: str = ""
    """What to do; a command where there is one. Empty when all is well."""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, OK, text)


def warning(name: str, text: str, fix: str) -> Finding:
    """Something will be missing."""
    return Finding(name, WARNING, text, fix)


def problem(name: str, text: str, fix: str) -> Finding:
    """What was asked for does not work."""
    return Finding(name, PROBLEM, text, fix)


def unused(name: str, why: str) -> Finding:
    """Nobody asked for it."""
    return ok(name, f"not used: {why}")


def explained(name: str, message: object) -> Finding:
    """A problem of one of our own messages, which name what is wrong and, after a semicolon, what would be right."""
    return problem(name, *advice.explained(message))


def exit_code(findings: Iterable[Finding]) -> int:
    """0 when all is well, 1 with warnings, 2 with problems."""
    return max((LEVELS.index(finding.level) for finding in findings), default=0)
