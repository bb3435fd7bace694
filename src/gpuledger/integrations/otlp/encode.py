"""Encodes metrics as an ExportMetricsServiceRequest of OTLP, in protobuf or JSON. Pure.

Field numbers and names are those of opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from gpuledger.integrations.otlp.points import Attribute, Attributes, Metric, Point
from gpuledger.net.answers import load_json
from gpuledger.net.protobuf import Message, bytes_field, fixed64_field, number_field, text_field

CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE."""
SCOPE = "gpuledger"
LARGEST_INT = 1 << 63


def protobuf(metrics: Iterable[Metric], resource: Attributes, version: str, time_ns: int) -> bytes:
    """A request in protobuf."""
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


def as_json(metrics: Iterable[Metric], resource: Attributes, version: str, time_ns: int) -> bytes:
    """A request in JSON: names in camel case, 64-bit integers as strings."""
    scope = {"name": SCOPE, "version": version}
    of_scope = {"scope": scope, "metrics": [_json_metric(metric, str(time_ns)) for metric in metrics]}
    of_resource = {"resource": {"attributes": _json_attributes(resource)}, "scopeMetrics": [of_scope]}
    return json.dumps({"resourceMetrics": [of_resource]}, separators=(",", ":")).encode()


def _json_metric(metric: Metric, now: str) -> dict[str, Any]:
    points = [_json_point(point, now) for point in metric.points]
    head = {"name": metric.name, "description": metric.description, "unit": metric.unit}
    if metric.is_counter:
        return head | {"sum": {"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": True}}
    return head | {"gauge": {"dataPoints": points}}


def _json_point(point: Point, now: str) -> dict[str, Any]:
    start = {"startTimeUnixNano": str(point.start_ns)} if point.start_ns else {}
    value = {"asInt": str(point.value)} if isinstance(point.value, int) else {"asDouble": point.value}
    return {"attributes": _json_attributes(point.attributes), **start, "timeUnixNano": now, **value}


def _json_attributes(attributes: Sequence[Attribute]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in attributes
    ]


def rejected(body: bytes, *, is_json: bool) -> tuple[int, str]:
    """How many points a collector rejected (partial success), and why. Raises ValueError if the answer is malformed."""
    if is_json:
        answer = load_json(body or b"{}")
        partial = answer.get("partialSuccess") if isinstance(answer, dict) else None
        if not isinstance(partial, dict):
            return 0, ""
        return int(partial.get("rejectedDataPoints") or 0), str(partial.get("errorMessage") or "")
    message = Message(body).message(1)
    return message.number(1), message.text(2)
