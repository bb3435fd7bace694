"""The service and the recording rules, asked of the same real Prometheus and VictoriaMetrics: they say the same."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from gpuledger.config import load as config
from gpuledger.tools.fleet.refresh import Refresh
from gpuledger.tools.fleet.settings import FleetSettings
from gpuledger.tools.fleet.usage import Usage
from gpuledger.tools.prometheus.answer import Answer
from gpuledger.tools.prometheus.client import Access
from gpuledger.tools.prometheus.client import Prometheus as Client
from gpuledger.tools.prometheus.stream import Sink
from tests.cli.running import serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.real.nodes import Node, host, uuid
from tests.real.prometheus import OURS, Prometheus, prometheus
from tests.waiting import free_port

pytestmark = pytest.mark.needs("prometheus", "victoria-metrics")

RULES = Path(__file__).parents[2] / "mixin" / "rules" / "gpuledger-fleet.yml"
EXPRESSIONS = {
    rule["record"]: rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
BACKENDS = ("prometheus", "victoria-metrics")
SETTLED_S = 3.0
"""How long ago a moment must be so that no scrape of before it is still on its way."""


def second_node(*used: int, folder: Path, name: str = "second") -> Path:
    """A node without Kubernetes: a process on each GPU but the last, which works so many percent."""
    scenario = Scenario(
        gpus=[Gpu(index=n, uuid=f"GPU-{name}-{n}") for n in range(len(used) + 1)],
        processes=[Process(gpu=n, pid=100 + n, sm=sm, mem=sm // 2) for n, sm in enumerate(used)],
    )
    return scenario.write(folder / name)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Prometheus]]:
    """Both, scraping a node of Kubernetes (one of its GPUs twice over), a node without, and the demo."""
    node = Node(tmp_path_factory.mktemp("node"))
    node.kubelet.give("web", "waiting", "main", "nvidia.com/gpu", uuid(4))
    second = second_node(80, 0, folder=node.folder)
    with ExitStack() as stack:
        first = stack.enter_context(node.served())
        other = stack.enter_context(serving("serve", "--tick.interval=200ms", env=surroundings(second)))
        demo = stack.enter_context(serving("demo", "--tick.interval=200ms", env=surroundings()))
        first.metrics('container_gpu_detected{.*pod="whole-2"')
        targets = {name: (host(one), "/metrics") for name, one in (("a", first), ("b", other), ("c", demo))}
        targets |= {"twice": (host(first), "/metrics"), "dcgm": (host(other), "/dcgm/metrics")}
        labels = {**dict.fromkeys("abc", OURS), "twice": {**OURS, "instance": "twice"}}
        found = {kind: stack.enter_context(prometheus(targets, "1s", kind, labels=labels)) for kind in BACKENDS}
        for one in found.values():
            one.wait_until_scraped(10)
        yield found


class At:
    """The client, at a moment that is over, so that all queries see the same data."""

    def __init__(self, server: Prometheus, moment: float) -> None:
        self._client, self._moment = Client(Access(server.url, timeout_s=9.5)), moment

    def query(self, promql: str, at_s: float | None, sink: Sink) -> Answer:
        """At the moment; the service asks all but the first for that of the first."""
        assert at_s in (None, self._moment)
        return self._client.query(promql, self._moment, sink)


def usages(server: Prometheus, moment: float, **flags: str) -> list[Usage]:
    """What the service would show then."""
    given = {name.replace("_", "-"): [text] for name, text in flags.items()}
    refresh = Refresh(At(server, moment).query, config.load_as(FleetSettings, given, {}).plan())
    refresh.step()
    assert refresh.state.success, refresh.state.reason
    return list(refresh.state.usages)


def moment() -> float:
    """A whole millisecond that is over."""
    return round(time.time() - SETTLED_S, 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", ["busy", "resident", "allocated"])
def test_service_and_rules_are_equal(scraped: dict[str, Prometheus], backend: str, rule: str) -> None:
    """For each rule of what is in use: means and counts, at one moment."""
    server, when = scraped[backend], moment()
    whole = usages(server, when, in_use=rule)[0]

    def says(record: str) -> float:
        ((_, value),) = server.query(EXPRESSIONS[record], when)
        return value

    assert says(f"cluster:gpu_in_use_utilization:{rule}") == pytest.approx(whole.utilization, rel=1e-12)
    assert says("cluster:gpus:count") == whole.gpus
    assert says(f"cluster:gpus_{rule}:count") == whole.in_use
    assert says("cluster:gpus_allocated:count") == whole.allocated
    if rule != "allocated":
        assert says(f"cluster:gpu_in_use_memory_utilization:{rule}") == pytest.approx(whole.memory, rel=1e-12)
    assert 0 < whole.in_use < whole.gpus
    assert 0 < whole.utilization < 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_busy_seconds_over_in_use_seconds_are_equal(scraped: dict[str, Prometheus], backend: str) -> None:
    """Over five minutes, from counters, as --window 5m does it."""
    server, when = scraped[backend], moment()
    whole = usages(server, when, in_use="resident", window="5m")[0]
    ((_, value),) = server.query(EXPRESSIONS["cluster:gpu_in_use_utilization:resident_rate5m"], when)

    assert value == pytest.approx(whole.utilization, rel=1e-9)
    assert 0 < value < 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_namespaces_are_equal(scraped: dict[str, Prometheus], backend: str) -> None:
    """Those of the node's pods and those of the demo."""
    server, when = scraped[backend], moment()
    groups = {u.labels[0]: u for u in usages(server, when, in_use="resident", by="namespace")[1:]}
    rules = {
        labels["namespace"]: v
        for labels, v in server.query(EXPRESSIONS["namespace:gpu_in_use_utilization:resident"], when)
    }

    assert {"ml", "web"} <= set(rules)
    assert {name: usage.utilization for name, usage in groups.items()} == pytest.approx(rules, rel=1e-12)
    assert rules["web"] == 0
    assert (groups["web"].gpus, groups["web"].in_use, groups["web"].allocated) == (1, 0, 1)
    assert groups["ml"].in_use >= 4  # of the node; the demo's come and go


@pytest.mark.parametrize("backend", BACKENDS)
def test_models_and_nodes(scraped: dict[str, Prometheus], backend: str) -> None:
    """Every GPU has one of each, so that groups add up to the cluster."""
    found = usages(scraped[backend], moment(), by="model")
    nodes = usages(scraped[backend], moment(), by="node")

    for whole, *groups in (found, nodes):
        assert sum(group.gpus for group in groups) == whole.gpus
    assert len(nodes) - 1 == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_dcgm_exporters_metrics(scraped: dict[str, Prometheus], backend: str) -> None:
    """The same node by the names of dcgm-exporter: 80, 0 and 0 percent."""
    whole = usages(scraped[backend], moment(), dcgm="true")[0]

    assert (whole.gpus, whole.in_use, whole.utilization) == (3, 1, 80.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shared_gpu_counts_once_with_each_pod(scraped: dict[str, Prometheus], backend: str) -> None:
    """Two pods sink turns on one GPU and a third waits for it; nodes, where it counts once, add up in another test."""
    _, *groups = usages(scraped[backend], moment(), in_use="resident", by="namespace+pod")
    pods = {group.labels: group for group in groups}
    slices = [pods["ml", f"slice-{n}"] for n in range(2)]
    waiting = pods["ml", "waiting"]

    assert [(one.gpus, one.in_use, one.allocated) for one in (*slices, waiting)] == [(1, 1, 1), (1, 1, 1), (1, 0, 1)]
    assert slices[0].utilization == slices[1].utilization > 0  # that of the whole GPU
    assert (waiting.utilization, ("web", "slice-0") in pods) == (0, False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_dies_and_comes_back(tmp_path: Path, backend: str) -> None:
    """Its GPUs go with the next scrape, and are there again after it; over a window its new counters do no harm."""
    first, second = second_node(80, 40, folder=tmp_path, name="a"), second_node(0, folder=tmp_path, name="b")
    port = free_port()
    flags = ["serve", "--tick.interval=200ms"]
    with ExitStack() as stack:
        idle = stack.enter_context(serving(*flags, env=surroundings(second)))
        with (
            serving(*flags, f"--web.listen-address=127.0.0.1:{port}", env=surroundings(first)) as dying,
            prometheus(
                {"a": (f"127.0.0.1:{port}", "/metrics"), "b": (host(idle), "/metrics")},
                "500ms",
                backend,
                labels=dict.fromkeys("ab", OURS),
            ) as server,
        ):
            server.wait_until_scraped(4)
            asked = [f"--prometheus.url={server.url}", "--refresh=1s", "--max-age=30s"]
            now = stack.enter_context(serving("fleet", *asked, env=surroundings()))
            window = ["--window=1m", "--in-use=resident"]
            over_time = stack.enter_context(serving("fleet", *asked, *window, env=surroundings()))
            for fleet in (now, over_time):
                fleet.metrics(r'^gpu_fleet_gpus{by="cluster"} 5', within_s=30)
            dying.process.kill()
            now.metrics(r'^gpu_fleet_gpus{by="cluster"} 2', within_s=30)
            with serving(*flags, f"--web.listen-address=127.0.0.1:{port}", env=surroundings(first)):
                now.metrics(r'^gpu_fleet_gpus{by="cluster"} 5', within_s=30)
                now.metrics(r"^avg_GPU_utilization 0\.6", within_s=30)
                text = over_time.metrics(r'^gpu_fleet_gpus{by="cluster"} 5', within_s=30)
            mean = re.search(r"^avg_GPU_utilization (.*)", text, re.MULTILINE)
            assert mean is not None
            assert 0 < float(mean[1]) <= 0.6


def test_a_cluster_that_falls_idle_loses_a_node_and_then_its_prometheus(tmp_path: Path) -> None:
    """The service follows: the mean, 0, fewer GPUs, and at last no value at all."""
    first, second = second_node(80, 40, folder=tmp_path, name="a"), second_node(0, folder=tmp_path, name="b")
    with ExitStack() as stack:
        exporters = [
            stack.enter_context(serving("serve", "--tick.interval=200ms", env=surroundings(one)))
            for one in (first, second)
        ]
        targets = {str(n): (host(one), "/metrics") for n, one in enumerate(exporters)}
        with prometheus(targets, "500ms", labels=dict.fromkeys(targets, OURS)) as server:
            server.wait_until_scraped(4)
            flags = [f"--prometheus.url={server.url}", "--refresh=1s", "--max-age=3s"]
            fleet = stack.enter_context(serving("fleet", *flags, env=surroundings()))
            fleet.metrics(r"^avg_GPU_utilization 0\.6")
            fleet.metrics(r'^gpu_fleet_gpus{by="cluster"} 5')

            second_node(0, 0, folder=tmp_path, name="a")
            fleet.metrics(r"^avg_GPU_utilization 0\.0")

            exporters[1].stop()
            fleet.metrics(r'^gpu_fleet_gpus{by="cluster"} 3')
        gone = fleet.metrics("^gpu_fleet_up 0")
        assert "avg_GPU_utilization" not in gone
        assert "gpu_fleet_gpus" not in gone


def test_a_second_prometheus_finds_the_exporters(tmp_path: Path) -> None:
    """Through `gpuledger fleet --sd`, without a list of its own."""
    scenario = Scenario(gpus=[Gpu(index=0, uuid="GPU-a", watts=100)]).write(tmp_path / "scenario")
    with ExitStack() as stack:
        exporter = stack.enter_context(serving("serve", "--tick.interval=200ms", env=surroundings(scenario)))
        exporter.metrics("^gpu_info")
        first = stack.enter_context(prometheus({"gpuledger": (host(exporter), "/metrics")}, "500ms"))
        first.wait_until_scraped(2)
        flags = ["--sd", f"--prometheus.url={first.url}", "--refresh=1s"]
        fleet = stack.enter_context(serving("fleet", *flags, env=surroundings()))
        found = {"http_sd_configs": [{"url": f"{fleet.url}/sd", "refresh_interval": "1s"}], "static_configs": []}
        second = stack.enter_context(prometheus({"sd": ("", "/metrics")}, "500ms", extras={"sd": found}))
        second.wait_until_scraped(2)

        ((labels, gpus),) = second.query("count by (instance) (gpu_info)")
        assert (labels["instance"], gpus) == (host(exporter), 1)
