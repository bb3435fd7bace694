"""Responses of the Prometheus API that are parsed, and those that are refused."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.errors import PrometheusError
from gpuledger.tools.prometheus.answer import PARTIAL, Series, parse, parse_range
from tests.tools.fleet.answers import _text, vector

labels = st.dictionaries(st.sampled_from(["uuid", "metric", "value", "pod", "histogram"]), st.text(max_size=5))
values = st.floats(width=64)


@given(st.lists(st.tuples(labels, values), max_size=8))
def test_finite_values_are_returned_and_others_counted(series: list[tuple[dict[str, str], float]]) -> None:
    """Whatever the labels are called, also as the keys of the answer itself."""
    answer = parse(vector(*series), "q")

    assert answer.series == tuple(Series(names, value) for names, value in series if math.isfinite(value))
    assert answer.dropped == len(series) - len(answer.series)
    assert answer.time_s == (1700000000.5 if series else None)


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=6), lambda inner: st.lists(inner) | (
        st.dictionaries(st.sampled_from(["status", "data", "result", "resultType", "metric", "value"]), inner)
    )).map(lambda tree: json.dumps(tree).encode())
)  # fmt: skip
def test_any_response_is_an_answer_or_a_prometheus_error(body: bytes) -> None:
    """No other exception is raised."""
    with suppress(PrometheusError):
        parse(body, "q")


@pytest.mark.parametrize(
    "result",
    [{"metric": {}}, {"metric": {}, "value": [1]}, 5, "x", {"metric": {}, "value": None},
     {"metric": {"uuid": 5}, "value": [1, "2"]}, {"metric": {"node": {}}, "value": [1, "2"]}],
)  # fmt: skip
def test_a_broken_series_is_an_error(result: object) -> None:
    """A partly readable answer is refused."""
    tree = {"status": "success", "data": {"resultType": "vector", "result": [result]}}

    with pytest.raises(PrometheusError) as caught:
        parse(json.dumps(tree).encode(), "q")

    assert caught.value.kind == "format"


def test_a_scalar_is_one_series_and_a_histogram_none() -> None:
    """`vector(1)` and `1` say the same; a histogram is no number."""
    scalar = {"status": "success", "data": {"resultType": "scalar", "result": [1.5, "2"]}}
    series = {"metric": {"a": "b"}, "histogram": [1.5, {"count": "1"}]}
    histogram = {"status": "success", "data": {"resultType": "vector", "result": [series]}}

    assert parse(json.dumps(scalar).encode(), "q").series == (Series({}, 2.0),)
    assert (parse(json.dumps(histogram).encode(), "q").series, parse(json.dumps(histogram).encode(), "q").dropped) == (
        (),
        1,
    )


def test_warnings_are_passed_on_and_a_partial_answer_is_one() -> None:
    """Thanos says it in words, VictoriaMetrics with a flag."""
    said = parse(vector(warnings=["no\nstore  matched", "no store matched"], isPartial=True), "q").warnings

    assert said == ("no store matched", PARTIAL)


@pytest.mark.parametrize(
    ("body", "reason", "says"),
    [
        (b"<html>Sign in</html>", "format", "with HTML"),
        (b"ok", "format", "not JSON"),
        (b"[1]", "format", "not from Prometheus"),
        (b"[" * 100_000, "format", "not JSON"),
        (b'{"status": "error", "errorType": "bad_data", "error": "parse error: x"}', "query", "rejects 'q'"),
        (b'{"status": "error", "errorType": "timeout", "error": "query timed out"}', "timeout", "timed out"),
        (b'{"status": "success", "data": {"resultType": "matrix", "result": []}}', "query", "returns a matrix"),
        (b'{"status": "success"}', "query", "value of an unknown type"),
    ],
)  # fmt: skip
def test_a_malformed_response_is_one_line(body: bytes, reason: str, says: str) -> None:
    """With the kind of failure, for the metric."""
    with pytest.raises(PrometheusError, match=says) as caught:
        parse(body, "q")

    assert caught.value.kind == reason
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(labels, st.lists(values, max_size=4)), max_size=5))
def test_finite_values_of_a_range_are_returned(series: list[tuple[dict[str, str], list[float]]]) -> None:
    """Each value has its time; values that are not finite, or too large to add up, are dropped and counted."""
    result = [
        {"metric": names, "values": [[1700000000 + n, _text(value)] for n, value in enumerate(numbers)]}
        for names, numbers in series
    ]
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
    answer = parse_range(body, "q")

    good = [[(1700000000.0 + n, v) for n, v in enumerate(numbers) if abs(v) <= 1e24] for _, numbers in series]
    assert [(course.labels, course.points) for course in answer.series] == [
        (names, points) for (names, _), points in zip(series, good, strict=True)
    ]
    assert answer.dropped == sum(len(numbers) for _, numbers in series) - sum(map(len, good))


@given(st.binary(max_size=60) | st.sampled_from([b'{"status":"success","data":{"resultType":"matrix","result":[{}]}}']))
def test_any_range_response_is_an_answer_or_a_prometheus_error(body: bytes) -> None:
    """No other exception is raised."""
    with suppress(PrometheusError):
        parse_range(body, "q")


def test_labels_of_a_range_are_texts() -> None:
    """Other values are refused, as in an instant query."""
    result = [{"metric": {"namespace": 5}, "values": [[1, "2"]]}]
    with pytest.raises(PrometheusError, match="is not in the format of Prometheus"):
        parse_range(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode(), "q")


def test_histograms_of_a_range_are_dropped() -> None:
    """They count as dropped values."""
    result = [{"metric": {}, "values": [[1, "2"]], "histograms": [[2, {"count": "1"}]]}]
    answer = parse_range(
        json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode(), "q"
    )

    assert (answer.series[0].points, answer.dropped) == ([(1.0, 2.0)], 1)
