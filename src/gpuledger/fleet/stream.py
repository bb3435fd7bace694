"""The series of a query, parsed as they arrive: 80,000 of them as one JSON tree take 60 MB and a second.

All but the first and the last series are cut out as they arrive; `parse` reads the rest as an ordinary answer. An
answer that is written in another way has no places to cut at, and is read whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite

from gpuledger.fleet.answer import Answer, BrokenError, Series, format_error, parse, series_of

START, BETWEEN, END = b'[{"metric":', b'},{"metric":', b"}]"
"""The text around series, as all servers write it. It occurs in no label value: quotes there are escaped."""
PART_BYTES = 256 << 10
"""About 2,000 series."""
PLAIN = re.compile(
    r'\{"metric":\{([^{}\\]*?),?"uuid":"([^"\\]+)"(?:,([^{}\\]*))?\},"value":\[[^"\[\]{}]+,"([^"\\]+)"\]\}'
)
"""A series with a UUID and without escapes: the labels before the UUID, the UUID, the labels after it, the value."""
LABEL = re.compile('"([^"]*)":"([^"]*)"')

Labels = Mapping[str, str]
Which = str | tuple[tuple[str, str], ...]
Found = tuple[Which, Labels, float]
"""The identity of a GPU, its labels (maybe without the UUID) and the value."""
Take = Callable[[list[Found]], None]
NO_LABELS: Labels = {}


def identity(labels: Labels) -> Which:
    """The GPU of a series: its UUID and MIG instance, or without a UUID all labels, so that each series is a GPU."""
    uuid = labels.get("uuid") or labels.get("UUID")
    if uuid:
        instance = labels.get("GPU_I_ID")
        return f"{uuid}/{instance}" if instance else uuid
    return tuple(sorted([item for item in labels.items() if item[0] != "__name__"]))


def read(pieces: Iterable[bytes], query: str, take: Take) -> Answer:
    """Parse an answer like `answer.parse`, with the series going to `take`, part by part."""
    remainder, count, dropped, is_broken = b"", 0, 0, False
    for head, middle, rest in _cut(pieces):
        remainder = head + rest
        if middle and not is_broken:
            try:
                series, without_number = _part(middle)
            except (ValueError, RecursionError, BrokenError):
                is_broken = True  # the remainder may have the reason
                continue
            take(series)
            count, dropped = count + len(series), dropped + without_number
    answer = parse(remainder, query)
    if is_broken:
        raise format_error(query)
    take(_identified(answer.series))
    return replace(answer, series=(), count=answer.count + count, dropped=answer.dropped + dropped)


def _cut(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The text before the second series, some complete series, and the incomplete rest; at last the whole rest."""
    head, buffer, size, threshold = b"", [b""], 0, PART_BYTES
    for piece in pieces:
        buffer.append(piece)
        size += len(piece)
        if size < threshold:
            continue
        whole, cut, rest = b"".join(buffer).rpartition(BETWEEN)
        buffer, size = [rest], len(rest)
        if not cut:
            threshold *= 2  # text without a place to cut at is not searched again for every piece
            continue
        if not head:
            first, _, whole = whole.partition(BETWEEN)
            head = first + BETWEEN
        yield head, whole, rest
    yield head, b"", b"".join(buffer)


def _part(middle: bytes) -> tuple[list[Found], int]:
    """The series with a number in a part of an answer, and the count of those without."""
    whole = START + middle + END
    plain = PLAIN.findall(whole.decode())  # a quarter of the time of JSON, but not for all series
    size = middle.count(BETWEEN) + 1
    if len(plain) < size or b'"GPU_I_ID"' in middle:
        series, without_number = series_of(json.loads(whole))
        return _identified(series), without_number
    label_sets: dict[tuple[str, str], Labels] = {("", ""): NO_LABELS}
    found: list[Found] = []
    for before, uuid, after, text in plain:
        if (labels := label_sets.get((before, after))) is None:
            labels = label_sets[before, after] = dict(LABEL.findall(before + after))
        value = float(text)
        if isfinite(value):
            found.append((uuid, labels, value))
    return found, size - len(found)


def _identified(series: Iterable[Series]) -> list[Found]:
    return [(identity(labels), labels, value) for labels, value in series]
