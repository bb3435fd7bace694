"""Names that other programs and tenants choose, made harmless where they are read."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text with U+FFFD in place of every character that is not printable.

    These are control characters, which command a terminal, characters that turn the direction of writing, separators
    of lines, and halves of surrogate pairs.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
