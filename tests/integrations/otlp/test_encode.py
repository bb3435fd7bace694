"""Requests of OTLP, read by OpenTelemetry's own definitions."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import Parse
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from gpuledger.integrations.otlp.encode import as_json, protobuf, rejected
from gpuledger.integrations.otlp.points import Metric, Point
from tests.integrations.otlp.collector import PARTIAL

TEXTS = st.text(max_size=20)
VALUES = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ATTRIBUTES = st.lists(st.tuples(TEXTS, TEXTS | st.integers(0, 2**31)), max_size=3).map(tuple)
POINTS = st.builds(Point, ATTRIBUTES, VALUES, st.integers(0, 2**63))
METRICS = st.builds(Metric, TEXTS, TEXTS, TEXTS, st.booleans(), st.lists(POINTS, max_size=3))


@given(st.lists(METRICS, max_size=4), ATTRIBUTES, st.integers(0, 2**63))
def test_both_encodings_are_the_same_message(metrics: list[Metric], resource: tuple[tuple[str, str]], now: int) -> None:
    """Any metric comes out as it went in, in protobuf and in JSON."""
    binary = ExportMetricsServiceRequest.FromString(protobuf(metrics, resource, "1.0", now))
    text = Parse(as_json(metrics, resource, "1.0", now), ExportMetricsServiceRequest())

    assert binary == text
    (of_resource,) = binary.resource_metrics
    (of_scope,) = of_resource.scope_metrics
    assert [pair.key for pair in of_resource.resource.attributes] == [key for key, _ in resource]
    assert [metric.name for metric in of_scope.metrics] == [metric.name for metric in metrics]
    for encoded, metric in zip(of_scope.metrics, metrics, strict=True):
        data = encoded.sum if metric.is_counter else encoded.gauge
        assert metric.is_counter == encoded.HasField("sum")
        values = [point.as_int if point.HasField("as_int") else point.as_double for point in data.data_points]
        assert values == [point.value for point in metric.points]
        assert [point.start_time_unix_nano for point in data.data_points] == [p.start_ns for p in metric.points]
        assert all(point.time_unix_nano == now for point in data.data_points)


def test_partial_success() -> None:
    """The number of rejected points and the reason, without control characters; nothing if all were accepted."""
    assert rejected(PARTIAL.SerializeToString(), is_json=False) == (3, "too\ufffd[31m old")
    body = b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}'
    assert rejected(body, is_json=True) == (3, "too old")
    for empty, is_json in ((ExportMetricsServiceResponse().SerializeToString(), False), (b"{}", True), (b"", True)):
        assert rejected(empty, is_json=is_json) == (0, "")


@pytest.mark.parametrize(("body", "is_json"), [(b"\x0a\xff", False), (b"\x00", False), (b"[", True)])
def test_malformed_answers(body: bytes, is_json: bool) -> None:
    """They are errors that the caller can catch."""
    with pytest.raises(ValueError):  # noqa: PT011 - any of its kinds
        rejected(body, is_json=is_json)
