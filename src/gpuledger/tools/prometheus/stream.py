"""Parses the series of a query while they arrive: 80,000 series as one JSON tree would take 60 MB and a second.

All series but the first and the last are cut out of the text as they arrive; `parse` parses the remainder as an
ordinary response. A response with other white space cannot be cut and is parsed as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import isfinite

from gpuledger.errors import PrometheusError
from gpuledger.net.answers import Elements, ElementsError, load_json
from gpuledger.tools.prometheus.answer import Answer, Series, format_error, parse, series_of, size_error

START, BETWEEN, END = b'[{"metric":', b'},{"metric":', b"}]"
"""Text around series, the same for all servers. Cannot occur in a label value, where quotes are escaped."""
PART_BYTES = 256 << 10
"""About 2,000 series."""
LARGEST_PART = 16 << 20
"""Bytes without a complete series."""
MOST_SERIES = 200_000
PLAIN = re.compile(
    r'\{"metric":\{([^{}\\]*?),?"uuid":"([^"\\]+)"(?:,([^{}\\]*))?\},"value":\[[^"\[\]{}]+,"([^"\\]+)"\]\}'
)
"""A series with a UUID and without escapes: the labels before the UUID, the UUID, the labels after it, the value."""
LABEL = re.compile('"([^"]*)":"([^"]*)"')

Labels = Mapping[str, str]
GpuId = str | tuple[tuple[str, str], ...]
GpuSample = tuple[GpuId, Labels, float]
"""The identity of a GPU, its labels (maybe without the UUID) and the value."""
Sink = Callable[[list[GpuSample]], None]
NO_LABELS: Labels = {}


def identity(labels: Labels) -> GpuId:
    """UUID and MIG instance; without a UUID, all labels, so that each series counts as a GPU."""
    uuid = labels.get("uuid") or labels.get("UUID")
    if uuid:
        instance = labels.get("GPU_I_ID")
        return f"{uuid}/{instance}" if instance else uuid
    return tuple(sorted([item for item in labels.items() if item[0] != "__name__"]))


def read(pieces: Iterable[bytes], query: str, sink: Sink) -> Answer:
    """Parse a response like `answer.parse`, but pass the samples to `sink` in parts."""
    remainder, count, dropped, is_broken = b"", 0, 0, False
    elements = Elements(MOST_SERIES)
    for head, middle, rest in _cut(pieces):
        remainder = head + rest
        if middle and not is_broken:
            try:
                elements.add(middle.count(BETWEEN) + 1)
                series, without_number = _part(middle)
            except ElementsError as error:
                raise size_error(error) from None
            except (ValueError, RecursionError):
                is_broken = True  # the remainder may contain the reason
                continue
            sink(series)
            count, dropped = count + len(series), dropped + without_number
    answer = parse(remainder, query)
    if is_broken:
        raise format_error(query)
    sink(_identified(answer.series))
    return replace(answer, series=(), count=answer.count + count, dropped=answer.dropped + dropped)


def _cut(pieces: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Parts of the response: the text before the second series, complete series, and the incomplete remainder."""
    head, buffer, size, threshold = b"", [b""], 0, PART_BYTES
    for piece in pieces:
        buffer.append(piece)
        size += len(piece)
        if size < threshold:
            continue
        whole, separator, remainder = b"".join(buffer).rpartition(BETWEEN)
        buffer, size = [remainder], len(remainder)
        if not separator:
            if size > LARGEST_PART:
                what = f"responds with more than {LARGEST_PART >> 20} MiB that are not series"
                raise PrometheusError(what, "check whether it is a Prometheus", "size")
            threshold *= 2  # do not search the same text again for every piece
            continue
        if not head:
            first, _, whole = whole.partition(BETWEEN)
            head = first + BETWEEN
        yield head, whole, remainder
    yield head, b"", b"".join(buffer)


def _part(middle: bytes) -> tuple[list[GpuSample], int]:
    """The samples with a finite value in a part of a response, and the count of the others."""
    whole = START + middle + END
    plain = PLAIN.findall(whole.decode())  # a quarter of the time of JSON, but not for all series
    size = middle.count(BETWEEN) + 1
    if len(plain) < size or b'"GPU_I_ID"' in middle:
        series, without_number = series_of(load_json(whole))
        return _identified(series), without_number
    label_sets: dict[tuple[str, str], Labels] = {("", ""): NO_LABELS}
    samples: list[GpuSample] = []
    for before, uuid, after, text in plain:
        if (labels := label_sets.get((before, after))) is None:
            labels = label_sets[before, after] = dict(LABEL.findall(before + after))
        value = float(text)
        if isfinite(value):
            samples.append((uuid, labels, value))
    return samples, size - len(samples)


def _identified(series: Iterable[Series]) -> list[GpuSample]:
    return [(identity(labels), labels, value) for labels, value in series]
