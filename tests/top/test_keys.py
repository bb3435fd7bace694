"""The table of keys."""

from __future__ import annotations

from gpuledger.top.columns import BY_NAME
from gpuledger.top.keys import KEYS, SORTS, footer, help_lines
from gpuledger.top.line import text_of, width


def test_every_key_does_one_thing() -> None:
    """None is there twice."""
    keys = [one for key in KEYS for one in key.keys]

    assert len(keys) == len(set(keys))


def test_the_main_keys_fit_on_a_small_screen() -> None:
    """In 80 columns, quit among them."""
    text = text_of(footer(80))

    assert text.rstrip() == text_of(footer(500)).rstrip()
    assert text.startswith("?Help")
    assert "qQuit" in text
    assert width(footer(20)) == 20


def test_help_has_every_key() -> None:
    """In lines that fit."""
    lines = [text_of(line) for line in help_lines()]

    assert all(any(line.startswith(key.shown) for line in lines) for key in KEYS)
    assert max(map(len, lines)) <= 80


def test_keys_that_sort_name_columns() -> None:
    """That there are in every grouping."""
    assert all(not BY_NAME[name].only for name in SORTS.values())
