"""--dcgm.shared: the queries of dcgm-exporter's dashboard and of usual alerts, on a shared GPU, in a real Prometheus.

A query is right if it returns what its author meant: one value for each GPU, or for all GPUs together. The table of
docs/migrating.md is checked against these results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from gpuledger.catalog.dialects import SHARED, Choices
from gpuledger.tools.fleet.queries import dcgm
from tests.checkout import ROOT
from tests.fakedriver import Gpu
from tests.real.nodes import GIB, EmptyNode, host, uuid
from tests.real.prometheus import Prometheus, prometheus

pytestmark = pytest.mark.needs("prometheus")

Meant = dict[str, float]
"""Values by GPU; under an empty key, one value for all."""
ACTIVE = {"0": 0.4, "1": 0.99}


@dataclass(frozen=True)
class Query:
    """A query and the result that its author meant."""

    promql: str
    meant: Meant
    source: str = "dashboard"


QUERIES = [
    Query("DCGM_FI_DEV_GPU_TEMP", {"0": 40, "1": 70}),
    Query("avg(DCGM_FI_DEV_GPU_TEMP)", {"": 55}),
    Query("DCGM_FI_DEV_POWER_USAGE", {"0": 200, "1": 600}),
    Query("sum(DCGM_FI_DEV_POWER_USAGE)", {"": 800}),
    Query("DCGM_FI_DEV_SM_CLOCK * 1000000", {"0": 1.98e9, "1": 1.98e9}),
    Query("DCGM_FI_DEV_GPU_UTIL", {"0": 40, "1": 99}),
    Query("DCGM_FI_DEV_FB_USED", {"0": 8 * 1024, "1": 132 * 1024}),
    Query("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", {"0": 0.1, "1": 0.5}),
    Query("max by (hostname, gpu) (DCGM_FI_DEV_POWER_USAGE)", {"0": 200, "1": 600}),
    Query("sum(max by (gpu) (DCGM_FI_DEV_POWER_USAGE))", {"": 800}),
    Query("max by (hostname, gpu) (DCGM_FI_PROF_GR_ENGINE_ACTIVE)", ACTIVE),
    Query("max by (hostname, gpu) (DCGM_FI_DEV_FB_USED)", {"0": 8 * 1024, "1": 132 * 1024}),
    Query("max(DCGM_FI_DEV_GPU_UTIL)", {"": 99}, "alert"),
    Query("avg(DCGM_FI_DEV_GPU_UTIL)", {"": 69.5}, "alert"),
    Query("DCGM_FI_DEV_GPU_UTIL > 90", {"1": 99}, "alert"),
    Query("avg_over_time(DCGM_FI_DEV_GPU_UTIL[5s]) < 30", {}, "alert"),
    Query("DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.9", {"1": 0.9442}, "alert"),
    Query("DCGM_FI_DEV_POWER_USAGE > 500", {"1": 600}, "alert"),
    Query("DCGM_FI_DEV_GPU_TEMP > 65", {"1": 70}, "alert"),
    Query("count(DCGM_FI_DEV_GPU_TEMP)", {"": 2}, "alert"),
]
BY_POD = [
    Query("sum by (pod) (DCGM_FI_DEV_GPU_UTIL)", {"train": 40, "big": 76, "small": 23}),
    Query("sum by (pod) (DCGM_FI_DEV_FB_USED)", {"train": 8 * 1024, "big": 100 * 1024, "small": 30 * 1024}),
]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A node with a pod on GPU 0 and two pods on GPU 1, exposed in each mode."""
    node = EmptyNode(
        tmp_path_factory.mktemp("node"),
        Gpu(0, watts=200, util=40, temperature=40, memory_used=8 * GIB,
            extra={"gpm.graphics": 40.0, "gpm.tensor": 10.0}),
        Gpu(1, watts=600, util=99, temperature=70, memory_used=132 * GIB,
            extra={"gpm.graphics": 99.0, "gpm.tensor": 50.0}),
    )  # fmt: skip
    node.pod("train", 0, uuid(0), memory=8 * GIB, sm=40)
    node.pod("big", 1, f"{uuid(1)}::0", memory=100 * GIB, sm=76)
    node.pod("small", 1, f"{uuid(1)}::1", memory=30 * GIB, sm=23)
    with ExitStack() as stack:
        stack.enter_context(node.named())
        targets = {}
        for mode in SHARED:
            exporter = stack.enter_context(node.exporter(f"--dcgm.shared={mode}"))
            exporter.metrics('pod="small"', "/dcgm/metrics")
            targets[mode] = host(exporter), "/dcgm/metrics"
        server = stack.enter_context(prometheus(targets, "500ms"))
        yield server.wait_until_scraped(16)


def result(server: Prometheus, mode: str, promql: str, label: str) -> list[tuple[str, float]]:
    """Value and label of each series, as a panel's legend shows them."""
    of_mode = re.sub(r"((?:DCGM|gpu)_\w+)", rf'\1{{job="{mode}"}}', promql)
    return sorted((labels.get(label, ""), value) for labels, value in server.query(of_mode))


def is_right(server: Prometheus, mode: str, query: Query, label: str = "gpu") -> bool:
    """Whether the result is what the author meant, without another series."""
    found, meant = result(server, mode, query.promql, label), sorted(query.meant.items())
    return [key for key, _ in found] == [key for key, _ in meant] and [v for _, v in found] == pytest.approx(
        [v for _, v in meant], rel=1e-3
    )


def test_the_documented_table(scraped: Prometheus) -> None:
    """docs/migrating.md states for each query and mode whether the query is right."""
    page = (ROOT / "docs" / "migrating.md").read_text()

    for query in QUERIES:
        marks = ["yes" if is_right(scraped, mode, query) else "no" for mode in SHARED]
        row = f"| {query.source} | `{query.promql}` | {' | '.join(marks)} |\n"
        assert row in page


def test_default_is_right_most_often(scraped: Prometheus) -> None:
    """The default answers all queries but those on activity, which has pods on a shared GPU."""
    right = {mode: sum(is_right(scraped, mode, query) for query in QUERIES) for mode in SHARED}

    assert right == {"device": 18, "divide": 6, "copy": 6}
    assert max(right, key=lambda mode: right[mode]) == Choices().shared


@pytest.mark.parametrize("query", BY_POD, ids=lambda query: query.promql)
def test_only_divide_is_right_by_pod(scraped: Prometheus, query: Query) -> None:
    """What belongs to each pod of a shared GPU."""
    right = []
    for mode in SHARED:
        pods = [(pod, value) for pod, value in result(scraped, mode, query.promql, "pod") if pod]
        right += [mode] if dict(pods) == query.meant else []

    assert right == ["divide"]


@pytest.mark.parametrize("metric", ["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_DEC_UTIL"])
def test_activity_has_pods_in_every_mode(scraped: Prometheus, metric: str) -> None:
    """OpenCost reads these two with `container!=""`."""
    found = scraped.query(f'{metric}{{gpu="1", container!=""}}')

    assert sorted((labels["job"], labels["pod"]) for labels, _ in found) == [
        (mode, pod) for mode in sorted(SHARED) for pod in ("big", "small")
    ]


@pytest.mark.parametrize("mode", ["device", "divide"])
def test_parts_of_the_activity_add_up_to_the_gpu(scraped: Prometheus, mode: str) -> None:
    """For each GPU, over all pods and the rest."""
    for unit, meant in (("GR_ENGINE", ACTIVE), ("PIPE_TENSOR", {"0": 0.1, "1": 0.5})):
        found = result(scraped, mode, f"sum by (gpu) (DCGM_FI_PROF_{unit}_ACTIVE)", "gpu")

        assert dict(found) == pytest.approx(meant, abs=1e-4)


@pytest.mark.parametrize("metric", ["GPU_UTIL", "FB_USED", "POWER_USAGE", "GPU_TEMP"])
def test_one_pod_has_the_same_in_all_modes(scraped: Prometheus, metric: str) -> None:
    """On a GPU that is not shared: one series, with the pod."""
    found = scraped.query(f'DCGM_FI_DEV_{metric}{{gpu="0"}}')

    assert sorted(labels["job"] for labels, _ in found) == sorted(SHARED)
    assert {(labels["namespace"], labels["pod"], labels["container"]) for labels, _ in found} == {
        ("ml", "train", "main")
    }
    assert len({value for _, value in found}) == 1


def test_pods_of_a_shared_gpu_can_be_joined(scraped: Prometheus) -> None:
    """The info series names the pods, and no pod of a GPU that is not shared."""
    joined = "DCGM_FI_DEV_GPU_UTIL * on (UUID, GPU_I_ID) group_right gpu_sharing_info"

    assert result(scraped, "device", joined, "pod") == [("big", 99), ("small", 99)]
    assert result(scraped, "copy", "gpu_sharing_info", "pod") == []


def test_fleet_counts_a_shared_gpu_as_allocated(scraped: Prometheus) -> None:
    """Its own series have no pod."""
    allocated = dcgm(()).allocated.replace('pod!=""', 'pod!="",job="device"').replace("_info", '_info{job="device"}')

    assert {labels["UUID"]: value for labels, value in scraped.query(allocated)} == {uuid(0): 1, uuid(1): 1}
