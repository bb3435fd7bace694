"""Styled text of a known width."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuledger.model.plaintext import escaped
from gpuledger.tools.top.text import ansi, cells, cropped, fitted, head, joined, plain, shortened, styled, width


@given(st.text(), st.integers(0, 40), st.sampled_from(["…", "~"]), st.booleans())
def test_a_field_is_exactly_as_wide_as_asked_for(text: str, columns: int, cut: str, right: bool) -> None:
    """Wide characters included, at both ends of what is left out."""
    assert cells(fitted(escaped(text, in_columns=True), columns, cut, right=right)) == columns
    assert cells(head(escaped(text, in_columns=True), columns)) <= columns


def test_a_name_loses_its_middle() -> None:
    """Both ends tell something."""
    assert shortened("serving/chat-7c9d8f6b5d-x2x4z", 15, "…") == "serving…d-x2x4z"
    assert shortened("short", 5, "…") == "short"
    assert shortened("abc", 1, "…") == "a"


@example("\u2630\u268a\u4dc0\U0001d300\U0001d376")
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_widths_are_never_less_than_those_textual_draws_with(text: str) -> None:
    """A line that is taken to fit does."""
    assert cells(escaped(text, in_columns=True)) >= cell_len(escaped(text, in_columns=True))


def test_lines_are_joined_and_cropped() -> None:
    """Empty ones leave no gap; styles stay with their text."""
    line = joined([styled("one", "bold red"), (), styled("two")])

    assert plain(line) == "one  two"
    assert cropped(line, 4) == (("one", "bold red"), (" ", ""))
    assert width(cropped(styled("漢字"), 3)) == 2
    assert ansi(line) == "\x1b[1;31mone\x1b[0m  two"
