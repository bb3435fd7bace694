"""The queries of a per-process energy exporter's README, in a real Prometheus that scraped /process/metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.checkout import ROOT
from tests.cli.running import serving, surroundings
from tests.owners.providers.kubelet_node import kubelet_node
from tests.real.prometheus import Found, Prometheus, prometheus

pytestmark = pytest.mark.needs("prometheus")

P = "my_gpu_process"
KUBELET = "kubelet_gpu_process"
"""The prefix of a node with no other provider than the kubelet."""
JOULES = f"{P}_energy_joules"
POD = '{pod="llama-finetune-0"}'
MANY = {
    "power": f"rate({JOULES}[1m])",
    "energy of a pod": f"increase({JOULES}{POD}[1h])",
    "power of a namespace": f'rate({JOULES}{{namespace="ml"}}[1m])',
    "power of all pods": f"sum(rate({JOULES}[1m]))",
    "power by namespace": f"sum by (namespace) (rate({JOULES}[5m]))",
    "kWh": f"increase({JOULES}{POD}[1h]) / 3600000",
    "cost": f"(increase({JOULES}[1h]) / 3600000) * 0.10",
    "efficiency": f"{P}_sm_utilization_ratio / rate({JOULES}[1m])",
    "most power-hungry": f"topk(10, rate({JOULES}[5m]))",
    "active processes": f"sum({P}_active)",
    "active processes by namespace": f"sum by (namespace) ({P}_active)",
    "time-slicing": f"{P}_gpu_process_count > 1",
    "power by GPU": f"rate({P}_gpu_energy_joules_total[1m])",
    "estimated": f'{JOULES}_total{{energy_estimated="true"}}',
}
"""By what they ask for."""
RULES = ROOT / "mixin" / "rules" / "gpuledger-processes.yml"


@pytest.fixture(scope="module")
def server() -> Iterator[Prometheus]:
    """Half a minute of the demo, under the original prefix and natively, and of a node with the kubelet alone."""
    with (
        kubelet_node("llama-finetune-0") as node,
        serving("demo", f"--metric-prefix={P}", env=surroundings()) as exporter,
        serving("serve", f"--metric-prefix={KUBELET}", *node.flags, env=node.env) as kubelet,
    ):
        exporter.metrics(f"^{JOULES}", "/process/metrics")
        kubelet.metrics(f"^{KUBELET}_energy_joules{{.*{POD[1:-1]}", "/process/metrics")
        address, other = (server.url.removeprefix("http://") for server in (exporter, kubelet))
        jobs = {
            "process": (address, "/process/metrics"),
            "gpuledger": (address, "/metrics"),  # the job that the rules select
            "kubelet": (other, "/process/metrics"),
        }
        with prometheus(jobs, "1s") as running:
            yield running.wait_until_scraped(28)


def ask(server: Prometheus, promql: str) -> Found:
    """A query over the last seconds."""
    return server.query(re.sub(r"\[(1h|5m|1m)\]", "[12s]", promql))


@pytest.mark.parametrize("prefix", [P, KUBELET])
@pytest.mark.parametrize("name", MANY)
def test_query_returns_data(name: str, prefix: str, server: Prometheus) -> None:
    """Each query has a positive result, on the demo and where only the kubelet names pods."""
    found = ask(server, MANY[name].replace(P, prefix))

    assert found
    assert sum(value for _, value in found if value == value) > 0  # noqa: PLR0124 - NaN where a process draws nothing


def test_sum_of_processes_is_the_gpu(server: Prometheus) -> None:
    """The original's own check, on the counters of one scrape."""
    ((_, ratio),) = ask(server, f"sum({P}_gpu_energy_joules_total) / sum({JOULES})")

    assert ratio == pytest.approx(1, rel=0.02)


def test_native_join(server: Prometheus) -> None:
    """The recording rule has the labels of the utilization, so that they join without `ignoring`."""
    (rule,) = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]

    found = ask(server, f"gpu_process_sm_utilization_ratio / ({rule['expr']})")

    assert {labels["process_name"] for labels, _ in found} >= {"python3", "vllm"}
