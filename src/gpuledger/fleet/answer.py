"""The JSON of the Prometheus HTTP API. Pure and total: an answer or a PrometheusError."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple, TypeGuard

from gpuledger.errors import PrometheusError

LONGEST_QUOTE = 300
"""Characters of a query, or of a text of the server, that a message quotes."""
PARTIAL = "the answer is partial: some of its storage did not answer"


class Series(NamedTuple):
    """One series at one time."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An instant vector, without the series whose value is no number."""

    series: tuple[Series, ...]
    """Empty if they were taken as they arrived."""
    dropped: int = 0
    """Series whose value is NaN, infinite or a histogram."""
    warnings: tuple[str, ...] = ()
    time_s: float | None = None
    """The time of the values, by the server's clock."""
    count: int = 0
    """Series with a number, including those that were taken as they arrived."""


class BrokenError(Exception):
    """JSON that is no series. Only inside this package, which turns it into a PrometheusError."""


class Course(NamedTuple):
    """One series over a time range: Unix seconds and values."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Courses:
    """A range vector, without the values that are no numbers."""

    series: tuple[Course, ...]
    dropped: int = 0
    warnings: tuple[str, ...] = ()


def parse_range(body: bytes, query: str) -> Courses:
    """Parse the answer to a range query."""
    tree = _tree(body, _course)
    data = _data(tree, query)
    result = data.get("result")
    if data.get("resultType") != "matrix" or not isinstance(result, list):
        raise format_error(query)
    dropped = 0
    for course in result:
        if type(course) is not Course:
            raise format_error(query)
        count = len(course.points)
        course.points[:] = [point for point in course.points if isfinite(point[1])]
        dropped += count - len(course.points)
    return Courses(tuple(result), dropped, _warnings(tree))


def _course(entry: dict[str, Any]) -> Any:
    labels = entry.get("metric")
    if not _are_labels(labels):
        return entry
    try:
        points = [(float(time_s), float(value)) for time_s, value in entry.get("values", ())]
        return Course(labels, points + [(float(time_s), nan) for time_s, _ in entry.get("histograms", ())])
    except (TypeError, ValueError, OverflowError):
        return entry


def parse(body: bytes, query: str) -> Answer:
    """Parse the answer to an instant query; an error that the server reports is raised."""
    tree = _tree(body)
    data = _data(tree, query)
    kind = data.get("resultType")
    if kind not in ("vector", "scalar"):
        what = f"the query {query!r} gives a {kind or 'value of an unknown type'}"
        raise PrometheusError(what, "ask for one value per GPU", "query")
    result = data.get("result")
    points = [{"metric": {}, "value": result}] if kind == "scalar" else result
    try:
        series, dropped = series_of(points)
    except BrokenError:
        raise format_error(query) from None
    return Answer(tuple(series), dropped, _warnings(tree), _time_s(points), len(series))


def _data(tree: dict[str, Any], query: str) -> dict[str, Any]:
    if tree.get("status") != "success":
        _refuse(tree, query)
    data = tree.get("data")
    return data if isinstance(data, dict) else {}


def _tree(body: bytes, shrink: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """The JSON; `shrink` replaces each object as soon as it is read, to save memory."""
    try:
        tree = json.loads(body, object_hook=shrink)
    except (ValueError, RecursionError):
        shown = "HTML" if body.lstrip()[:1] == b"<" else "something"
        what = f"answers with {shown} that is not JSON"
        raise PrometheusError(what, "is there a login page before it?", "format") from None
    if not isinstance(tree, dict):
        raise PrometheusError("answers in JSON, but not as Prometheus does", "is the URL right?", "format")
    return tree


def series_of(points: Any) -> tuple[list[Series], int]:
    """The series with a number, and the count of those without."""
    if type(points) is not list:
        raise BrokenError
    series = []
    try:
        for point in points:
            labels = point["metric"]
            value = float(point["value"][1]) if "value" in point else _histogram(point)
            if not _are_labels(labels):
                raise BrokenError
            if isfinite(value):
                series.append(Series(labels, value))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise BrokenError from None
    return series, len(points) - len(series)


def _are_labels(value: object) -> TypeGuard[dict[str, str]]:
    return type(value) is dict and set(map(type, value.values())) <= {str}


def _histogram(point: Any) -> float:
    """NaN, since a histogram is no number; KeyError if there is none."""
    point["histogram"]
    return nan


def _time_s(points: Any) -> float | None:
    """The time of the first series; all series have the same."""
    time_s = points[0].get("value", [None])[0] if points else None
    return time_s if isinstance(time_s, (int, float)) else None


def format_error(query: str) -> PrometheusError:
    """The error for JSON that is no answer to a query."""
    return PrometheusError(f"the answer to {query!r} is not as Prometheus writes it", "is the URL right?", "format")


def _refuse(tree: dict[str, Any], query: str) -> None:
    query = query if len(query) <= LONGEST_QUOTE else f"{query[:LONGEST_QUOTE]}…"
    kind, reason = str(tree.get("errorType", "")), one_line(tree.get("error", "no reason given"))
    if kind in ("timeout", "canceled"):
        what = f"the query {query!r} took Prometheus too long: {reason}"
        raise PrometheusError(what, "ask for fewer series or raise --prometheus.timeout", "timeout")
    raise PrometheusError(f"Prometheus refuses {query!r}: {reason}", "correct the query", "query")


def _warnings(tree: dict[str, Any]) -> tuple[str, ...]:
    texts = tree.get("warnings")
    warnings = [one_line(text) for text in texts] if isinstance(texts, list) else []
    return tuple(dict.fromkeys([*warnings, *([PARTIAL] if tree.get("isPartial") is True else [])]))


def one_line(value: object) -> str:
    """A text of the server as part of a message of one line."""
    text = " ".join(str(value).split())
    return "".join(c for c in text if c.isprintable())[:LONGEST_QUOTE]
