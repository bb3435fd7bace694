"""Parses responses of the Prometheus HTTP API. Raises only PrometheusError."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple, TypeGuard

from gpuledger.errors import PrometheusError
from gpuledger.model.plaintext import one_line
from gpuledger.net.answers import ElementsError, load_json

LONGEST_QUOTE = 300
"""Characters of a query that an error quotes."""
LARGEST_VALUE = 1e24
"""Of a range query. A thousand times the byte-seconds of the memory of 10,000 GPUs in a day; sums of it stay finite."""
PARTIAL = "the response is partial: some storage nodes did not respond"


class Series(NamedTuple):
    """One series at one time."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An instant vector, without series whose value is not a finite number."""

    series: tuple[Series, ...]
    """Empty if the samples were streamed to a sink."""
    dropped: int = 0
    """Series whose value is NaN, infinite or a histogram."""
    warnings: tuple[str, ...] = ()
    time_s: float | None = None
    """The time of the values, by the server's clock."""
    count: int = 0
    """Number of series, including streamed ones."""


class RangeSeries(NamedTuple):
    """One series over a time range: Unix seconds and values."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class RangeVector:
    """The result of a range query, without values that are NaN, infinite or beyond LARGEST_VALUE."""

    series: tuple[RangeSeries, ...]
    dropped: int = 0
    warnings: tuple[str, ...] = ()


def parse_range(body: bytes, query: str) -> RangeVector:
    """Parse the response to a range query."""
    data, warnings = _data(body, query, _range_series)
    result = data.get("result")
    if data.get("resultType") != "matrix" or not isinstance(result, list):
        raise format_error(query)
    dropped = 0
    for series in result:
        if type(series) is not RangeSeries:
            raise format_error(query)
        count = len(series.points)
        series.points[:] = [point for point in series.points if abs(point[1]) <= LARGEST_VALUE]  # not NaN either
        dropped += count - len(series.points)
    return RangeVector(tuple(result), dropped, warnings)


def _range_series(entry: dict[str, Any]) -> Any:
    labels = entry.get("metric")
    if not _are_labels(labels):
        return entry
    try:
        points = [(float(time_s), float(value)) for time_s, value in entry.get("values", ())]
        return RangeSeries(labels, points + [(float(time_s), nan) for time_s, _ in entry.get("histograms", ())])
    except (TypeError, ValueError, OverflowError):
        return entry


def parse(body: bytes, query: str) -> Answer:
    """Parse the response to an instant query. Raises PrometheusError, also for an error that the server reports."""
    data, warnings = _data(body, query)
    kind = data.get("resultType")
    if kind not in ("vector", "scalar"):
        what = f"the query {query!r} returns a {kind or 'value of an unknown type'}"
        raise PrometheusError(what, "return one value per GPU", "query")
    result = data.get("result")
    points = [{"metric": {}, "value": result}] if kind == "scalar" else result
    try:
        series, dropped = series_of(points)
    except ValueError:
        raise format_error(query) from None
    return Answer(tuple(series), dropped, warnings, _time_s(points), len(series))


def _data(
    body: bytes, query: str, shrink: Callable[[dict[str, Any]], Any] | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The data of a response, and its warnings; `shrink` replaces each object once it is parsed, to save memory."""
    try:
        tree = load_json(body, object_hook=shrink)
    except ElementsError as error:
        raise size_error(error) from None
    except (ValueError, RecursionError):
        content = "HTML" if body.lstrip()[:1] == b"<" else "text that is not JSON"
        raise PrometheusError(f"responds with {content}", "check whether it shows a login page", "format") from None
    if not isinstance(tree, dict):
        raise PrometheusError("responds with JSON that is not from Prometheus", "check the URL", "format")
    if tree.get("status") != "success":
        raise _reported(tree, query)
    data = tree.get("data")
    return data if isinstance(data, dict) else {}, _warnings(tree)


def series_of(points: Any) -> tuple[list[Series], int]:
    """The series with a finite value, and the count of the others. Raises ValueError if these are no series."""
    if type(points) is not list:
        raise ValueError("is not a list")
    series = []
    try:
        for point in points:
            labels = point["metric"]
            is_histogram = "histogram" in point and "value" not in point
            value = nan if is_histogram else float(point["value"][1])
            if not _are_labels(labels):
                raise ValueError("has labels that are not texts")
            if isfinite(value):
                series.append(Series(labels, value))
    except (KeyError, IndexError, TypeError, OverflowError) as error:
        raise ValueError("has no value") from error
    return series, len(points) - len(series)


def _are_labels(value: object) -> TypeGuard[dict[str, str]]:
    return type(value) is dict and set(map(type, value.values())) <= {str}


def _time_s(points: Any) -> float | None:
    """The time of the first series; all series have the same."""
    time_s = points[0].get("value", [None])[0] if points else None
    return time_s if isinstance(time_s, (int, float)) else None


def format_error(query: str) -> PrometheusError:
    """The error for a response that is not in the format of Prometheus."""
    return PrometheusError(f"the response to {query!r} is not in the format of Prometheus", "check the URL", "format")


def size_error(error: ElementsError) -> PrometheusError:
    """The error for a response with too many elements."""
    return PrometheusError(f"responds with {error}", "query fewer series or fewer labels", "size")


def _reported(tree: dict[str, Any], query: str) -> PrometheusError:
    """The error that the server reports."""
    query = query if len(query) <= LONGEST_QUOTE else f"{query[:LONGEST_QUOTE]}…"
    kind, reason = str(tree.get("errorType", "")), one_line(str(tree.get("error", "no reason given")))
    if kind in ("timeout", "canceled"):
        what = f"the query {query!r} timed out in Prometheus: {reason}"
        return PrometheusError(what, "query fewer series or raise --prometheus.timeout", "timeout")
    return PrometheusError(f"Prometheus rejects {query!r}: {reason}", "correct the query", "query")


def _warnings(tree: dict[str, Any]) -> tuple[str, ...]:
    texts = tree.get("warnings")
    warnings = [one_line(str(text)) for text in texts] if isinstance(texts, list) else []
    return tuple(dict.fromkeys([*warnings, *([PARTIAL] if tree.get("isPartial") is True else [])]))


def label(labels: Mapping[str, str], name: str) -> str:
    """A label of the exporter; a Prometheus without honor_labels renames it to exported_..."""
    return labels.get(f"exported_{name}", labels.get(name, ""))


def node_of(labels: Mapping[str, str]) -> str:
    """The node, or the host of the scraped address."""
    instance = labels.get("instance", "")
    host, _, port = instance.rpartition(":")
    return labels.get("node") or (host if host and port.isdecimal() else instance)
