"""The file in which users of dcgm-exporter choose their metrics: `FIELD, type, help`, one a line. Pure."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from dataclasses import dataclass

LABEL = "label"
TYPES = ("gauge", "counter", LABEL)
SEPARATORS = 2
"""The third column is a sentence; commas in it separate nothing."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One line of it."""

    field: str
    type: str
    """`gauge` or `counter`, or `label`: then the field is a label of all the others."""
    help: str


def parse(text: str) -> tuple[Counter, ...]:
    """What the file chooses, of a field that is there twice the first; ValueError with the line that makes no sense."""
    found: dict[str, Counter] = {}
    for counter in _lines(text):
        found.setdefault(counter.field, counter)
    if not found:
        raise ValueError("it chooses no metric; write lines such as `DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature.`")
    return tuple(found.values())


def repeated(text: str) -> list[str]:
    """Fields of a good file that are there twice, as in one that dcgm-exporter itself comes with."""
    times = Counts(counter.field for counter in _lines(text))
    return [field for field, count in times.items() if count > 1]


def _lines(text: str) -> Iterator[Counter]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split(",", SEPARATORS)]
        if len(parts) <= SEPARATORS:
            raise ValueError(f"line {number}: {line.strip()!r} has no three parts; write `FIELD, type, help`")
        field, kind, help_text = parts
        if not (field.isascii() and field.isidentifier()):
            raise ValueError(f"line {number}: {field!r} is no name of a field; write it as DCGM_FI_DEV_GPU_TEMP")
        if kind not in TYPES:
            raise ValueError(f"line {number}: {kind!r} is no type; write one of {', '.join(TYPES)}")
        if help_text.startswith('"') and help_text.endswith('"') and len(help_text) > 1:
            help_text = help_text[1:-1].replace('""', '"')
        yield Counter(field, kind, help_text)
