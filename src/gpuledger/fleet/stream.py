"""The series of GPUs in an answer as it arrives: 80,000 of them as JSON are 60 MB, and a second to make.

All but the first and the last series are cut out as they arrive. What is left is an answer like any other, for `parse`.
One that is written in another way has no place to cut at, and is read whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite

from gpuledger.fleet.answer import Answer, BrokenError, Series, parse, series_of, strange

START, BETWEEN, END = b'[{"metric":', b'},{"metric":', b"}]"
"""Around series, as all servers write them. No label value holds it: a quote in a text is escaped."""
PART_BYTES = 256 << 10
"""About 2,000 series."""
PLAIN = re.compile(
    r'\{"metric":\{([^{}\\]*?),?"uuid":"([^"\\]+)"(?:,([^{}\\]*))?\},"value":\[[^"\[\]{}]+,"([^"\\]+)"\]\}'
)
"""A series with a UUID and nothing escaped: labels before it, the UUID, labels after it, and the value."""
LABEL = re.compile('"([^"]*)":"([^"]*)"')

Labels = Mapping[str, str]
Which = str | tuple[tuple[str, str], ...]
Found = tuple[Which, Labels, float]
"""Which GPU, its labels but maybe for the UUID, and the value."""
Take = Callable[[list[Found]], None]
NO_LABELS: Labels = {}


def identity(labels: Labels) -> Which:
    """Which GPU a series speaks of: its UUID, and the instance of it; else all labels, so each series is one."""
    uuid = labels.get("uuid") or labels.get("UUID")
    if uuid:
        instance = labels.get("GPU_I_ID")
        return f"{uuid}/{instance}" if instance else uuid
    return tuple(sorted([item for item in labels.items() if item[0] != "__name__"]))


def read(pieces: Iterable[bytes], query: str, take: Take) -> Answer:
    """As `parse`, but the series go to `take`, part by part."""
    left, count, dropped, broken = b"", 0, 0, False
    for head, middle, rest in _cut(pieces):
        left = head + rest
        if middle and not broken:
            try:
                found, without = _part(middle)
            except (ValueError, RecursionError, BrokenError):
                broken = True  # what is left may say why
                continue
            take(found)
            count, dropped = count + len(found), dropped + without
    answer = parse(left, query)
    if broken:
        raise strange(query)
    take(_named(answer.series))
    return replace(answer, series=(), count=answer.count + count, dropped=answer.dropped + dropped)


def _cut(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """What comes before the second series, some whole series, and what is not whole yet; the last time, all of it."""
    head, waiting, size, enough = b"", [b""], 0, PART_BYTES
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size < enough:
            continue
        whole, cut, rest = b"".join(waiting).rpartition(BETWEEN)
        waiting, size = [rest], len(rest)
        if not cut:
            enough *= 2  # what cannot be cut is not looked through again for every piece
            continue
        if not head:
            first, _, whole = whole.partition(BETWEEN)
            head = first + BETWEEN
        yield head, whole, rest
    yield head, b"", b"".join(waiting)


def _part(middle: bytes) -> tuple[list[Found], int]:
    """Of series without what is around them: those with a number, and how many have none."""
    whole = START + middle + END
    plain = PLAIN.findall(whole.decode())  # a quarter of the time, but it does not know all that may come
    size = middle.count(BETWEEN) + 1
    if len(plain) < size or b'"GPU_I_ID"' in middle:
        found, without = series_of(json.loads(whole))
        return _named(found), without
    known: dict[tuple[str, str], Labels] = {("", ""): NO_LABELS}
    taken: list[Found] = []
    for before, uuid, after, text in plain:
        if (labels := known.get((before, after))) is None:
            labels = known[before, after] = dict(LABEL.findall(before + after))
        value = float(text)
        if isfinite(value):
            taken.append((uuid, labels, value))
    return taken, size - len(taken)


def _named(series: Iterable[Series]) -> list[Found]:
    return [(identity(labels), labels, value) for labels, value in series]
