"""How many replicas an autoscaler would want, by the answers of a real Prometheus and of the exporter under a load."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.autoscaling.manifests import manifest, replicas
from tests.cli.running import Running
from tests.fakedriver import Gpu, Process
from tests.mixin.rules import RULES
from tests.real.nodes import EmptyNode, host, uuid
from tests.real.prometheus import Prometheus, prometheus
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("prometheus")

GPUS, PODS = 11, 4
SERIES = ["namespace:gpu_in_use_utilization:resident", "namespace:gpu_in_use_memory_utilization:resident"]
MANIFESTS = [("hpa", "keda-prometheus", "keda-metrics-api"),
             ("hpa-memory", "keda-prometheus-memory", "keda-metrics-api-memory")]  # fmt: skip
"""For utilization, and for memory activity."""


class Load(EmptyNode):
    """Eleven GPUs, and four pods of one namespace with one each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, *(Gpu(index=g, uuid=uuid(g)) for g in range(GPUS)))
        for gpu in range(PODS):
            self.pod(f"llm-{gpu}", gpu, uuid(gpu), memory=1 << 30)
        self._all: list[Process] = list(self.scenario.processes)

    def work(self, *percents: int) -> None:
        """So much in percent by the first pods, on the SMs and the memory; the others end."""
        self.scenario.processes = self._all[: len(percents)]
        for process, percent in zip(self.scenario.processes, percents, strict=True):
            process.sm = process.mem = percent
        self.scenario.write(self.folder / "scenario")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Load, Running, Prometheus]]:
    """The node, its exporter, and a Prometheus with our recording rules."""
    node = Load(tmp_path_factory.mktemp("load"))
    with ExitStack() as stack:
        exporter = stack.enter_context(node.served())
        targets = {"gpuledger": (host(exporter), "/metrics")}
        server = stack.enter_context(prometheus(targets, "500ms", rules=RULES / "gpuledger-fleet.yml"))
        yield node, exporter, server


def adapter_query(which: int = 0) -> str:
    """What prometheus-adapter makes of a rule for namespace `ml`, over two seconds for a test that has no minutes."""
    rule = manifest("prometheus-adapter")["rules"][which]
    query = (
        str(rule["metricsQuery"]).replace("<<.Series>>", SERIES[which]).replace("<<.LabelMatchers>>", 'namespace="ml"')
    )
    return query.replace("<<.GroupBy>>", "namespace").replace("[2m]", "[2s]")


def settled(ask: Callable[[], float | None], near: float) -> float:
    """What it answers once that is near."""
    found: list[float | None] = []

    def there() -> bool:
        found.append(ask())
        return found[-1] is not None and abs(found[-1] - near) < 0.5

    wait_until(there, 30)
    assert found[-1] is not None
    return found[-1]


@pytest.mark.parametrize(
    ("percents", "current", "value", "wanted"),
    [
        ((0, 0, 0, 0), 4, 0, 1),
        ((35, 35, 35, 35), 4, 35, 2),
        ((100, 100, 100, 100), 4, 100, 6),
        ((90,), 1, 90, 2),
    ],
    ids=["idle", "half", "full", "one hot GPU among ten idle ones"],
)
def test_the_replicas_that_are_wanted(
    cluster: tuple[Load, Running, Prometheus], percents: tuple[int, ...], current: int, value: float, wanted: int
) -> None:
    """By the formula of Kubernetes: with the adapter and an HPA, with KEDA and Prometheus, with KEDA alone."""
    node, exporter, server = cluster

    def from_prometheus(query: str) -> float | None:
        found = [one for _, one in server.query(query)]
        assert len(found) <= 1  # KEDA takes no more
        return found[0] if found else None

    def from_exporter(name: str) -> float:
        triggers = {one["name"]: one["metadata"] for one in manifest(name)["spec"]["triggers"]}
        path = urlsplit(triggers["busy"]["url"]).path.replace("/workload=llm", "")  # the API server is not asked here
        found = json.loads(exporter.get(path))
        busy, in_use = (found[triggers[name]["valueLocation"]] for name in ("busy", "in_use"))
        return float(100 * busy / in_use if in_use else 0)

    node.work(*percents)
    for which, (hpa, keda, keda_api) in enumerate(MANIFESTS):
        spec = manifest(hpa)["spec"]
        target = float(spec["metrics"][0]["object"]["target"]["value"])
        (trigger,) = manifest(keda)["spec"]["triggers"]
        query = trigger["metadata"]["query"].replace("[2m]", "[2s]")
        asks: list[Callable[[], float | None]] = [partial(from_prometheus, adapter_query(which)),
                                                  partial(from_prometheus, query),
                                                  partial(from_exporter, keda_api)]  # fmt: skip
        for ask in asks:
            found = settled(ask, value)
            assert replicas(current, found, target, spec["minReplicas"], spec["maxReplicas"]) == wanted

    if len(percents) == 1:  # what a mean over all GPUs would do to the hot one
        ((_, mean),) = server.query("100 * avg(gpu_utilization_ratio)")
        assert mean < 10
        assert replicas(4, mean, target, 1, 8) == 1


def test_when_the_exporter_is_gone_there_is_no_value(cluster: tuple[Load, Running, Prometheus]) -> None:
    """Not 0, by which everything would be scaled down."""
    _, exporter, server = cluster
    exporter.stop()

    wait_until(lambda: server.query(adapter_query()) == [], 30)
