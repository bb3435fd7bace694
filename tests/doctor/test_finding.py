"""What a check says."""

from __future__ import annotations

import pytest

from gpuledger.doctor.finding import Finding, exit_code, explained, ok, problem, unused, warning


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], 0),
        ([ok("a", "x"), unused("b", "off")], 0),
        ([ok("a", "x"), warning("b", "x", "y")], 1),
        ([problem("a", "x", "y"), warning("b", "x", "y"), ok("c", "x")], 2),
    ],
)
def test_exit_code_is_that_of_the_worst(findings: list[Finding], code: int) -> None:
    """0, 1 or 2."""
    assert exit_code(findings) == code


@pytest.mark.parametrize(
    ("message", "text", "fix"),
    [
        ("cannot open x; start it", "cannot open x", "start it"),
        ("no library: a; b; install it", "no library: a; b", "install it"),
        ("it broke", "it broke", "`gpuledger once --log.level debug` says more"),
    ],
)
def test_our_messages_end_with_the_remedy(message: str, text: str, fix: str) -> None:
    """After the last semicolon; one without has at least a next step."""
    assert explained("a", message) == Finding("a", "problem", text, fix)
