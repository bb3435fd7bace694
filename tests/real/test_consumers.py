"""Queries of tools that read dcgm-exporter, on a whole, a shared and a MIG GPU, in a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gpuledger.tools.translate.files import translate_file
from gpuledger.tools.translate.promql import renamed_labels, translate, translations
from tests.fakedriver import Gpu, Mig, Value
from tests.real.nodes import GIB, EmptyNode, host, uuid
from tests.real.prometheus import Found, Prometheus, prometheus, readers_of_dcgm_exporter

pytestmark = pytest.mark.needs("prometheus")

WHOLE, SHARED, CUT = 0, 1, 2
OPERATOR = {"pod": "gpuledger-x7k2p", "namespace": "gpu-operator"}
"""Labels of the target; without honor_labels, those of the series become exported_pod and so on."""
EXPORTED = pytest.mark.parametrize("job", ["operator", "chart"])
HONOURED = pytest.mark.parametrize("job", ["dcgm", "chart"])
"""Jobs for readers of exported_pod, and of pod; `chart` is that of docs/kubernetes.md and of the chart's dcgmJob."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Pods train on a whole GPU, big and small on a shared one, cut-1 and cut-2 on MIG instances, scraped twice."""
    busy: dict[str, Value] = {"gpm.graphics": 90.0, "gpm.sm": 80.0, "gpm.tensor": 50.0}
    node = EmptyNode(
        tmp_path_factory.mktemp("node"),
        Gpu(WHOLE, watts=200, util=40, memory_used=8 * GIB, extra={"gpm.graphics": 40.0, "gpm.tensor": 10.0}),
        Gpu(SHARED, watts=600, util=90, memory_used=132 * GIB, extra=busy),
        Gpu(CUT, watts=300, mig=1, memory_used=12 * GIB),
    )
    node.scenario.migs = [
        Mig(gpu=CUT, gi=n, uuid=f"MIG-{n}", memory_used=n * GIB, extra={"gpm.graphics": 20.0 * n, "gpm.sm": 10.0 * n})
        for n in (1, 2)
    ]
    node.pod("train", WHOLE, uuid(WHOLE), memory=8 * GIB, sm=40)
    node.pod("big", SHARED, f"{uuid(SHARED)}::0", memory=100 * GIB, sm=60)
    node.pod("small", SHARED, f"{uuid(SHARED)}::1", memory=30 * GIB, sm=30)
    node.kubelet.give("ml", "waiting", "main", "nvidia.com/gpu", f"{uuid(SHARED)}::2")
    for n in (1, 2):
        node.pod(f"cut-{n}", CUT, f"MIG-{n}", memory=n * GIB, gi=n)
    with ExitStack() as stack:
        stack.enter_context(node.named())
        exporter = stack.enter_context(node.exporter())
        exporter.metrics('DCGM_FI_PROF_GR_ENGINE_ACTIVE.*pod="small"', "/dcgm/metrics")
        target = host(exporter), "/dcgm/metrics"
        documented = readers_of_dcgm_exporter()
        chart = {key: documented[key] for key in ("honor_labels", "metric_relabel_configs")}
        chart["relabel_configs"] = [{"action": "labeldrop", "regex": "namespace|pod|container"}]
        extras = {"operator": {"honor_labels": False}, "chart": chart}
        labels = dict.fromkeys(extras, OPERATOR)
        server = prometheus(dict.fromkeys(("dcgm", "operator", "chart"), target), "500ms", labels=labels, extras=extras)
        scraping = stack.enter_context(server)
        yield scraping.wait_until_scraped(16)


def by(label: str, found: Found) -> dict[str, float]:
    """Values by a label, which must be unique."""
    values = {labels.get(label, ""): value for labels, value in found}
    assert len(values) == len(found)
    return values


ACTIVE = {"train": 0.4, "big": 0.6, "small": 0.3, "waiting": 0.0, "cut-1": 0.2, "cut-2": 0.4}
"""The part of each pod in its device; big and small by SM time, because neither was alone before."""


@pytest.mark.parametrize("function", ["avg", "max"])
@HONOURED
def test_opencost_usage(scraped: Prometheus, job: str, function: str) -> None:
    """OpenCost and Kubecost: average and peak of each container."""
    query = (
        f'{function}({function}_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{job="{job}",container!=""}}[5s])) '
        "by (container, pod, namespace, uid)"
    )

    assert by("pod", scraped.query(query)) == pytest.approx(ACTIVE, abs=0.1)


@HONOURED
def test_opencost_devices(scraped: Prometheus, job: str) -> None:
    """OpenCost finds the GPU model and device of each container; MIG instances have no decoder of their own."""
    query = (
        f'avg(avg_over_time(DCGM_FI_DEV_DEC_UTIL{{job="{job}",container!=""}}[5s])) '
        "by (container, pod, namespace, device, modelName, UUID)"
    )
    found = scraped.query(query)

    assert set(by("pod", found)) == {"train", "big", "small", "waiting"}
    assert all(labels["modelName"] and labels["UUID"] and labels["device"] for labels, _ in found)


@EXPORTED
def test_gpu_pruner(scraped: Prometheus, job: str) -> None:
    """Pods that did nothing: only the one that holds a slice and has no process."""
    query = (
        "sum by (Hostname, exported_pod, exported_namespace, modelName) ("
        f'max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{{job="{job}",exported_pod!=""}}[5s])) == 0'
    )
    found = scraped.query(query)

    assert [(labels["exported_pod"], labels["Hostname"]) for labels, _ in found] == [("waiting", "node1")]


@EXPORTED
def test_openshift_console(scraped: Prometheus, job: str) -> None:
    """GPUs and instances in use and in all, power of the cluster, and activity by pod."""
    every = f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{job="{job}"}}'
    of_pods = f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{job="{job}",exported_pod=~".+"}}'
    in_use, in_all = (
        scraped.query(f"count(count by (UUID, GPU_I_ID) ({series})) or vector(0)") for series in (of_pods, every)
    )
    power = scraped.query(f'sum(max by (UUID) (DCGM_FI_DEV_POWER_USAGE{{job="{job}"}}))')
    pods = scraped.query(f"sum ({of_pods}) by (exported_namespace, exported_pod, UUID)")

    assert [value for found in (in_use, in_all) for _, value in found] == [4, 4]
    assert power[0][1] == 1100
    assert by("exported_pod", pods) == pytest.approx(ACTIVE, abs=0.1)


def test_by_hostname(scraped: Prometheus) -> None:
    """Both spellings of the label, for readers of old and new versions."""
    query = 'sum by ({}, gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{job="dcgm"}})'

    for label in ("hostname", "Hostname"):
        found = scraped.query(query.format(label))
        assert {labels[label] for labels, _ in found} == {"node1"}
        assert by("gpu", found) == pytest.approx({"0": 0.1, "1": 0.5, "2": 0.0}, abs=1e-4)


READERS = {
    "opencost": 'avg(avg_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{job="dcgm",container!=""}[5s])) by (container, pod)',
    "opencost, devices": 'avg(avg_over_time(DCGM_FI_DEV_DEC_UTIL{job="dcgm",container!=""}[5s])) by (pod, modelName)',
    "gpu-pruner": 'sum by (Hostname, exported_pod) (max_over_time(DCGM_FI_DEV_ENC_UTIL{job="operator"}[5s])) == 0',
    "keda": 'avg(DCGM_FI_DEV_GPU_UTIL{job="dcgm"}) > 30',
    "console": 'sum(max by (UUID) (DCGM_FI_DEV_POWER_USAGE{job="operator"}))',
    "dashboard, temperature": 'avg(DCGM_FI_DEV_GPU_TEMP{job=~"dcgm|operator", gpu=~".*"})',
    "dashboard, power": 'sum(DCGM_FI_DEV_POWER_USAGE{job="dcgm", gpu=~".*"})',
    "dashboard, clocks": 'DCGM_FI_DEV_SM_CLOCK{job="dcgm", gpu=~".*"} * 1000000',
    "dashboard, utilization": 'DCGM_FI_DEV_GPU_UTIL{job="dcgm"}',
    "dashboard, tensor cores": 'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{job="dcgm"}',
    "dashboard, memory": 'DCGM_FI_DEV_FB_USED{job="dcgm"}',
    "memory in use": "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100",
    "as a ratio": 'avg(DCGM_FI_DEV_GPU_UTIL{job="dcgm"} / 100)',
    "as a ratio, alone": '(DCGM_FI_DEV_GPU_UTIL{job="dcgm"} / 100) > 0.3',
    "in bytes": 'sum(DCGM_FI_DEV_FB_USED{job="dcgm"} * 1048576) / 1048576',
    "busy": 'count(DCGM_FI_DEV_GPU_UTIL{job="dcgm"} > 30)',
    "busy for long": 'count_over_time((DCGM_FI_DEV_GPU_UTIL{job="dcgm"} > 30)[5s:1s] offset 1s)',
    "in watts": 'sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{job="dcgm"}[5s]) / 1000)',
    "energy": 'sum by (UUID) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{job="dcgm"}[5s])) / 3600000',
    "driver": "count by (DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_FB_FREE)",
    "alert": "(max_over_time(DCGM_FI_DEV_FB_USED[5s:1s] offset 1s) > 1024) and on (gpu) DCGM_FI_DEV_XID_ERRORS >= 0",
}
"""Queries of tools and dashboards, in the names of dcgm-exporter 4.8."""


@pytest.mark.parametrize("reader", READERS)
def test_a_translated_query_has_the_same_result(scraped: Prometheus, reader: str) -> None:
    """Series by series, from the names and units of 4.9; whole MiB differ from bytes by less than 1."""
    result = translate(READERS[reader], translations("new"), renamed_labels("new"))
    assert not result.problems
    assert result.text != READERS[reader]

    old, new = scraped.query(READERS[reader]), scraped.query(result.text)
    assert by_series(old)
    assert by_series(new) == pytest.approx(by_series(old), rel=1e-9, abs=tolerance(reader))


def tolerance(query: str) -> float:
    """Memory in whole MiB differs from bytes by less than 1 for each series of a sum."""
    return 6 if query == "in bytes" else 1 if "memory" in query or query == "alert" else 1e-9


def by_series(found: Found) -> dict[tuple[tuple[str, str], ...], float]:
    """Values by labels, with the names of 4.8."""
    renamed = renamed_labels("old")
    return {
        tuple(sorted((renamed.get(name, name), text) for name, text in labels.items() if name != "__name__")): value
        for labels, value in found
    }


DASHBOARD = json.dumps({
    "templating": {"list": [{"name": "gpu", "query": "label_values(DCGM_FI_DEV_GPU_TEMP, gpu)"}]},
    "panels": [{"title": name, "targets": [{"expr": f"# of {name}\n{query}", "legendFormat": "GPU {{gpu}}"}]}
               for name, query in READERS.items()],
}, indent=1)  # fmt: skip


def test_a_translated_dashboard_has_the_same_results(scraped: Prometheus) -> None:
    """A file as Grafana exports it, with each query in several lines and its quotes escaped."""
    translated = translate_file(DASHBOARD, "new")
    assert not translated.problems

    for before, after in zip(json.loads(DASHBOARD)["panels"], json.loads(translated.text)["panels"], strict=True):
        old, new = before["targets"][0]["expr"], after["targets"][0]["expr"]
        assert old != new
        expected = by_series(scraped.query(old))
        assert expected
        assert by_series(scraped.query(new)) == pytest.approx(expected, rel=1e-9, abs=tolerance(before["title"]))
