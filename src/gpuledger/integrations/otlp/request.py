"""The metrics of a tick as an ExportMetricsServiceRequest of OTLP, in protobuf. Pure.

Field numbers are those of opentelemetry/proto/metrics/v1/metrics.proto.

A counter is a cumulative, monotonic sum. It starts with the exporter; if its series appears later or decreases, it
starts at the collection before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gpuledger.catalog import CATALOG, Family, Type
from gpuledger.catalog.family import with_things
from gpuledger.catalog.otel import CONVENTIONS, LABELS, UNITS, Convention
from gpuledger.model import Tick
from gpuledger.net.protobuf import Message, bytes_field, fixed64_field, number_field, text_field
from gpuledger.web.text import LONGEST_VALUE

Attribute = tuple[str, str | int]
Attributes = tuple[Attribute, ...]
DEVICE = "uuid"
NUMBERS = ("process.pid",)
"""Attributes whose values are numbers."""
NO_CONVENTION = Convention("")
CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE."""
SCOPE = "gpuledger"
LARGEST_INT = 1 << 63
MOST_POINTS = 5000
"""Of one request, which then has about 1 MiB."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value."""

    attributes: Attributes
    value: int | float
    start_ns: int = 0
    """Unix time at which a counter started; 0 for a gauge."""


@dataclass(slots=True)
class Metric:
    """All values of a metric at one moment."""

    name: str
    unit: str
    description: str
    is_counter: bool
    points: list[Point] = field(default_factory=list)


class Points:
    """Converts ticks, one after another, and remembers when each counter started."""

    def __init__(self, families: Sequence[Family] = CATALOG) -> None:
        self._names = {family: _Names(family) for family in families}
        self._counters: dict[tuple[str, Attributes], tuple[int, float]] = {}
        """Start and last value of each series of a counter."""
        self._last_ns: int | None = None

    def collect(self, tick: Tick) -> list[Metric]:
        """The metrics of a tick; families of the same conventional name are one metric."""
        started_ns = tick.health.start_time_ms * 1_000_000 or tick.time_ns
        new_ns = started_ns if self._last_ns is None else self._last_ns
        counters: dict[tuple[str, Attributes], tuple[int, float]] = {}
        models = {reading.device.uuid: reading.device.name for reading in tick.readings}
        metrics: dict[str, Metric] = {}
        for family, things in with_things(self._names, tick):
            names, is_counter = self._names[family], family.type is Type.COUNTER
            names.begin()
            metric = metrics.setdefault(names.name, Metric(names.name, names.unit, family.help, is_counter))
            for values, thing in things:
                for extra, value in family.samples(thing):
                    attributes = names.attributes((*values, *extra), models)
                    start_ns = 0
                    if is_counter:
                        key = (names.name, attributes)
                        start_ns, last = self._counters.get(key, (new_ns, 0))
                        start_ns = new_ns if value < last else start_ns
                        counters[key] = start_ns, value
                    metric.points.append(Point(attributes, value, start_ns))
        self._counters, self._last_ns = counters, tick.time_ns
        return [metric for metric in metrics.values() if metric.points]


class _Names:
    """The name, unit and attributes of a family."""

    def __init__(self, family: Family) -> None:
        convention = CONVENTIONS.get(family.name, NO_CONVENTION)
        self.name = convention.name or family.name
        self.unit = UNITS.get(family.unit, "1" if family.unit == "" else family.unit)
        labels = (*family.of.labels, *family.labels)
        self._keys = [convention.labels.get(label) or LABELS.get(label) or label for label in labels]
        self._container = labels.index("container") if "container" in labels else None
        self._pod = labels.index("pod") if "pod" in labels else None
        self._device = labels.index(DEVICE) if DEVICE in labels else None
        self._constant: Attributes = convention.attributes
        self._is_hardware = self.name.startswith("hw.")
        if self._is_hardware:
            self._constant += (("hw.type", "gpu"), ("hw.vendor", "NVIDIA"))
        self._cache: dict[tuple[str, ...], Attributes] = {}
        self._last: dict[tuple[str, ...], Attributes] = {}

    def begin(self) -> None:
        """Begin a tick: only the attributes of the last one are kept."""
        self._last, self._cache = self._cache, {}

    def attributes(self, values: tuple[str, ...], models: dict[str, str]) -> Attributes:
        """The attributes of a series; empty labels are omitted."""
        cached = self._cache[values] = self._last.get(values) or self._attributes(values, models)
        return cached

    def _attributes(self, texts: tuple[str, ...], models: dict[str, str]) -> Attributes:
        pairs: list[Attribute] = []
        for number, (key, text) in enumerate(zip(self._keys, texts, strict=False)):
            if not text:
                continue
            if number == self._container:
                in_pod = self._pod is not None and texts[self._pod]
                key = "k8s.container.name" if in_pod else "container.name"  # noqa: PLW2901
            value: str | int = text[:LONGEST_VALUE]
            pairs.append((key, int(text) if key in NUMBERS and text.isdecimal() else value))
        if self._is_hardware and self._device is not None and (model := models.get(texts[self._device])):
            pairs.append(("hw.model", model))
        return (*self._constant, *pairs)


def parts(metrics: Iterable[Metric]) -> Iterator[list[Metric]]:
    """The metrics in parts for one request each: collectors and the queue limit the size of a request."""
    part: list[Metric] = []
    room = MOST_POINTS
    for metric in metrics:
        points = metric.points
        while points:
            part.append(replace(metric, points=points[:room]))
            points, room = points[room:], room - len(part[-1].points)
            if not room:
                yield part
                part, room = [], MOST_POINTS
    if part:
        yield part


def encode(metrics: Iterable[Metric], resource: Attributes, version: str, time_ns: int) -> bytes:
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
    count = message.number(1)
    return count if count < LARGEST_INT else 0, message.text(2)  # larger numbers are negative
