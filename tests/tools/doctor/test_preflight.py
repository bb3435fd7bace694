"""Checks with a time limit."""

from __future__ import annotations

import threading

from gpuledger.tools.doctor.finding import Finding, ok
from gpuledger.tools.doctor.preflight import Bounded, findings


def test_the_result_of_a_check() -> None:
    """A check that returns in time gives its findings."""
    assert findings(Bounded("a", lambda: [ok("a", "x")], 5, "wait")) == [ok("a", "x")]


def test_a_check_that_hangs_is_a_finding() -> None:
    """With its fix; the doctor waits no longer than the limit."""
    never = threading.Event()
    try:
        outcome = Bounded("a", never.wait, 0.05, "reboot").outcome()
    finally:
        never.set()

    assert outcome == Finding("a", "problem", "does not return within 0.05 s", "reboot")


def test_a_bug_costs_one_line() -> None:
    """Not the other checks."""

    def broken() -> list[Finding]:
        raise KeyError("x")

    (finding,) = findings(Bounded("a", broken, 5, "wait"))

    assert (finding.level, finding.text) == ("problem", "the check itself failed: KeyError: 'x'")
