"""Names that other programs and tenants choose, made harmless where they are read."""

from __future__ import annotations

LONGEST_LINE = 200


def plain(text: str) -> str:
    """The text with U+FFFD in place of every character that is not printable.

    These are control characters, which command a terminal, characters that turn the direction of writing, separators
    of lines, and halves of surrogate pairs.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def one_line(text: str) -> str:
    """A message of another program as one line of at most LONGEST_LINE characters, without unprintable ones."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"
