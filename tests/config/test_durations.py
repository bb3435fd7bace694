"""Durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.config import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5), ("10s", 10.0), ("5m", 300.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("1d", 86400.0), ("0s", 0.0),
        ("0.5ms", 0.0005),
    ],
)  # fmt: skip
def test_what_people_write_is_understood(text: str, seconds: float) -> None:
    """Units from milliseconds to days, fractions, and several units in a row."""
    assert durations.parse(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "+5s", "5 s", "5s ", "5S", "5w", "1e3s", ".5s", "5.s", "nans", "٣s", "5s\n", "1,5s"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    """A number without a unit is as wrong as a word, and the message shows what would be right."""
    with pytest.raises(ValueError, match="is not a duration; write it as 500ms, 10s or 5m"):
        durations.parse(text)


@pytest.mark.parametrize("text", ["9" * 400 + "s", "36501d"])
def test_a_duration_past_all_reason_is_refused(text: str) -> None:
    """Nothing infinite comes out."""
    with pytest.raises(ValueError, match="is too long; write at most 36500d"):
        durations.parse(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "500ms"), (1.0, "1s"), (90.0, "90s"), (300.0, "5m"), (7200.0, "2h"), (0.0, "0s")]
)
def test_the_largest_whole_unit_is_shown(seconds: float, text: str) -> None:
    """What is printed is what a person would have written."""
    assert durations.show(seconds) == text


@given(st.integers(0, 36500 * 86400 * 10**6))
def test_what_is_shown_is_read_as_the_same(microseconds: int) -> None:
    """`parse` undoes `show` for every duration that `parse` can give."""
    seconds = durations.parse(f"{microseconds // 10**6}.{microseconds % 10**6:06d}s")

    assert durations.parse(durations.show(seconds)) == seconds
