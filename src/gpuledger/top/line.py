"""Lines of styled text that know how wide they are: what both the one-shot text and the live view are made of."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Look(NamedTuple):
    """How a style looks: as codes of ANSI terminals, and in the words of rich."""

    codes: str
    rich: str


LOOKS = {
    "": Look("", ""),
    "strong": Look("1", "bold"),
    "dim": Look("2", "dim"),
    "good": Look("32", "green"),
    "warn": Look("33", "yellow"),
    "bad": Look("1;31", "bold red"),
    "guess": Look("35", "magenta"),
    "head": Look("7", "reverse"),
    "sorted": Look("1;7", "bold reverse"),
    "match": Look("1;33", "bold yellow"),
    "cursor": Look("7", "reverse"),
    "key": Look("1;36", "bold cyan"),
    "owner0": Look("36", "cyan"),
    "owner1": Look("32", "green"),
    "owner2": Look("33", "yellow"),
    "owner3": Look("94", "bright_blue"),
    "owner4": Look("96", "bright_cyan"),
    "owner5": Look("92", "bright_green"),
}
OWNERS = tuple(name for name in LOOKS if name.startswith("owner"))


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that are drawn with."""

    none: str
    """Stands for what is not known."""
    cut: str
    owners: tuple[str, ...]
    """Neighbours in a bar differ, so that it can be read without colours."""
    full: str
    inferred: str
    kept: str
    """Memory that the driver keeps for itself."""
    unknown: str
    free: str
    steps: str
    """Of a chart, from nothing to a full cell."""
    down: str
    up: str
    degree: str
    dot: str
    error: str


UNICODE = Glyphs("–", "…", ("█", "▓"), "█", "▒", "░", "?", "·", " ▁▂▃▄▅▆▇█", "▼", "▲", "°C", "·", "±")  # noqa: RUF001
ASCII = Glyphs("-", "~", ("#", "="), "#", "%", ":", "?", ".", " .:-=+*#@", "v", "^", "C", "|", "+-")


WIDENED = (("\u2630", "\u2637"), ("\u268a", "\u268f"), ("\u4dc0", "\u4dff"), ("\U0001d300", "\U0001d376"))
"""Trigrams, hexagrams and the like: one column wide until Unicode 16, two since then; terminals do not agree."""


class Piece(NamedTuple):
    """Some text in one style."""

    text: str
    style: str = ""


Line = tuple[Piece, ...]


def clean(text: str) -> str:
    """The text with nothing in it that could command a terminal, or take more or less room than it seems to."""
    if text.isascii() and text.isprintable():
        return text
    composed = unicodedata.normalize("NFC", text)
    return "".join(c if _is_sure(c) else _escaped(c) for c in composed)


def _is_sure(character: str) -> bool:
    if not character.isprintable() or unicodedata.category(character)[0] == "M":
        return False
    return not any(first <= character <= last for first, last in WIDENED)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def plain_ascii(text: str) -> str:
    """The text for a terminal that has no other characters."""
    return text if text.isascii() else text.encode("ascii", "replace").decode()


def cells(text: str) -> int:
    """How many columns it takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def width(line: Line) -> int:
    """How many columns a line takes."""
    return sum(cells(text) for text, _ in line)


def head(text: str, columns: int) -> str:
    """As much of its beginning as fits."""
    if cells(text) <= columns:
        return text
    taken = 0
    for at, c in enumerate(text):
        taken += cells(c)
        if taken > columns:
            return text[:at]
    return text


def shortened(text: str, columns: int, cut: str) -> str:
    """The text with its middle left out where it is too long: both ends of a pod's name tell something."""
    if cells(text) <= columns:
        return text
    room = columns - cells(cut)
    if room < 1:
        return head(text, columns)
    tail = head(text[::-1], room // 2)[::-1]
    return head(text, room - cells(tail)) + cut + tail


def fitted(text: str, columns: int, cut: str, *, right: bool = False) -> str:
    """The text in exactly so many columns."""
    short = shortened(text, columns, cut)
    pad = " " * (columns - cells(short))
    return pad + short if right else short + pad


def cropped(line: Line, columns: int) -> Line:
    """As much of the line as fits."""
    kept: list[Piece] = []
    for text, style in line:
        part = head(text, columns)
        columns -= cells(part)
        if part:
            kept.append(Piece(part, style))
        if part != text:
            break
    return tuple(kept)


def joined(parts: Iterable[Line], between: str = "  ") -> Line:
    """Lines one after the other; those with nothing in them are left out."""
    pieces: list[Piece] = []
    for part in parts:
        if part:
            pieces += [Piece(between), *part] if pieces else part
    return tuple(pieces)


def text_of(line: Line) -> str:
    """The line without its styles."""
    return "".join(text for text, _ in line)


def ansi(line: Line) -> str:
    """The line with codes that ANSI terminals know."""
    return "".join(f"\x1b[{LOOKS[style].codes}m{text}\x1b[0m" if style else text for text, style in line)
