"""Ticks as Prometheus text 0.0.4 or OpenMetrics 1.0, one family at a time.

The two formats share their sample lines; they differ in the lines above them (see `openmetrics.py`) and in the end.
Only a slice of a family is ever in memory as text, so that 100,000 series stay cheap to hold. Families of a few
series are kept from tick to tick: most of what is said of a GPU is the same as a second ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuledger.catalog import CATALOG, Family, Moment, Type
from gpuledger.export import openmetrics
from gpuledger.export.labels import LabelBlocks, known_pairs
from gpuledger.export.negotiate import Format

SLICE = 500
"""Things whose lines are made at once; a family of at most so many is kept."""

Row = tuple[str, Any]


def header(family: Family) -> str:
    """HELP and TYPE of a family in the text format."""
    kind = Type.GAUGE if family.type is Type.INFO else family.type
    text = help_text(family).replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {kind.value}\n"


def help_text(family: Family) -> str:
    """What it is, and who says so."""
    return f"{family.help} From {family.origin}."


class Renderer:
    """Writes ticks in both formats. One caller at a time may start a body; several may be read at once."""

    def __init__(self, catalog: Sequence[Family] = CATALOG) -> None:
        self._families = [Lines(family) for family in catalog]
        self._kinds = list(dict.fromkeys(family.of for family in catalog))
        self._blocks = LabelBlocks()
        self.openmetrics = all(openmetrics.can_write(family) for family in catalog)
        """Whether all names are such as OpenMetrics allows."""
        self._headers = {
            Format.TEXT: [header(f) for f in catalog],
            Format.OPENMETRICS: [openmetrics.header(f, help_text(f)) for f in catalog],
        }

    def chunks(self, tick: Moment, fmt: Format) -> Iterator[bytes]:
        """The body in pieces, none of more than one family; families without a value are left out."""
        rows = {of: self._blocks.rows(tick, of) for of in self._kinds}
        for lines, head in zip(self._families, self._headers[fmt], strict=True):
            if lines.family.needs and getattr(tick, lines.family.needs) is None:
                continue
            start = head
            for text in lines.of(rows[lines.family.of]):
                if text:
                    yield (start + text).encode()
                    start = ""
        if fmt is Format.OPENMETRICS:
            yield openmetrics.END


class Lines:
    """The sample lines of one family, and those it gave last as long as they are few."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._before: tuple[list[str], list[Any], str] = ([], [], "")

    def of(self, rows: Sequence[Row]) -> Iterator[str]:
        """Lines of these things, a slice at a time."""
        if len(rows) <= SLICE:
            yield self._kept(rows)
            return
        self._before = ([], [], "")
        for start in range(0, len(rows), SLICE):
            some = rows[start : start + SLICE]
            yield self._text([block for block, _ in some], self._values(some))

    def _kept(self, rows: Sequence[Row]) -> str:
        blocks, values = [block for block, _ in rows], self._values(rows)
        blocks_before, values_before, text = self._before
        if blocks != blocks_before or values != values_before:
            text = self._text(blocks, values)
            self._before = (blocks, values, text)
        return text

    def _values(self, rows: Sequence[Row]) -> list[Any]:
        family = self.family
        if family.value is not None:
            read = family.value
            return [read(thing) for _, thing in rows]
        assert family.series is not None  # noqa: S101 - the catalog's test holds that one of the two is set
        series = family.series
        return [list(series(thing)) for _, thing in rows]

    def _text(self, blocks: list[str], values: list[Any]) -> str:
        name, labels, bare = self.family.name, self.family.labels, not self.family.of.labels
        if self.family.value is not None:
            start, stop = (name, " ") if bare else (f"{name}{{", "} ")
            return "".join([
                f"{start}{block}{stop}{v}\n" for block, v in zip(blocks, values, strict=True) if v is not None
            ])  # fmt: skip
        comma = "" if bare else ","
        return "".join([
            f"{name}{{{block}{comma}{known_pairs(labels, extra)}}} {v}\n"
            for block, series in zip(blocks, values, strict=True)
            for extra, v in series
        ])  # fmt: skip
