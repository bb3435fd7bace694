"""Joining answers by GPU."""

from __future__ import annotations

import gc
import weakref

from gpuledger.tools.fleet.in_use import Gpu, GpuJoin
from gpuledger.tools.prometheus.stream import GpuSample, identity


def series(value: float, **labels: str) -> GpuSample:
    """One series."""
    return identity(labels), labels, value


def join(*wanted: str, **answers: list[GpuSample]) -> list[Gpu]:
    """The GPUs of several answers."""
    made = GpuJoin(wanted or ["namespace", "name"])
    for name, found in answers.items():
        made.add(name, found)
    return list(made.gpus)


def test_a_gpu_scraped_twice_is_one() -> None:
    """The highest of its values counts."""
    (gpu,) = join(utilization=[series(0.5, uuid="a", instance="1"), series(0.7, uuid="a", instance="2")])

    assert gpu.utilization == 0.7


def test_series_without_a_uuid_are_a_gpu_each() -> None:
    """As in `avg(metric > 0)`; the name of the metric is no label of a GPU."""
    assert len(join(utilization=[series(80, gpu="0"), series(40, gpu="1")])) == 2
    assert identity({"gpu": "0", "__name__": "x"}) == identity({"gpu": "0", "__name__": "y"})


def test_instances_of_one_gpu_are_separate() -> None:
    """dcgm-exporter has one UUID for all of them."""
    assert len(join(utilization=[series(1, UUID="a", GPU_I_ID="1"), series(1, UUID="a", GPU_I_ID="2")])) == 2


def test_evidence_adds_to_gpus_and_makes_none() -> None:
    """A GPU without a utilization, such as one that is divided into instances, does not count."""
    (gpu,) = join(
        utilization=[series(0.5, uuid="a")],
        memory=[series(0.1, uuid="a"), series(0.9, uuid="gone")],
        allocated=[series(1, uuid="a", namespace="x"), series(0, uuid="a", namespace="y"), series(1, uuid="gone")],
        resident=[series(1, uuid="a")],
        residents=[series(1, uuid="a", namespace="y")],
        info=[series(1, uuid="a", name="H200"), series(1, uuid="gone", name="B200")],
    )

    assert (gpu.utilization, gpu.memory, gpu.allocated, gpu.resident) == (0.5, 0.1, True, 1)
    assert gpu.labels == {"name": "H200"}
    found = {h.label_values: (h.allocated, h.resident) for h in gpu.holders}
    assert found == {("x",): (True, False), ("y",): (False, True)}


def test_a_gpu_is_identified_by_its_uuid_in_streamed_series() -> None:
    """Grouped by uuid; a series without one is in no group."""
    found = join("uuid", utilization=[("a", {}, 1.0), series(1, uuid="b"), series(1, gpu="0")])

    assert [gpu.labels for gpu in found] == [{"uuid": "a"}, {"uuid": "b"}, {}]


def test_a_join_is_gone_with_its_last_use() -> None:
    """No reference cycle keeps a join, the largest object of a refresh."""
    gc.disable()
    try:
        made = GpuJoin(["namespace"])
        made.add("utilization", [series(1, uuid="a")])
        watched = weakref.ref(made)
        del made
        assert watched() is None
    finally:
        gc.enable()
