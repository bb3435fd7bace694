"""Names and messages that other programs and tenants choose, made harmless where they are read or shown."""

from __future__ import annotations

import unicodedata

LONGEST_LINE = 200
READ_CHARACTERS = 4 * LONGEST_LINE
"""Characters of a message that are looked at: a daemon of a user may send megabytes, and each takes 60 bytes here."""
AMBIGUOUS_WIDTH = (("\u2630", "\u2637"), ("\u268a", "\u268f"), ("\u4dc0", "\u4dff"), ("\U0001d300", "\U0001d376"))
"""Trigrams, hexagrams and similar: one column wide before Unicode 16 and two since; terminals disagree."""


def plain(text: str) -> str:
    """The text with U+FFFD in place of every character that is not printable.

    These are control characters, which command a terminal, characters that turn the direction of writing, separators
    of lines, and halves of surrogate pairs.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def one_line(text: str) -> str:
    """A message of another program as one line of at most LONGEST_LINE characters, without unprintable ones."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[:READ_CHARACTERS]).split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def escaped(text: str, *, in_columns: bool = False) -> str:
    """The text for a terminal: characters that are not printable are escaped, as in a Python string.

    In columns, so are characters whose width is uncertain.
    """
    if text.isascii() and text.isprintable():
        return text
    text = unicodedata.normalize("NFC", text) if in_columns else text
    return "".join(
        char
        if char.isprintable() and not (in_columns and _has_uncertain_width(char))
        else char.encode("unicode_escape").decode()
        for char in text
    )


def _has_uncertain_width(char: str) -> bool:
    return unicodedata.category(char)[0] == "M" or any(first <= char <= last for first, last in AMBIGUOUS_WIDTH)
