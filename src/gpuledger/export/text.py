"""Ticks as Prometheus text 0.0.4 or OpenMetrics 1.0, one family at a time.

The two formats share their sample lines; they differ in the lines above them (see `openmetrics.py`) and in the end.
Only one family is ever in memory as text, so that 100,000 series stay cheap to hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuledger.catalog import CATALOG, Family, Of, Type
from gpuledger.export import openmetrics
from gpuledger.export.labels import LabelBlocks, pairs
from gpuledger.export.negotiate import Format
from gpuledger.model import Tick


def header(family: Family) -> str:
    """HELP and TYPE of a family in the text format."""
    kind = Type.GAUGE if family.type is Type.INFO else family.type
    text = help_text(family).replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {kind.value}\n"


def help_text(family: Family) -> str:
    """What it is, and who says so."""
    return f"{family.help} From {family.origin}."


class Renderer:
    """Writes ticks in both formats. Not thread-safe: the label cache belongs to one caller at a time."""

    def __init__(self, catalog: Sequence[Family] = CATALOG) -> None:
        self._families = catalog
        self._blocks = LabelBlocks()
        self._headers = {
            Format.TEXT: [header(f) for f in catalog],
            Format.OPENMETRICS: [openmetrics.header(f, help_text(f)) for f in catalog],
        }

    def chunks(self, tick: Tick, fmt: Format) -> Iterator[bytes]:
        """The body, a family a chunk; families without a value are left out."""
        rows = {of: self._blocks.rows(tick, of) for of in Of}
        for family, head in zip(self._families, self._headers[fmt], strict=True):
            lines = _lines(family, rows[family.of])
            if lines:
                yield (head + "".join(lines)).encode()
        if fmt is Format.OPENMETRICS:
            yield openmetrics.END


def _lines(family: Family, rows: list[tuple[str, object]]) -> list[str]:
    name = family.name
    if family.value is not None:
        read = family.value
        start, stop = ("", " ") if family.of is Of.EXPORTER else ("{", "} ")
        return [f"{name}{start}{block}{stop}{v}\n" for block, thing in rows if (v := read(thing)) is not None]
    assert family.series is not None  # noqa: S101 - the catalog's test holds that one of the two is set
    comma = "" if family.of is Of.EXPORTER else ","
    return [
        f"{name}{{{block}{comma}{pairs(family.labels, values)}}} {v}\n"
        for block, thing in rows
        for values, v in family.series(thing)
    ]
