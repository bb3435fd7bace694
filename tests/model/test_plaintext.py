"""Messages of other programs."""

from __future__ import annotations

import tracemalloc

from gpuledger.model.plaintext import LONGEST_LINE, one_line


def test_a_message_becomes_one_short_line() -> None:
    """Unprintable characters and line breaks become spaces, and a long message is cut."""
    assert one_line(" a\tb\x00c\n\n d ") == "a b c d"
    assert one_line("a\nb\x1b[31m") == "a b [31m"
    assert one_line("x" * 1000) == "x" * LONGEST_LINE + "…"


def test_a_huge_message_takes_little_memory() -> None:
    """A user's daemon that answers with megabytes cannot exhaust the memory of the exporter."""
    text = chr(0x5B57) * (4 << 20)
    tracemalloc.start()
    try:
        line = one_line(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(line) == LONGEST_LINE + 1
    assert peak_bytes < 1 << 20
