"""Checks that may hang."""

from __future__ import annotations

import threading

from gpuledger.doctor.bounded import Bounded, findings
from gpuledger.doctor.finding import Finding, ok


def test_what_it_gives() -> None:
    """In time, it is as if it were called."""
    assert findings(Bounded("a", lambda: [ok("a", "x")], 5, "wait")) == [ok("a", "x")]


def test_one_that_hangs_is_a_finding() -> None:
    """With what to do; nobody waits for it longer than its limit."""
    never = threading.Event()
    try:
        found = Bounded("a", never.wait, 0.05, "reboot").outcome()
    finally:
        never.set()

    assert found == Finding("a", "problem", "does not come back within 0.05 s", "reboot")


def test_a_bug_costs_one_line() -> None:
    """Not the other checks."""

    def broken() -> list[Finding]:
        raise KeyError("x")

    (found,) = findings(Bounded("a", broken, 5, "wait"))

    assert (found.level, found.text) == ("problem", "the check itself failed: KeyError: 'x'")
