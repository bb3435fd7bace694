"""Text that knows how wide it is, and holds nothing that commands a terminal."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuledger.top.line import Piece, ansi, cells, clean, cropped, fitted, head, joined, shortened, text_of, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("llama-0", "llama-0"),
        ("[bold]x[/]", "[bold]x[/]"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp", "\\u202egnp"),
        ("\u200bx", "\\u200bx"),
        ("e\u0301", "é"),
        ("x\u0300\u0301", "x\\u0300\\u0301"),
        ("\ud800", "\\ud800"),
        ("\x9b2J", "\\x9b2J"),
        ("漢字", "漢字"),
    ],
)
def test_nothing_commands_a_terminal(text: str, shown: str) -> None:
    """Control characters, turned writing and marks without a width are written out; the rest stays."""
    assert clean(text) == shown


@given(st.text())
def test_clean_text_is_printable(text: str) -> None:
    """Whatever it was."""
    assert clean(text).isprintable()


@given(st.text(), st.integers(0, 40), st.sampled_from(["…", "~"]), st.booleans())
def test_a_field_is_exactly_as_wide_as_asked_for(text: str, columns: int, cut: str, right: bool) -> None:
    """Wide characters included, at both ends of what is left out."""
    assert cells(fitted(clean(text), columns, cut, right=right)) == columns
    assert cells(head(clean(text), columns)) <= columns


def test_a_name_loses_its_middle() -> None:
    """Both ends tell something."""
    assert shortened("serving/chat-7c9d8f6b5d-x2x4z", 15, "…") == "serving…d-x2x4z"
    assert shortened("short", 5, "…") == "short"
    assert shortened("abc", 1, "…") == "a"


@example("\u2630\u268a\u4dc0\U0001d300\U0001d376")
@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_widths_are_never_less_than_those_textual_draws_with(text: str) -> None:
    """A line that is taken to fit does."""
    assert cells(clean(text)) >= cell_len(clean(text))


def test_lines_are_joined_and_cropped() -> None:
    """Empty ones leave no gap; styles stay with their text."""
    line = joined([(Piece("one", "bad"),), (), (Piece("two"),)])

    assert text_of(line) == "one  two"
    assert cropped(line, 4) == (Piece("one", "bad"), Piece(" "))
    assert width(cropped((Piece("漢字"),), 3)) == 2
    assert ansi(line) == "\x1b[1;31mone\x1b[0m  two"
