"""Ticks as requests of OTLP, read with OpenTelemetry's own definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from gpuledger.catalog import CATALOG
from gpuledger.catalog.otel import CONVENTIONS, LABELS
from gpuledger.integrations.otlp.request import Metric, Point, Points, encode, rejected
from gpuledger.model import ContainerUse, Device, Owner
from tests.builders import S, pod_tick
from tests.integrations.otlp.collector import PARTIAL

TEXTS = st.text(max_size=20)
VALUES = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ATTRIBUTES = st.lists(st.tuples(TEXTS, TEXTS | st.integers(0, 2**31)), max_size=3).map(tuple)
POINTS = st.builds(Point, ATTRIBUTES, VALUES, st.integers(0, 2**63))
METRICS = st.builds(Metric, TEXTS, TEXTS, TEXTS, st.booleans(), st.lists(POINTS, max_size=3))


def of(metrics: list[Metric], name: str) -> Metric:
    """The metric with this name."""
    (found,) = [metric for metric in metrics if metric.name == name]
    return found


def test_names_and_attributes_of_the_conventions() -> None:
    """A GPU is hardware, a process in a pod has the attributes of Kubernetes, and a unit is that of UCUM."""
    metrics = Points().collect(pod_tick(5, 100))

    energy = of(metrics, "hw.energy")
    assert (energy.unit, energy.is_counter, energy.points[0].value) == ("J", True, 100.0)
    hardware = {"hw.type": "gpu", "hw.vendor": "NVIDIA", "gpu": "0", "hw.id": "GPU-1", "hw.model": "NVIDIA H200"}
    assert dict(energy.points[0].attributes) == hardware
    assert dict(of(metrics, "hw.gpu.utilization").points[0].attributes) == hardware | {"hw.gpu.task": "general"}
    process = of(metrics, "process.gpu.memory.usage")
    assert (process.unit, process.is_counter) == ("By", False)
    assert dict(process.points[0].attributes) == {
        "process.pid": 7, "gpu": "0", "hw.id": "GPU-1", "process.executable.name": "python3",
        "k8s.namespace.name": "ml", "k8s.pod.name": "train", "k8s.container.name": "main", "k8s.pod.uid": "u1",
        "container.id": "c" * 64,
    }  # fmt: skip


def test_a_container_outside_of_kubernetes() -> None:
    """Its name has another attribute."""
    metrics = Points().collect(pod_tick(5, 100, owner=Owner(container="web", container_id="c" * 64)))

    assert ("container.name", "web") in of(metrics, "process.gpu.memory.usage").points[0].attributes


def test_what_the_conventions_lack_keeps_its_name() -> None:
    """With our labels."""
    metrics = Points().collect(pod_tick(5, 100))

    assert of(metrics, "gpuledger_up").points[0].value == 1
    assert dict(of(metrics, "gpuledger_build_info").points[0].attributes)["source"] == "nvml"


def test_a_counter_starts_with_the_exporter_and_again_if_it_decreases() -> None:
    """The start stays while it rises; a series that comes later starts at the collection before."""
    points = Points()
    starts = []
    for second, joules in ((5, 100), (6, 150), (7, 20), (8, 30)):
        (point,) = of(points.collect(pod_tick(second, joules)), "hw.energy").points
        starts.append(point.start_ns)

    assert starts == [S, S, 6 * S, 6 * S]
    late = replace(pod_tick(9, 40), processes=(replace(pod_tick(9, 40).processes[0], energy_mj=(("exclusive", 5),)),))
    (point,) = of(points.collect(late), "gpu_process_energy_joules_total").points
    assert point.start_ns == 8 * S


def test_a_container_on_two_gpus_has_one_info_point() -> None:
    """Its properties do not depend on the GPU; some collectors reject a request with a duplicate point."""
    owner = Owner(container="main", container_id="c" * 64, image="vllm:1")
    uses = tuple(ContainerUse(Device(n, f"GPU-{n}"), owner, 1, 5, 40) for n in range(2))
    metrics = Points().collect(replace(pod_tick(5, 100), containers=uses))

    assert len(of(metrics, "gpu_owner_info").points) == 1
    assert len(of(metrics, "container_gpu_processes").points) == 2


def test_every_convention_names_a_metric_of_the_catalog() -> None:
    """With labels that it has; metrics of one conventional name agree in type and unit."""
    families = {family.name: family for family in CATALOG}
    for name, convention in CONVENTIONS.items():
        assert set(convention.labels) <= set(families[name].labels)
        same = [families[other] for other, entry in CONVENTIONS.items() if entry.name == convention.name]
        assert len({(family.type, family.unit) for family in same}) == 1
    assert set(LABELS) <= {label for family in CATALOG for label in family.of.labels}


@pytest.mark.parametrize("text", ["", "x" * 5000])
def test_texts_are_limited(text: str) -> None:
    """An empty one is omitted."""
    (point,) = of(Points().collect(pod_tick(1, 1, owner=Owner(container=text, container_id="c"))),
                  "process.gpu.memory.usage").points  # fmt: skip

    assert len(dict(point.attributes).get("container.name", "")) == min(len(text), 1024)  # type: ignore[arg-type]


@given(st.lists(METRICS, max_size=4), ATTRIBUTES, st.integers(0, 2**63))
def test_any_metric_is_read_back(metrics: list[Metric], resource: tuple[tuple[str, str]], now: int) -> None:
    """Names, values, times and attributes arrive as they were sent."""
    message = ExportMetricsServiceRequest.FromString(encode(metrics, resource, "1.0", now))

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
