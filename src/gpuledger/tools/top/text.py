"""Styled text of a known width: shared by the live view and `top --once`.

A style consists of words that rich understands, such as `bold red`; `ansi` translates them for `top --once`, which
must work without rich.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

Line = tuple[tuple[str, str], ...]
"""Pairs of text and style."""
CODES = {
    "bold": 1, "dim": 2, "reverse": 7, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36,
    "bright_green": 92, "bright_yellow": 93, "bright_blue": 94, "bright_magenta": 95, "bright_cyan": 96,
}  # fmt: skip
BAD, WARN, GOOD, GUESS, HEAD, KEY = "bold red", "yellow", "green", "magenta", "reverse", "bold cyan"
OWNER_STYLES = (
    "bright_blue", "yellow", "green", "bright_magenta", "bright_cyan", "bright_green", "bright_yellow", "cyan",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters for drawing."""

    none: str
    """An unknown value."""
    cut: str
    owners: tuple[str, ...]
    """Memory of owners; neighbours in a bar differ, so that it is readable without colours."""
    inferred: str
    driver: str
    """Memory that the driver uses itself."""
    unknown: str
    free: str
    steps: str
    """Levels of a chart cell, from empty to full."""
    down: str
    up: str
    degree: str
    dot: str
    error: str
    branch: str
    """Before a row of a tree that belongs to the row above."""


UNICODE = Glyphs(
    none="–", cut="…", owners=("█", "▓"), inferred="▒", driver="░", unknown="?", free="·", steps=" ▁▂▃▄▅▆▇█",  # noqa: RUF001
    down="▼", up="▲", degree="°C", dot="·", error="±", branch="└ ",
)  # fmt: skip
ASCII = Glyphs(
    none="-", cut="~", owners=("#", "="), inferred="%", driver=":", unknown="?", free=".", steps=" .:-=+*#@",
    down="v", up="^", degree="C", dot="|", error="+-", branch="`-",
)  # fmt: skip


def styled(text: str, style: str = "") -> Line:
    """A line with one style; empty for an empty text."""
    return ((text, style),) if text else ()


def joined(parts: Iterable[Line], separator: str = "  ") -> Line:
    """The non-empty parts with a separator between them."""
    line: Line = ()
    for part in parts:
        if part:
            line += (styled(separator) if line else ()) + part
    return line


def plain(line: Line) -> str:
    """The line without styles."""
    return "".join(text for text, _ in line)


def ansi(line: Line) -> str:
    """The line with ANSI escape codes."""
    return "".join(
        f"\x1b[{';'.join(str(CODES[word]) for word in style.split())}m{text}\x1b[0m" if style else text
        for text, style in line
    )


# Widths


def cells(text: str) -> int:
    """The width in columns."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def width(line: Line) -> int:
    """The width of a line in columns."""
    return sum(cells(text) for text, _ in line)


def head(text: str, columns: int) -> str:
    """The beginning of a text that fits into `columns`."""
    if cells(text) <= columns:
        return text
    used = 0
    for position, character in enumerate(text):
        used += cells(character)
        if used > columns:
            return text[:position]
    return text


def shortened(text: str, columns: int, cut: str) -> str:
    """The text without its middle if it is too long: both ends of a pod's name carry information."""
    if cells(text) <= columns:
        return text
    room = columns - cells(cut)
    if room < 1:
        return head(text, columns)
    tail = head(text[::-1], room // 2)[::-1]
    return head(text, room - cells(tail)) + cut + tail


def fitted(text: str, columns: int, cut: str, *, right: bool = False) -> str:
    """The text in exactly `columns` columns."""
    short = shortened(text, columns, cut)
    padding = " " * (columns - cells(short))
    return padding + short if right else short + padding


def cropped(line: Line, columns: int) -> Line:
    """The beginning of a line that fits into `columns`."""
    result: Line = ()
    for text, style in line:
        part = head(text, columns)
        columns -= cells(part)
        result += styled(part, style)
        if part != text:
            break
    return result


def wrapped(line: Line, columns: int, indent: int = 0) -> list[Line]:
    """The whole line in as many lines as it needs, broken at spaces; the following lines are indented."""
    margin = styled(" " * min(indent, columns // 2))
    lines: list[Line] = [()]
    words = [(word, style) for text, style in line for word in re.findall(r" *[^ ]+| +", text)]
    for word, style in words:
        rest = word
        if lines[-1] and width(lines[-1]) + cells(rest) > columns:
            lines.append(margin)
            rest = rest.lstrip()
        while width(lines[-1]) + cells(rest) > columns:  # a word that is wider than a line
            part = head(rest, columns - width(lines[-1])) or rest[:1]
            lines[-1] += styled(part, style)
            lines.append(margin)
            rest = rest[len(part) :]
        lines[-1] += styled(rest, style)
    return lines


def local_time(seconds: float, pattern: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A Unix time in local time; empty if the calendar does not have it."""
    try:
        return time.strftime(pattern, time.localtime(seconds)) if seconds else ""
    except (OverflowError, ValueError, OSError):
        return ""
