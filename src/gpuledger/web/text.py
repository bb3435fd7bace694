"""Renders ticks as Prometheus text 0.0.4 or OpenMetrics 1.0, one family at a time.

The two formats share their sample lines; they differ in the header of a family and in the end. Only a slice of a family
is in memory as text at a time, so that 100,000 series stay cheap. Small families are cached from tick to tick: most
values of a GPU are the same as a second ago. Label blocks are cached while their owner exists:
escaping and joining eight labels costs five times as much as the rest of a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from gpuledger.catalog import CATALOG, Family, Kind, Moment, Type
from gpuledger.catalog.family import Thing, with_things
from gpuledger.web.negotiate import Format

SLICE = 500
"""Things that are rendered at once; a family of at most this many is cached."""
LONGEST_VALUE = 1024
"""Characters of a label value; a container can have any name."""
CACHED_BLOCKS = 20_000
"""Label blocks cached per kind; those of 80,000 pods would be 25 MB."""
SUFFIX = {Type.COUNTER: "_total", Type.INFO: "_info", Type.GAUGE: ""}
"""The ending that OpenMetrics requires."""

END = b"# EOF\n"
"""The last line of OpenMetrics."""

LabelledThing = tuple[str, Any]
"""A label block, and the thing that has these labels."""


class Renderer:
    """Renders ticks in both formats. Bodies must be started one at a time; several may be read concurrently."""

    def __init__(
        self, catalog: Sequence[Family] = CATALOG, *, created: bool = False, blocks: LabelBlocks | None = None
    ) -> None:
        """With `created`, OpenMetrics has the time at which each counter was 0, where it is known.

        `blocks` can be shared by renderers that run one at a time.
        """
        self._catalog, self._created = catalog, created
        self._renderers = {family.name: FamilyRenderer(family) for family in catalog}
        self._blocks = blocks or LabelBlocks()
        self.openmetrics = all(family.name.endswith(SUFFIX[family.type]) for family in catalog)
        """Whether all names are valid in OpenMetrics; those of other exporters often are not."""

    def chunks(self, tick: Moment, fmt: Format) -> Iterator[bytes]:
        """The body in chunks of at most one family."""
        yield from self.families(tick, fmt)
        if fmt is Format.OPENMETRICS:
            yield END

    def families(self, tick: Moment, fmt: Format) -> Iterator[bytes]:
        """The same without the end. Families without a value are omitted."""
        with_created = self._created and fmt is Format.OPENMETRICS
        for family, rows in with_things(self._catalog, tick, self._blocks.label):
            renderer = self._renderers[family.name]
            prefix = renderer.headers[fmt]
            for text in renderer.created(rows) if with_created else renderer.slices(rows):
                if text:
                    yield (prefix + text).encode()
                    prefix = ""


def help_text(family: Family) -> str:
    """The HELP of a family: what it measures, and its source."""
    return f"{family.help} From {family.origin}."


def text_header(family: Family) -> str:
    """HELP and TYPE in the text format."""
    kind = Type.GAUGE if family.type is Type.INFO else family.type
    text = help_text(family).replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {kind.value}\n"


def openmetrics_header(family: Family) -> str:
    """TYPE, UNIT and HELP in OpenMetrics, where the family's name lacks the suffix of its samples."""
    name = family.name.removesuffix(SUFFIX[family.type])
    text = help_text(family).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
    return f"# TYPE {name} {family.type.value}\n{unit}# HELP {name} {text}\n"


class FamilyRenderer:
    """Renders the sample lines of one family, and caches the last ones if they are few."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.headers = {Format.TEXT: text_header(family), Format.OPENMETRICS: openmetrics_header(family)}
        self._last: tuple[list[str], list[Any], str] = ([], [], "")

    def slices(self, rows: Sequence[LabelledThing]) -> Iterator[str]:
        """The lines of these things, a slice at a time."""
        if len(rows) <= SLICE:
            yield self._cached(rows)
            return
        self._last = ([], [], "")
        for start in range(0, len(rows), SLICE):
            part = rows[start : start + SLICE]
            yield self._text([block for block, _ in part], self._values(part))

    def created(self, rows: Sequence[LabelledThing]) -> Iterator[str]:
        """The lines of these things; a counter is followed by the time at which it was 0, if that is known."""
        read = self.family.of.created
        if self.family.type is not Type.COUNTER or read is None:
            yield from self.slices(rows)
            return
        name = self.family.name
        created_name = f"{name.removesuffix(SUFFIX[Type.COUNTER])}_created"
        for block, thing in rows:
            lines, time_s = self._text([block], self._values([(block, thing)])), read(thing)
            if time_s is None:
                yield lines
                continue
            yield "".join([
                f"{line}\n{created_name}{line.rpartition(' ')[0].removeprefix(name)} {time_s}\n"
                for line in lines.split("\n")[:-1]  # a label may contain other separators of lines
            ])  # fmt: skip

    def _cached(self, rows: Sequence[LabelledThing]) -> str:
        blocks, values = [block for block, _ in rows], self._values(rows)
        last_blocks, last_values, text = self._last
        if blocks != last_blocks or values != last_values:
            text = self._text(blocks, values)
            self._last = (blocks, values, text)
        return text

    def _values(self, rows: Sequence[LabelledThing]) -> list[Any]:
        family = self.family
        if family.value is not None:
            read = family.value
            return [read(thing) for _, thing in rows]
        assert family.series is not None  # noqa: S101 - a test of the catalog checks that one of the two is set
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
            f"{name}{{{block}{comma}{cached_pairs(labels[: len(extra)], extra)}}} {v}\n"
            for block, series in zip(blocks, values, strict=True)
            for extra, v in series
        ])  # fmt: skip


def escape(value: str) -> str:
    """A text escaped as a label value, without the quotes."""
    if len(value) > LONGEST_VALUE:
        value = value[:LONGEST_VALUE]
    if not value.isascii():
        # Bytes that are not UTF-8 arrive as lone surrogates, which cannot be encoded.
        value = value.encode("utf-8", "replace").decode()
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def pairs(names: Iterable[str], values: Iterable[str]) -> str:
    """`a="1",b="2"`, without braces."""
    return ",".join([f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True)])


def sparse_pairs(names: Iterable[str], values: Iterable[str]) -> str:
    """Like `pairs`, without labels that are empty."""
    present = [(name, value) for name, value in zip(names, values, strict=True) if value]
    return pairs([name for name, _ in present], [value for _, value in present])


cached_pairs = lru_cache(maxsize=4096)(pairs)
"""For labels that recur in every tick, such as clocks, sensors and reasons."""


class LabelBlocks:
    """The label block of every thing in a tick, cached while the thing exists."""

    def __init__(self) -> None:
        self._cache: dict[Kind, dict[tuple[str, ...], str]] = {}

    def label(self, kind: Kind, things: Iterable[Thing]) -> Iterator[LabelledThing]:
        """Each thing with its label block. Labels that differ only beyond LONGEST_VALUE have equal blocks."""
        cache = self._cache.get(kind, {})
        render = sparse_pairs if kind.sparse else pairs
        current: dict[tuple[str, ...], str] = {}
        for values, thing in things:
            block = cache.get(values) or render(kind.labels, values)
            if len(current) < CACHED_BLOCKS:
                current[values] = block
            yield block, thing
        self._cache[kind] = current
