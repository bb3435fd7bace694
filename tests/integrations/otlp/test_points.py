"""Ticks as data points of OpenTelemetry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.catalog import CATALOG
from gpuledger.catalog.otel import CONVENTIONS, LABELS
from gpuledger.integrations.otlp.points import Metric, Points
from gpuledger.model import ContainerUse, Device, Owner
from tests.builders import S, pod_tick


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
