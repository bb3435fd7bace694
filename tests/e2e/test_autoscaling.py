"""From the exporter to the status of a HorizontalPodAutoscaler, with the manifests of deploy/autoscaling.

All components are real except the driver and the pods: gpuledger, Prometheus and prometheus-adapter with our rules, an
API server that forwards the metrics APIs to the adapter, and the HPA controller. The test creates the pods, because
there is no scheduler and no kubelet.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.autoscaling.manifests import FOLDER, manifest, replicas
from tests.certificates import Authority
from tests.checkout import ROOT
from tests.cli.running import serving, surroundings
from tests.e2e.build import built
from tests.e2e.clusters import Cluster, Json, RefusedError, a_cluster
from tests.fakedriver import Gpu
from tests.real import daemons
from tests.real.nodes import EmptyNode, host, uuid
from tests.real.prometheus import Prometheus, prometheus
from tests.waiting import free_port, wait_until

NAMESPACE, MONITORING, SERVICE = "ml", "monitoring", "prometheus-adapter"
PODS = 2
APIS = ("custom.metrics.k8s.io/v1beta1", "custom.metrics.k8s.io/v1beta2", "external.metrics.k8s.io/v1beta1")
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/llm"
HPAS = f"/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
UTILIZATION, MEMORY = "gpu_in_use_utilization_percent", "gpu_in_use_memory_utilization_percent"


class Case(NamedTuple):
    """A manifest, its metric, the query whose value the status has to show, and the constant load."""

    file: str
    metric: str
    promql: str
    load: float


CASES = (
    Case("hpa", UTILIZATION, "100 * namespace:gpu_in_use_utilization:resident{namespace='ml'}", 90),
    Case("hpa-memory", MEMORY, "100 * namespace:gpu_in_use_memory_utilization:resident{namespace='ml'}", 80),
    Case("hpa-fleet", "avg_gpu_utilization", "avg_GPU_utilization", 0.9),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Prometheus]]:
    """All components. The controller starts last, when the metrics APIs answer."""
    folder = tmp_path_factory.mktemp("autoscaling")
    authority = Authority(folder / "certificates")
    proxy = authority.issue("aggregator")
    flags = (
        f"--requestheader-client-ca-file={authority.cert}", "--requestheader-allowed-names=aggregator",
        "--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={proxy.cert}", f"--proxy-client-key-file={proxy.key}",
    )  # fmt: skip
    with ExitStack() as stack:
        server = stack.enter_context(metrics(folder))
        cluster = stack.enter_context(a_cluster(*flags))
        create_workload(cluster)
        stack.enter_context(adapter(cluster, server, authority, folder))
        stack.enter_context(controller(cluster, folder))
        yield cluster, server


@contextmanager
def metrics(folder: Path) -> Iterator[Prometheus]:
    """Prometheus with our rules; it scrapes the exporter of a node and `gpuledger fleet`, which queries it."""
    node = EmptyNode(folder / "node", *(Gpu(index=n, uuid=uuid(n), util=90, memutil=80) for n in range(PODS)))
    for n in range(PODS):
        node.pod(f"llm-{n}", n, uuid(n), memory=1 << 30, sm=90)
    fleet_targets = folder / "fleet.json"
    fleet_targets.write_text("[]")
    later = {"static_configs": [], "file_sd_configs": [{"files": [str(fleet_targets)], "refresh_interval": "1s"}]}
    with ExitStack() as stack:
        exporter = stack.enter_context(node.served())
        exporter.metrics('container_gpu_detected{.*pod="llm-1"')
        targets = {"gpuledger": (host(exporter), "/metrics"), "fleet": ("", "/metrics")}
        rules = ROOT / "mixin" / "rules" / "gpuledger-fleet.yml"
        server = stack.enter_context(prometheus(targets, "1s", extras={"fleet": later}, rules=rules))
        fleet = stack.enter_context(
            serving("fleet", f"--prometheus.url={server.url}", "--refresh=1s", env=surroundings())
        )
        fleet_targets.write_text(json.dumps([{"targets": [host(fleet)]}]))
        wait_until(lambda: all(value_of(server, case.promql) == case.load for case in CASES), 60, every_s=0.2)
        yield server


def value_of(server: Prometheus, promql: str) -> float | None:
    """The value of a query with one series."""
    found = server.query(promql)
    return round(found[0][1], 6) if len(found) == 1 else None


def create_workload(cluster: Cluster) -> None:
    """The Deployment of the manifests and its pods, which are ready."""
    for name in (NAMESPACE, MONITORING):
        cluster.ensure_namespace(name)
    labels = {"app": "llm"}
    spec = {"containers": [{"name": "main", "image": "llm"}]}
    deployment = cluster.create({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "llm", "namespace": NAMESPACE},
        "spec": {"replicas": PODS, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels}, "spec": spec}},
    })  # fmt: skip
    set_status(cluster, "/apis/apps/v1", "deployments", deployment, {"replicas": PODS, "readyReplicas": PODS})
    since = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    ready = {"phase": "Running", "startTime": since, "conditions": [condition]}
    for n in range(PODS):
        metadata = {"name": f"llm-{n}", "namespace": NAMESPACE, "labels": labels}
        pod = cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        set_status(cluster, "/api/v1", "pods", pod, ready)


def set_status(cluster: Cluster, root: str, kind: str, item: Json, status: Json) -> None:
    """Write the status of an object, as its controller does."""
    path = f"{root}/namespaces/{NAMESPACE}/{kind}/{item['metadata']['name']}/status"
    cluster.ask("PUT", path, item | {"status": status})


@contextmanager
def adapter(cluster: Cluster, server: Prometheus, authority: Authority, folder: Path) -> Iterator[None]:
    """prometheus-adapter with our rules, registered in the API server."""
    port, kubeconfig = free_port(), cluster.kubeconfig()
    pair = authority.issue("adapter", f"DNS:{SERVICE}.{MONITORING}.svc,IP:127.0.0.1")
    argv = [
        str(built("prometheus-adapter")), f"--config={FOLDER / 'prometheus-adapter.yaml'}",
        f"--prometheus-url={server.url}", "--metrics-relist-interval=2s", "--bind-address=127.0.0.1",
        f"--secure-port={port}", f"--tls-cert-file={pair.cert}", f"--tls-private-key-file={pair.key}",
        f"--lister-kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]  # fmt: skip
    register(cluster, port, authority.cert)
    # Ready once the API server forwards all requests to it.
    daemon = daemons.start(argv, folder / "adapter.log", lambda: is_forwarded(cluster), timeout_s=90)
    try:
        yield
    finally:
        daemons.stop(daemon)


def register(cluster: Cluster, port: int, authority: Path) -> None:
    """The APIServices of the adapter. Its Service has an external name: endpoints cannot be on the loopback device."""
    cluster.create({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE, "namespace": MONITORING},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    })  # fmt: skip
    bundle = base64.b64encode(authority.read_bytes()).decode()
    for api in APIS:
        group, version = api.split("/")
        cluster.create({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"{version}.{group}"},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                     "caBundle": bundle, "service": {"name": SERVICE, "namespace": MONITORING, "port": port}},
        })  # fmt: skip


def is_forwarded(cluster: Cluster) -> bool:
    """Whether all metrics APIs answer, and list our metrics."""
    try:
        listed = [item["name"] for api in APIS for item in cluster.ask("GET", f"/apis/{api}")["resources"]]
    except (RefusedError, OSError):
        return False
    return {f"namespaces/{UTILIZATION}", f"namespaces/{MEMORY}", "avg_gpu_utilization"} <= set(listed)


@contextmanager
def controller(cluster: Cluster, folder: Path) -> Iterator[None]:
    """The HPA controller, with the service account and the role that it has in every cluster."""
    argv = [
        str(built("kube-controller-manager")), f"--kubeconfig={cluster.kubeconfig()}",
        "--controllers=horizontal-pod-autoscaler-controller", "--horizontal-pod-autoscaler-sync-period=2s",
        "--use-service-account-credentials", "--leader-elect=false", "--secure-port=0",
    ]  # fmt: skip
    log = folder / "controller.log"
    daemon = daemons.start(argv, log, lambda: "Caches are synced" in log.read_text(), timeout_s=60)
    try:
        yield
    finally:
        daemons.stop(daemon)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.metric)
def test_status_shows_the_value_of_prometheus(running: tuple[Cluster, Prometheus], case: Case) -> None:
    """The status of the HPA shows the value, and the Deployment is scaled.

    Each HPA has its own name, because the controller remembers by name how it scaled in the last minutes.
    """
    cluster, server = running
    text = (FOLDER / f"{case.file}.yaml").read_text()
    wanted = replicas(PODS, case.load, target(case.file), 1, 8)
    assert wanted > PODS
    name = case.metric.replace("_", "-")
    cluster.create(text.replace("metadata:\n  name: llm\n", f"metadata:\n  name: {name}\n"))
    status: Json = {}

    def is_shown() -> bool:
        status.update(cluster.ask("GET", f"{HPAS}/{name}").get("status", {}))
        return current_value(status, case.metric) == pytest.approx(case.load, rel=0.01)

    try:
        wait_until(is_shown, 150, every_s=0.5)  # the first ticks are in the average for two minutes
        conditions = {item["type"]: item["status"] for item in status["conditions"]}

        assert value_of(server, case.promql) == case.load
        assert conditions["ScalingActive"] == conditions["AbleToScale"] == "True"
        assert status["desiredReplicas"] == wanted == scale(cluster)["spec"]["replicas"]
    finally:
        cluster.ask("DELETE", f"{HPAS}/{name}")
        wait_until(lambda: reset_scale(cluster))


def scale(cluster: Cluster) -> Json:
    """The scale of the Deployment, which the controller changes."""
    return cluster.ask("GET", f"{DEPLOYMENT}/scale")


def reset_scale(cluster: Cluster) -> bool:
    """Undo what the controller did; False if it changed the scale meanwhile."""
    try:
        cluster.ask("PUT", f"{DEPLOYMENT}/scale", scale(cluster) | {"spec": {"replicas": PODS}})
    except RefusedError:
        return False
    return True


def current_value(status: Json, metric: str) -> float | None:
    """The value of a metric in the status of an HPA."""
    for entry in status.get("currentMetrics") or ():
        kind = entry["type"].lower()
        if entry.get(kind, {}).get("metric", {}).get("name") == metric:
            return quantity(entry[kind]["current"]["value"])
    return None


def target(file: str) -> float:
    """The target value of a manifest."""
    (metric,) = manifest(file)["spec"]["metrics"]
    return quantity(metric[metric["type"].lower()]["target"]["value"])


def quantity(text: str) -> float:
    """A Kubernetes quantity: 900m is 0.9."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
