"""Dashboards by pod for dcgm-exporter, in a real Prometheus that scrapes /dcgm/metrics with --dcgm.shared=divide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.running import serving, surroundings
from tests.real.nodes import CUT, GPUS, SHARED, Node, host, uuid
from tests.real.prometheus import Found, Prometheus, prometheus

pytestmark = pytest.mark.needs("prometheus")

ALL = 'gpu=~".*", hostname=~".*"'

# What panels of dashboards for dcgm-exporter ask: gauges, averages, sums, by pod, over time.
QUERIES = [
    f"DCGM_FI_DEV_GPU_TEMP{{{ALL}}}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{{{ALL}}})",
    "avg by (hostname) (DCGM_FI_DEV_MEMORY_TEMP)",
    f"DCGM_FI_DEV_POWER_USAGE{{{ALL}}}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{{{ALL}}})",
    "sum by (namespace, pod) (DCGM_FI_DEV_POWER_USAGE)",
    "sum by (UUID) (avg_over_time(DCGM_FI_DEV_POWER_USAGE[1m]))",
    f"DCGM_FI_DEV_SM_CLOCK{{{ALL}}} * 1000000",
    "max by (gpu) (DCGM_FI_DEV_MEM_CLOCK)",
    "sum by (gpu, UUID) (DCGM_FI_DEV_GPU_UTIL)",
    "avg by (modelName) (sum by (modelName, UUID) (DCGM_FI_DEV_GPU_UTIL))",
    'sum by (pod) (DCGM_FI_DEV_GPU_UTIL{pod!=""})',
    f"DCGM_FI_DEV_FB_USED{{{ALL}}}",
    "sum by (UUID) (DCGM_FI_DEV_FB_USED) / (sum by (UUID) (DCGM_FI_DEV_FB_USED) + sum by (UUID) (DCGM_FI_DEV_FB_FREE))",
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
    "sum by (namespace) (DCGM_FI_DEV_FB_USED) * 1024 * 1024",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "avg(DCGM_FI_PROF_GR_ENGINE_ACTIVE)",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m]) / 1000",
    "sum by (pod) (increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[1m])) / 3600000",
    "DCGM_FI_DEV_XID_ERRORS > -1",
    "sum by (UUID) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL)",
    "count by (modelName, DCGM_FI_DRIVER_VERSION) (DCGM_FI_DEV_GPU_TEMP)",
    "increase(DCGM_FI_DEV_POWER_VIOLATION[1m])",
    "DCGM_FI_PROF_PCIE_RX_BYTES + DCGM_FI_PROF_PCIE_TX_BYTES",
]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the demo and the node for a while."""
    node = Node(tmp_path_factory.mktemp("node"))
    with ExitStack() as stack:
        stack.enter_context(node.named())
        fake = stack.enter_context(
            node.exporter("--dcgm.shared=divide", "--driver.energy-interval=0s")
        )  # rates over 8 s
        demo = stack.enter_context(serving("demo", "--tick.interval=200ms", "--dcgm.shared=divide", env=surroundings()))
        fake.metrics('pod="mig-2"', "/dcgm/metrics")
        targets = {"node": (host(fake), "/dcgm/metrics"), "demo": (host(demo), "/dcgm/metrics")}
        targets |= {"native": (host(fake), "/metrics"), "older": (host(fake), "/gpu/metrics")}
        running = stack.enter_context(prometheus(targets, "500ms"))
        yield running.wait_until_scraped(20)


def by(found: Found, *names: str) -> dict[tuple[str, ...], float]:
    """The values under these labels."""
    return {tuple(labels.get(name, "") for name in names): value for labels, value in found}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("job", ["node", "demo"])
def test_every_panel_has_data(scraped: Prometheus, job: str, query: str) -> None:
    """On a node that is shared and cut, and in the demo."""
    found = scraped.query(of_job(query, job))

    assert found, query


def of_job(query: str, job: str) -> str:
    """The query for one job only, as a dashboard's variable does it."""

    def narrowed(match: re.Match[str]) -> str:
        inside = f'job="{job}"' + (f", {match[2]}" if match[2] else "")
        return f"{match[1]}{{{inside}}}"

    return re.sub(r"(DCGM_FI_(?:DEV|PROF)_\w+)(?:\{(.*?)\})?", narrowed, query)


@pytest.mark.parametrize(
    ("theirs", "ours", "within"),
    [
        ("sum by (UUID) (DCGM_FI_DEV_POWER_USAGE{job='node'})", "gpu_power_watts{job='native'}", 1e-6),
        ("sum by (UUID) (DCGM_FI_DEV_FB_USED{job='node'}) * 1048576", "gpu_memory_used_bytes{job='native'}", 1 << 20),
        ("sum by (UUID) (DCGM_FI_DEV_GPU_UTIL{job='node'}) / 100", "gpu_utilization_ratio{job='native'}", 1e-6),
    ],
)
def test_all_series_of_a_gpu_are_the_gpu(scraped: Prometheus, theirs: str, ours: str, within: float) -> None:
    """Pods and the device's own series together are the device, which nothing counts twice."""
    device = {key: value for (key,), value in by(scraped.query(ours), "uuid").items()}
    parts = {key: value for (key,), value in by(scraped.query(theirs), "UUID").items()}

    assert parts == pytest.approx(device, abs=within)
    assert len(parts) >= GPUS - 1  # a cut GPU tells no utilization


def test_each_pod_has_its_own(scraped: Prometheus) -> None:
    """Memory and utilization by pod, as the driver lists its processes."""
    memory = by(scraped.query("sum by (pod) (DCGM_FI_DEV_FB_USED{job='node'}) / 1024"), "pod")
    busy = by(scraped.query("sum by (pod) (DCGM_FI_DEV_GPU_UTIL{job='node'})"), "pod")

    assert {pod: memory[pod,] for pod in ("whole-0", "slice-0", "slice-1", "waiting", "mig-1", "mig-2")} == {
        "whole-0": 8, "slice-0": 2, "slice-1": 3, "waiting": 0, "mig-1": 1, "mig-2": 2,
    }  # fmt: skip
    assert memory["",] == 2 + 9  # of the shared GPU, and of the cut one
    assert {pod: busy[pod,] for pod in ("whole-0", "slice-0", "slice-1", "waiting")} == {
        "whole-0": 40, "slice-0": 20, "slice-1": 40, "waiting": 0,
    }  # fmt: skip


def test_power_of_pods_that_share(scraped: Prometheus) -> None:
    """Each pod has a part, more work means more power, and a waiting pod has none."""
    watts = by(scraped.query(f"sum by (pod) (DCGM_FI_DEV_POWER_USAGE{{job='node', gpu='{SHARED}'}})"), "pod")

    assert 0 == watts["waiting",] < watts["slice-0",] < watts["slice-1",]
    assert sum(watts.values()) == pytest.approx(350)


def test_energy_over_time(scraped: Prometheus) -> None:
    """By pod it rises as fast as the power that the pod has, and all together as fast as the GPU."""
    found = scraped.query(
        f"sum by (UUID) (rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{job='node', gpu=~'0|{SHARED}|{CUT}'}}[8s])) / 1000"
    )
    alone = scraped.query("sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{job='node', pod='whole-0'}[8s])) / 1000")

    assert by(found, "UUID") == pytest.approx({(uuid(0),): 200, (uuid(SHARED),): 350, (uuid(CUT),): 550}, rel=0.3)
    assert alone[0][1] == pytest.approx(200, rel=0.3)


def test_a_cut_gpu_is_there_once(scraped: Prometheus) -> None:
    """Heat once, for the GPU; activity and free memory of each instance, with its pod."""
    heat = scraped.query(f"DCGM_FI_DEV_GPU_TEMP{{job='node', gpu='{CUT}'}}")
    active = scraped.query(f"DCGM_FI_PROF_SM_ACTIVE{{job='node', gpu='{CUT}'}}")

    assert [("GPU_I_ID" in labels, value) for labels, value in heat] == [(False, 47)]
    assert by(active, "GPU_I_ID", "GPU_I_PROFILE", "pod") == {
        ("1", "1g.18gb", "mig-1"): 0.1, ("2", "1g.18gb", "mig-2"): 0.2,
    }  # fmt: skip


def test_the_older_names(scraped: Prometheus) -> None:
    """On /gpu/metrics, with the labels they had."""
    found = scraped.query('dcgm_gpu_temp{job="older", pod_name="whole-0"}')

    assert [(labels["pod_namespace"], labels["container_name"], value) for labels, value in found] == [
        ("ml", "main", 40)
    ]
