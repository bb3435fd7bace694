"""The clock, with times that are passed in."""

from __future__ import annotations

import pytest

from gpuledger.doctor.clock import clock

NOW_NS = 1_800_000_000 * 10**9
S = 10**9


@pytest.mark.parametrize("sample_s", [None, 0.0, 1.9, -1.0, -59.0])
def test_clocks_that_agree(sample_s: float | None) -> None:
    """Samples of a minute ago, and those a moment ahead, are as expected."""
    sample_us = None if sample_s is None else NOW_NS // 1000 + int(sample_s * 1e6)

    (found,) = clock(NOW_NS, S, S + S // 10, sample_us)

    assert found.level == "ok"


@pytest.mark.parametrize(
    ("now_ns", "wall_ns", "sample_s", "level", "words"),
    [
        (5 * S, S, 0.0, "problem", "5 s after 1970"),
        (NOW_NS, 61 * S, 0.0, "warning", "set by +60.0 s"),
        (NOW_NS, -2 * S, 0.0, "warning", "set by -3.0 s"),
        (NOW_NS, S, 2.1, "warning", "+2 s from it"),
        (NOW_NS, S, -61.0, "warning", "-61 s from it"),
    ],
)
def test_clocks_that_do_not(now_ns: int, wall_ns: int, sample_s: float, level: str, words: str) -> None:
    """Each says by how much, and how to set it."""
    (found,) = clock(now_ns, wall_ns, S, now_ns // 1000 + int(sample_s * 1e6))

    assert found.level == level
    assert words in found.text
    assert "timedatectl" in found.fix
