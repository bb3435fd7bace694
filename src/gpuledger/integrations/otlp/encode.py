"""Encodes metrics as an ExportMetricsServiceRequest of OTLP, in protobuf. Pure.

Field numbers and names are those of opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from gpuledger.integrations.otlp.points import Attribute, Attributes, Metric, Point
from gpuledger.net.protobuf import Message, bytes_field, fixed64_field, number_field, text_field

CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE."""
SCOPE = "gpuledger"
LARGEST_INT = 1 << 63


def request(metrics: Iterable[Metric], resource: Attributes, version: str, time_ns: int) -> bytes:
    """The body of a request."""
    scope = bytes_field(1, text_field(1, SCOPE) + text_field(2, version))
    encoded = b"".join(bytes_field(2, _metric(metric, time_ns)) for metric in metrics)
    of_resource = bytes_field(1, b"".join(bytes_field(1, _attribute(pair)) for pair in resource))
    return bytes_field(1, of_resource + bytes_field(2, scope + encoded))


def _metric(metric: Metric, time_ns: int) -> bytes:
    now = fixed64_field(3, "Q", time_ns)
    points = b"".join(bytes_field(1, _point(point, now)) for point in metric.points)
    head = text_field(1, metric.name) + text_field(2, metric.description) + text_field(3, metric.unit)
    if metric.is_counter:
        return head + bytes_field(7, points + number_field(2, CUMULATIVE) + number_field(3, 1))
    return head + bytes_field(5, points)


def _point(point: Point, now: bytes) -> bytes:
    start = fixed64_field(2, "Q", point.start_ns) if point.start_ns else b""
    value = point.value
    if isinstance(value, int) and -LARGEST_INT <= value < LARGEST_INT:
        number = fixed64_field(6, "q", value)
    else:
        number = fixed64_field(4, "d", value)
    return start + now + number + _attributes(point.attributes)


@lru_cache(maxsize=20_000)
def _attributes(attributes: Attributes) -> bytes:
    """Attributes recur in every request, and are the largest part of it."""
    return b"".join(bytes_field(7, _attribute(pair)) for pair in attributes)


def _attribute(pair: Attribute) -> bytes:
    key, value = pair
    # One of both must be set, also to an empty text.
    encoded = number_field(3, value) if isinstance(value, int) else bytes_field(1, value.encode("utf-8", "replace"))
    return text_field(1, key) + bytes_field(2, encoded)


def rejected(body: bytes) -> tuple[int, str]:
    """How many points a collector rejected (partial success), and why. Raises ValueError if the answer is malformed."""
    message = Message(body).message(1)
    return message.number(1), message.text(2)
