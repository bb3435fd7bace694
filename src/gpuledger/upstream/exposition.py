"""Prometheus text as it arrives: any pieces of bytes in, families of series out, or one UpstreamError.

A dcgm-exporter writes the same label block on hundreds of series, so a block is looked into once, when it is first
met; values and time stamps stay the text they are. Nothing here grows past the limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuledger.upstream.failure import UpstreamError

# Of a line that does not match, no pattern may try one piece of text in two ways: lines are long, and time is squared.
_NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*"
_NUMBER = rb"(?:[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?[iI]nf|NaN|nan)"
_QUOTED = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_LABEL = rb"[a-zA-Z_][a-zA-Z0-9_]*"
_SPACE = rb"[ \t]*"

SAMPLE = re.compile(
    rb"%b(%b)(?:%b\{(.*)\}%b|[ \t]+)(%b(?:[ \t]+-?[0-9]{1,18})?)%b"
    % (_SPACE, _NAME, _SPACE, _SPACE, _NUMBER, _SPACE)
)  # fmt: skip
HEADER = re.compile(rb"#[ \t]+(HELP|TYPE)[ \t]+(%b)(?:[ \t]+(.*))?" % _NAME)
BLOCK = re.compile(rb"(?:%b%b%b=%b%b%b(?:,|$))*%b" % (_SPACE, _LABEL, _SPACE, _SPACE, _QUOTED, _SPACE, _SPACE))
PAIR = re.compile(rb'(%b)%b=%b"([^"\\]*(?:\\.[^"\\]*)*)"' % (_LABEL, _SPACE, _SPACE))
TYPES = (b"counter", b"gauge", b"histogram", b"summary", b"untyped")
SUFFIXES = {b"histogram": (b"_bucket", b"_sum", b"_count"), b"summary": (b"_sum", b"_count")}
SHOWN = 80
"""Bytes of a bad line that the error quotes."""

Series = tuple[bytes, bytes | None, bytes]
"""A sample's name, the text between its braces if it has them, and its value, with its time stamp if it has one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of an answer is taken."""

    size: int = 32 << 20
    """Bytes, when no longer compressed; a GPU has some ten thousand. The worst of this size takes 250 MB of memory."""
    series: int = 100_000
    line: int = 64 << 10


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class Family:
    """All series under one name, also where they did not stand together."""

    name: bytes
    help: bytes | None = None
    type: bytes = b""
    series: list[Series] = field(default_factory=list)

    @property
    def head(self) -> bytes:
        """The lines above its samples."""
        said = b"" if self.help is None else b"# HELP %b %b\n" % (self.name, self.help)
        return said + (b"# TYPE %b %b\n" % (self.name, self.type) if self.type else b"")


def pairs(block: bytes) -> list[tuple[bytes, bytes]]:
    """The labels of a block that was found to be good; values as they are written, with their escapes."""
    return PAIR.findall(block)


class Parser:
    """Takes one answer in pieces. However it is cut, the outcome is the same."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._rest = b""
        self._size = 0
        self._line = 0
        self._count = 0
        self._families: dict[bytes, Family] = {}
        self._blocks: dict[bytes, bytes] = {}
        """Each block that was found to be good, kept once for all series that have it."""
        self._of: dict[bytes, Family] = {}
        """By the names of samples."""

    def feed(self, data: bytes) -> None:
        """The next piece."""
        room = self._limits.size - self._size
        self._size += len(data)
        lines = (self._rest + data[:room]).split(b"\n")
        self._rest = lines.pop()
        self._take(lines)
        if len(self._rest) > self._limits.line:
            self._line += 1
            raise self._too_long()
        if len(data) > room:
            raise UpstreamError("size", f"has more than {self._limits.size / (1 << 20):g} MiB")

    def end(self) -> list[Family]:
        """Everything, when the answer is whole: its last line ends like all others."""
        if self._rest:
            raise UpstreamError("half", f"ends in the middle of line {self._line + 1}, so the rest is missing")
        if not self._count:
            raise UpstreamError("empty", "has no series")
        return [family for family in self._families.values() if family.series]

    def _take(self, lines: list[bytes]) -> None:
        sample, of, blocks, longest = SAMPLE.fullmatch, self._of, self._blocks, self._limits.line
        for line in lines:
            self._line += 1
            if len(line) > longest:
                raise self._too_long()
            found = sample(line)
            if found is None:
                self._other(line)
                continue
            name, block, value = found.groups()
            family = of.get(name) or self._family_of(name)
            if block is not None:
                block = blocks.get(block) or self._checked(block)
            self._count += 1
            if self._count > self._limits.series:
                raise UpstreamError("size", f"has more than {self._limits.series} series")
            family.series.append((family.name if name == family.name else name, block, value))

    def _other(self, line: bytes) -> None:
        """A line that is no sample: HELP, TYPE, a comment, nothing, or garbage."""
        text = line.strip(b" \t")
        if not text:
            return
        if not text.startswith(b"#"):
            raise self._bad("is no sample", line)
        found = HEADER.fullmatch(text)
        if found is None:
            return
        kind, name, said = found[1], found[2], found[3] or b""
        family = self._families.get(name) or self._new(name)
        if kind == b"HELP" and family.help is None:  # the first counts: the same name may come again further down
            if not _is_text(said):
                raise self._bad("is not UTF-8", line)
            family.help = said
        elif kind == b"TYPE" and not family.type:
            if said not in TYPES:
                raise self._bad("names no known type", line)
            family.type = said
            for suffix in SUFFIXES.get(said, ()):
                self._of.setdefault(name + suffix, family)

    def _family_of(self, name: bytes) -> Family:
        family = self._of[name] = self._families.get(name) or self._new(name)
        return family

    def _new(self, name: bytes) -> Family:
        if len(self._families) >= self._limits.series:
            raise UpstreamError("size", f"has more than {self._limits.series} metrics")
        family = self._families[name] = Family(name)
        return family

    def _checked(self, block: bytes) -> bytes:
        if not BLOCK.fullmatch(block):
            raise self._bad("has labels that cannot be read", block)
        names = [name for name, _ in pairs(block)]
        if len(set(names)) < len(names):
            raise self._bad("has a label twice", block)
        if not _is_text(block):
            raise self._bad("is not UTF-8", block)
        self._blocks[block] = block
        return block

    def _too_long(self) -> UpstreamError:
        return UpstreamError("format", f"is no metrics: line {self._line} has more than {self._limits.line} bytes")

    def _bad(self, what: str, text: bytes) -> UpstreamError:
        shown = text[:SHOWN].decode("utf-8", "replace")
        return UpstreamError("format", f"is no metrics: line {self._line} {what}: {shown!r}")


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
