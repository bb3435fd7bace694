"""Lines of the report, and the exit code."""

from __future__ import annotations

import pytest

from gpuledger.model.problem import NOTE, WARNING, Problem
from gpuledger.tools.doctor.finding import Finding, exit_code, explained, of_tick, ok, problem, unused, warning


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([ok("a", "x"), unused("b", "off")], 0),
        ([ok("a", "x"), warning("b", "x", "y")], 1),
        ([problem("a", "x", "y"), warning("b", "x", "y"), ok("c", "x")], 2),
    ],
)
def test_the_worst_finding_decides_the_exit_code(findings: list[Finding], code: int) -> None:
    """0, 1 or 2."""
    assert exit_code(findings) == code


def test_an_error_brings_its_fix() -> None:
    """An error without a fix at least names a next step."""
    assert explained("a", Problem("cannot open x", "start it")) == Finding("a", "problem", "cannot open x", "start it")
    assert "debug" in explained("a", Problem("it broke")).fix


def test_a_problem_of_a_tick_is_a_finding() -> None:
    """With the same severity; a note changes nothing about the exit code."""
    hot = Problem("slowed down by heat", "check the fans", severity=WARNING, about="GPU 3")

    assert of_tick(hot) == Finding("gpu 3", "warning", "slowed down by heat", "check the fans")
    assert exit_code([of_tick(Problem("x", "y", severity=NOTE, about="processes"))]) == 0
