"""Label blocks: escaped once, when a thing is first seen, and reused for every series of it.

Escaping and joining eight labels costs five times as much as the rest of a line, so it is not done per line.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from gpuledger.catalog import Kind, Moment

LONGEST_VALUE = 1024
"""Characters kept of a label value: names come from containers, which may call themselves anything."""

MOST_KEPT = 20_000
"""Things of a kind whose text is kept; that of 80,000 pods would be 25 MB."""


def escape(value: str) -> str:
    """Make any text safe between the quotes of a label value."""
    if len(value) > LONGEST_VALUE:
        value = value[:LONGEST_VALUE]
    if not value.isascii():
        # A name with bytes that are no UTF-8 arrives with lone surrogates, which cannot be encoded.
        value = value.encode("utf-8", "replace").decode()
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def pairs(names: Iterable[str], values: Iterable[str]) -> str:
    """`a="1",b="2"`, without braces."""
    return ",".join([f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True)])


def sparse_pairs(names: Iterable[str], values: Iterable[str]) -> str:
    """As `pairs`, without the labels that have no value."""
    given = [(name, value) for name, value in zip(names, values, strict=True) if value]
    return pairs([name for name, _ in given], [value for _, value in given])


known_pairs = lru_cache(maxsize=4096)(pairs)
"""For labels that come again in every tick: clocks, sensors, reasons."""


class LabelBlocks:
    """The label text of every thing in a tick, kept from tick to tick while the thing is there."""

    def __init__(self) -> None:
        self._known: dict[Kind, dict[tuple[str, ...], str]] = {}

    def rows(self, tick: Moment, of: Kind) -> list[tuple[str, Any]]:
        """`(a="1",b="2", thing)` for all things of a kind; of two with equal labels only the first."""
        known = self._known.get(of, {})
        names = of.labels
        write = sparse_pairs if of.sparse else pairs
        current: dict[tuple[str, ...], str] = {}
        written: set[str] = set()
        rows = []
        for values, thing in of.things(tick):
            block = known.get(values) or write(names, values)
            if block in written:  # also when two differ only in what was cut off
                continue
            if len(current) < MOST_KEPT:
                current[values] = block
            written.add(block)
            rows.append((block, thing))
        self._known[of] = current
        return rows
