"""A line that is typed."""

from __future__ import annotations

from gpuledger.top.line import text_of
from gpuledger.top.prompt import Prompt


def typed(*keys: str) -> str:
    """What is there after these keys."""
    prompt = Prompt("filter", "old")
    for key in keys:
        prompt = prompt.after(key, key if len(key) == 1 else None)
    return prompt.text


def test_keys() -> None:
    """Characters are added, two keys take away, others do nothing."""
    assert typed("a", "[", " ") == "olda[ "
    assert typed("backspace", "ctrl+h") == "o"
    assert typed("ctrl+u", "backspace", "é") == "é"
    assert typed("f5", "tab", "\x1b") == "old"


def test_what_is_pasted_is_one_line_without_commands() -> None:
    """As names are."""
    assert Prompt("search").with_more("a\x1b[2J\nb").text == "a\\x1b[2J"


def test_the_end_is_seen() -> None:
    """Where the line is too narrow."""
    assert text_of(Prompt("filter", "abc").line(40)) == "filter: abc "
    assert text_of(Prompt("filter", "abcdefgh").line(12)) == "filter: fgh "
    assert text_of(Prompt("filter", "abc").line(3)) == "fil"
