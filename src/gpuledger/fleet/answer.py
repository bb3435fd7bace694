"""What the HTTP API of a Prometheus says, read from its JSON. Pure, and total: an answer or a PrometheusError."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any, NamedTuple, TypeGuard

from gpuledger.fleet.failure import PrometheusError

LONGEST_WORDS = 300
"""Characters passed on of what a server says of itself, and of a query."""
PARTIAL = "the answer is partial: some of its storage did not answer"


class Series(NamedTuple):
    """One series at one moment."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Answer:
    """An instant vector. A value that is no number is left out, and counted."""

    series: tuple[Series, ...]
    """Empty where they were taken as they arrived."""
    dropped: int = 0
    """Series whose value is NaN, infinite or a histogram."""
    warnings: tuple[str, ...] = ()
    time_s: float | None = None
    """The moment it speaks of, by the server's clock."""
    count: int = 0
    """Series with a number, those that were taken too."""


class BrokenError(Exception):
    """Something else than a series."""


class Course(NamedTuple):
    """One series over a time: each moment in Unix seconds, with its value."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Courses:
    """A range vector. Values that are no numbers are left out, and counted."""

    series: tuple[Course, ...]
    dropped: int = 0
    warnings: tuple[str, ...] = ()


def parse_range(body: bytes, query: str) -> Courses:
    """The answer to a range query."""
    tree = _tree(body, _course)
    data = _data(tree, query)
    result = data.get("result")
    if data.get("resultType") != "matrix" or not isinstance(result, list):
        raise PrometheusError("format", f"the answer to {query!r} is not as Prometheus writes it")
    dropped = 0
    for course in result:
        if type(course) is not Course:
            raise PrometheusError("format", f"the answer to {query!r} is not as Prometheus writes it")
        whole = len(course.points)
        course.points[:] = [point for point in course.points if isfinite(point[1])]
        dropped += whole - len(course.points)
    return Courses(tuple(result), dropped, _warnings(tree))


def _course(found: dict[str, Any]) -> Any:
    labels = found.get("metric")
    if not _are_labels(labels):
        return found
    try:
        points = [(float(when), float(value)) for when, value in found.get("values", ())]
        return Course(labels, points + [(float(when), nan) for when, _ in found.get("histograms", ())])
    except (TypeError, ValueError, OverflowError):
        return found


def parse(body: bytes, query: str) -> Answer:
    """The answer to an instant query; what the server finds wrong with the query is an error of its own words."""
    tree = _tree(body)
    data = _data(tree, query)
    kind = data.get("resultType")
    if kind not in ("vector", "scalar"):
        raise PrometheusError(
            "query", f"the query {query!r} gives a {kind or 'strange thing'}; ask for one value a GPU"
        )
    result = data.get("result")
    points = [{"metric": {}, "value": result}] if kind == "scalar" else result
    try:
        series, dropped = series_of(points)
    except BrokenError:
        raise strange(query) from None
    return Answer(tuple(series), dropped, _warnings(tree), _moment(points), len(series))


def _data(tree: dict[str, Any], query: str) -> dict[str, Any]:
    if tree.get("status") != "success":
        _refuse(tree, query)
    data = tree.get("data")
    return data if isinstance(data, dict) else {}


def _tree(body: bytes, small: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """The JSON, in which `small` makes of each object something smaller as soon as it is read."""
    try:
        tree = json.loads(body, object_hook=small)
    except (ValueError, RecursionError):
        shown = "HTML" if body.lstrip()[:1] == b"<" else "something"
        raise PrometheusError("format", f"answers with {shown} that is not JSON; is a login or a wrong page "
                              "before it?") from None  # fmt: skip
    if not isinstance(tree, dict):
        raise PrometheusError("format", "answers in JSON, but not as Prometheus does; is the URL right?")
    return tree


def series_of(points: Any) -> tuple[list[Series], int]:
    """Those with a number, and how many have none."""
    if type(points) is not list:
        raise BrokenError
    found = []
    try:
        for point in points:
            labels = point["metric"]
            value = float(point["value"][1]) if "value" in point else _histogram(point)
            if not _are_labels(labels):
                raise BrokenError
            if isfinite(value):
                found.append(Series(labels, value))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise BrokenError from None
    return found, len(points) - len(found)


def _are_labels(found: object) -> TypeGuard[dict[str, str]]:
    return type(found) is dict and set(map(type, found.values())) <= {str}


def _histogram(point: Any) -> float:
    """No number, but a series."""
    point["histogram"]
    return nan


def _moment(points: Any) -> float | None:
    """Of the first series, which is that of all."""
    when = points[0].get("value", [None])[0] if points else None
    return when if isinstance(when, (int, float)) else None


def strange(query: str) -> PrometheusError:
    """Of JSON that is not an answer."""
    return PrometheusError("format", f"the answer to {query!r} is not as Prometheus writes it")


def _refuse(tree: dict[str, Any], query: str) -> None:
    query = query if len(query) <= LONGEST_WORDS else f"{query[:LONGEST_WORDS]}…"
    kind, said = str(tree.get("errorType", "")), words(tree.get("error", "no reason given"))
    if kind in ("timeout", "canceled"):
        raise PrometheusError("timeout", f"the query {query!r} took Prometheus too long: {said}; ask for fewer series "
                              "or give --prometheus.timeout more")  # fmt: skip
    raise PrometheusError("query", f"Prometheus refuses {query!r}: {said}")


def _warnings(tree: dict[str, Any]) -> tuple[str, ...]:
    said = tree.get("warnings")
    found = [words(one) for one in said] if isinstance(said, list) else []
    return tuple(dict.fromkeys([*found, *([PARTIAL] if tree.get("isPartial") is True else [])]))


def words(said: object) -> str:
    """Somebody else's text as part of one line of ours."""
    text = " ".join(str(said).split())
    return "".join(c for c in text if c.isprintable())[:LONGEST_WORDS]
