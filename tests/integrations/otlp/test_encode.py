"""Requests of OTLP, read by OpenTelemetry's own definitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from gpuledger.integrations.otlp.encode import rejected, request
from gpuledger.integrations.otlp.points import Metric, Point
from tests.integrations.otlp.collector import PARTIAL

TEXTS = st.text(max_size=20)
VALUES = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ATTRIBUTES = st.lists(st.tuples(TEXTS, TEXTS | st.integers(0, 2**31)), max_size=3).map(tuple)
POINTS = st.builds(Point, ATTRIBUTES, VALUES, st.integers(0, 2**63))
METRICS = st.builds(Metric, TEXTS, TEXTS, TEXTS, st.booleans(), st.lists(POINTS, max_size=3))


@given(st.lists(METRICS, max_size=4), ATTRIBUTES, st.integers(0, 2**63))
def test_any_metric_is_read_back(metrics: list[Metric], resource: tuple[tuple[str, str]], now: int) -> None:
    """Names, values, times and attributes arrive as they were sent."""
    message = ExportMetricsServiceRequest.FromString(request(metrics, resource, "1.0", now))

    (of_resource,) = message.resource_metrics
    (of_scope,) = of_resource.scope_metrics
    assert [pair.key for pair in of_resource.resource.attributes] == [key for key, _ in resource]
    assert [metric.name for metric in of_scope.metrics] == [metric.name for metric in metrics]
    for encoded, metric in zip(of_scope.metrics, metrics, strict=True):
        data = encoded.sum if metric.is_counter else encoded.gauge
        assert metric.is_counter == encoded.HasField("sum")
        values = [point.as_int if point.HasField("as_int") else point.as_double for point in data.data_points]
        assert values == [point.value for point in metric.points]
        assert [_attributes(point) for point in data.data_points] == [point.attributes for point in metric.points]
        assert [point.start_time_unix_nano for point in data.data_points] == [p.start_ns for p in metric.points]
        assert all(point.time_unix_nano == now for point in data.data_points)


def _attributes(point: Any) -> tuple[tuple[str, str | int], ...]:
    values = ((pair.key, pair.value) for pair in point.attributes)
    return tuple((key, v.int_value if v.HasField("int_value") else v.string_value) for key, v in values)


def test_partial_success() -> None:
    """The number of rejected points and the reason, without control characters; nothing if all were accepted."""
    assert rejected(PARTIAL.SerializeToString()) == (3, "too\ufffd[31m old")
    assert rejected(ExportMetricsServiceResponse().SerializeToString()) == (0, "")


@pytest.mark.parametrize("body", [b"\x0a\xff", b"\x00"])
def test_malformed_answers(body: bytes) -> None:
    """They are errors that the caller can catch."""
    with pytest.raises(ValueError):  # noqa: PT011 - any of its kinds
        rejected(body)
