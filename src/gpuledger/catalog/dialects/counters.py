"""Parses the CSV file that selects the metrics of dcgm-exporter: one `FIELD, type, help` per line. Pure."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator
from dataclasses import dataclass

LABEL = "label"
TYPES = ("gauge", "counter", LABEL)
SEPARATORS = 2
"""The third column is a sentence that may contain commas."""


@dataclass(frozen=True, slots=True)
class Counter:
    """One line of the file."""

    field: str
    type: str
    """`gauge`, `counter`, or `label`: a field that becomes a label of all other fields."""
    help: str


def parse(text: str) -> tuple[Counter, ...]:
    """The counters of a file; of duplicate fields, the first. Raises ValueError that names the invalid line."""
    counters: dict[str, Counter] = {}
    for counter in _lines(text):
        counters.setdefault(counter.field, counter)
    if not counters:
        raise ValueError("no metric is selected; write lines such as `DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature.`")
    return tuple(counters.values())


def duplicates(text: str) -> list[str]:
    """Duplicate fields of a valid file; one of dcgm-exporter's own files has some."""
    times = Counts(counter.field for counter in _lines(text))
    return [field for field, count in times.items() if count > 1]


def _lines(text: str) -> Iterator[Counter]:
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = [part.strip() for part in line.split(",", SEPARATORS)]
        if len(parts) <= SEPARATORS:
            raise ValueError(f"line {number}: {line.strip()!r} does not have three columns; write `FIELD, type, help`")
        field, kind, help_text = parts
        if not (field.isascii() and field.isidentifier()):
            raise ValueError(f"line {number}: {field!r} is not a field name; write it as DCGM_FI_DEV_GPU_TEMP")
        if kind not in TYPES:
            raise ValueError(f"line {number}: {kind!r} is not a type; use one of {', '.join(TYPES)}")
        if help_text.startswith('"') and help_text.endswith('"') and len(help_text) > 1:
            help_text = help_text[1:-1].replace('""', '"')
        yield Counter(field, kind, help_text)
