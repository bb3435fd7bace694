"""A parser of the Prometheus text format. Raises only UpstreamError, whose message quotes nothing: problems are public.

dcgm-exporter repeats a label block on hundreds of series, so each distinct block is checked once. Values and
time stamps are kept as text. Memory is bounded by the limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gpuledger.errors import UpstreamError

# No pattern may be ambiguous: backtracking on a long line would take quadratic time.
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
MOST_METRICS = 10_000
"""A dcgm-exporter has 300. 99,000 metrics of one series each take 282 MB of memory."""
LINES = 4
"""Lines per series in the limit of lines: HELP, TYPE and comments. A compressed answer can have millions at no cost."""

Series = tuple[bytes, bytes | None, bytes]
"""Name, label block without braces (None if there are no braces), and value with an optional time stamp."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one response."""

    size: int = 32 << 20
    """Bytes after decompression; a GPU has some ten thousand. With 99,000 series of a dcgm-exporter, 28 MB, gpuledger
    takes 142 MB, and 185 MB if each has labels of its own."""
    series: int = 100_000
    line: int = 64 << 10


DEFAULT_LIMITS = Limits()


@dataclass(slots=True)
class ScrapedFamily:
    """All series of one metric, adjacent or not."""

    name: bytes
    help: bytes | None = None
    type: bytes = b""
    series: list[Series] = field(default_factory=list)

    @property
    def head(self) -> bytes:
        """The HELP and TYPE lines."""
        help_line = b"" if self.help is None else b"# HELP %b %b\n" % (self.name, self.help)
        return help_line + (b"# TYPE %b %b\n" % (self.name, self.type) if self.type else b"")


def pairs(block: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values of a valid label block; values keep their escapes."""
    return PAIR.findall(block)


class Parser:
    """Parses one response in pieces of any size."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._remainder = b""
        self._size = 0
        self._line = 0
        self._count = 0
        self._families: dict[bytes, ScrapedFamily] = {}
        self._blocks: dict[bytes, bytes] = {}
        """Valid label blocks, each stored once for all its series."""
        self._by_sample_name: dict[bytes, ScrapedFamily] = {}
        """Families by the name of a sample, which may have a suffix such as `_bucket`."""

    def feed(self, data: bytes) -> None:
        """Parse the next piece."""
        room = self._limits.size - self._size
        self._size += len(data)
        lines = (self._remainder + data[:room]).split(b"\n")
        self._remainder = lines.pop()
        self._parse_lines(lines)
        if len(self._remainder) > self._limits.line:
            self._line += 1
            raise self._too_long()
        if len(data) > room:
            raise UpstreamError(f"has more than {self._limits.size / (1 << 20):g} MiB", kind="size")

    def end(self) -> list[ScrapedFamily]:
        """All families. Raises UpstreamError if the last line does not end with a newline."""
        if self._remainder:
            raise UpstreamError(f"ends in the middle of line {self._line + 1}, so it is truncated", kind="half")
        if not self._count:
            raise UpstreamError("has no series", kind="empty")
        return [family for family in self._families.values() if family.series]

    def _parse_lines(self, lines: list[bytes]) -> None:
        sample, families, blocks = SAMPLE.fullmatch, self._by_sample_name, self._blocks
        longest, most = self._limits.line, LINES * self._limits.series
        for line in lines:
            self._line += 1
            if len(line) > longest:
                raise self._too_long()
            if self._line > most:
                raise UpstreamError(f"has more than {most} lines", kind="size")
            match = sample(line)
            if match is None:
                self._parse_comment(line)
                continue
            name, block, value = match.groups()
            family = families.get(name) or self._family_of(name)
            if block is not None:
                block = blocks.get(block) or self._checked(block)
            self._count += 1
            if self._count > self._limits.series:
                raise UpstreamError(f"has more than {self._limits.series} series", kind="size")
            family.series.append((family.name if name == family.name else name, block, value))

    def _parse_comment(self, line: bytes) -> None:
        """Parse a HELP or TYPE line, a comment or an empty line. Raises UpstreamError for other lines."""
        stripped = line.strip(b" \t")
        if not stripped:
            return
        if not stripped.startswith(b"#"):
            raise self._invalid("is not a sample")
        header = HEADER.fullmatch(stripped)
        if header is None:
            return
        kind, name, text = header[1], header[2], header[3] or b""
        family = self._families.get(name) or self._new(name)
        if kind == b"HELP" and family.help is None:  # the first HELP counts; a family may be repeated
            if not _is_text(text):
                raise self._invalid("is not UTF-8")
            family.help = text
        elif kind == b"TYPE" and not family.type:
            if text not in TYPES:
                raise self._invalid("has an unknown type")
            family.type = text
            for suffix in SUFFIXES.get(text, ()):
                self._by_sample_name.setdefault(name + suffix, family)

    def _family_of(self, name: bytes) -> ScrapedFamily:
        family = self._by_sample_name[name] = self._families.get(name) or self._new(name)
        return family

    def _new(self, name: bytes) -> ScrapedFamily:
        most = min(self._limits.series, MOST_METRICS)
        if len(self._families) >= most:
            raise UpstreamError(f"has more than {most} metrics", kind="size")
        family = self._families[name] = ScrapedFamily(name)
        return family

    def _checked(self, block: bytes) -> bytes:
        if not BLOCK.fullmatch(block):
            raise self._invalid("has malformed labels")
        names = [name for name, _ in pairs(block)]
        if len(set(names)) < len(names):
            raise self._invalid("has a duplicate label")
        if not _is_text(block):
            raise self._invalid("is not UTF-8")
        self._blocks[block] = block
        return block

    def _too_long(self) -> UpstreamError:
        return UpstreamError(
            f"is not in the text format: line {self._line} has more than {self._limits.line} bytes", kind="format"
        )

    def _invalid(self, what: str) -> UpstreamError:
        return UpstreamError(f"is not in the text format: line {self._line} {what}", kind="format")


def _is_text(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
