"""Pods of schedulers of fractions on a real API server and a real kubelet: who has the GPU, and how much of it.

The objects are written as the schedulers document them; the schedulers themselves do not run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.clusters import Cluster, Json, a_cluster
from tests.e2e.dra import DraDriver
from tests.e2e.kubelets import NODE, pod_spec
from tests.e2e.ledgers import Ledger
from tests.e2e.nodes import SHARED, WHOLE, Container, Node, a_node, process
from tests.e2e.objects import NAMESPACE, RIGHTS, account, claiming_pod, exporter

RESERVATION = "kai-resource-reservation"
GIB = 1 << 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Cluster with the namespaces of all pods."""
    with a_cluster("--feature-gates=DRAConsumableCapacity=true") as cluster:
        for namespace in (NAMESPACE, RESERVATION):
            cluster.ensure_namespace(namespace)
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    """The only node of the cluster."""
    with a_node(cluster.kubeconfig()) as node:
        node.log_paths.append(cluster.log)
        yield node


@pytest.fixture(scope="module")
def shown(cluster: Cluster, node: Node) -> Iterator[Ledger]:
    """An exporter with the kubelet's socket and the rights of the docs."""
    with exporter(cluster, node, account(cluster, "as-in-the-docs", RIGHTS)) as shown:
        yield shown


def create(cluster: Cluster, namespace: str, name: str, resources: dict[str, int], **metadata: Json) -> None:
    """A pod with one container, which a scheduler has placed on the node."""
    cluster.create({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": pod_spec({"main": resources}) | {"nodeName": NODE},
    })  # fmt: skip


def end(cluster: Cluster, node: Node, *pods: tuple[str, str]) -> None:
    """Delete pods, and wait until the node has none."""
    for namespace, name in pods:
        cluster.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}")
    node.runs({})
    node.list_on_gpus()


def owner(container: Container, device: str) -> str:
    """The first labels of an allocation."""
    gpu = (WHOLE, SHARED).index(device)
    labels = f'gpu="{gpu}",uuid="{device}",namespace="{container.namespace}",pod="{container.pod}"'
    return f'{labels},container="{container.name}"'


def entitled(container: Container, device: str, source: str, compute: float, memory_bytes: float) -> tuple[str, str]:
    """Both lines of an entitlement."""
    labels = f'{owner(container, device)},container_id="",batch_job="",source="{source}"'
    return (
        f"gpu_entitlement_compute_ratio{{{labels}}} {compute!r}",
        f"gpu_entitlement_memory_bytes{{{labels}}} {memory_bytes:.0f}",
    )


def memory_of(shown: Ledger, device: str) -> float:
    """Memory of a GPU."""
    line = next(line for line in shown.text().splitlines()
                if line.startswith("gpu_memory_total_bytes{") and device in line)  # fmt: skip
    return float(line.rpartition(" ")[2])


def problems(shown: Ledger) -> list[tuple[str, str]]:
    """What they are about, and what is wrong."""
    return [(problem["about"], problem["what"]) for problem in shown.snapshot()["problems"]]


def test_fractions_of_kai(cluster: Cluster, node: Node, shown: Ledger) -> None:
    """Two pods share the GPU that a pod of the scheduler holds, which appears nowhere as an owner."""
    group = {"labels": {"runai-gpu-group": "g1"}}
    create(cluster, RESERVATION, "gpu-reservation-1", {"nvidia.com/gpu": 1}, **group)
    create(cluster, NAMESPACE, "half", {}, **group, annotations={"gpu-fraction": "0.5"})
    create(cluster, NAMESPACE, "small", {}, **group, annotations={"gpu-memory": "1024"})
    keys = {
        (RESERVATION, "gpu-reservation-1", "main"): 1,
        (NAMESPACE, "half", "main"): 0,
        (NAMESPACE, "small", "main"): 0,
    }
    running = node.runs(keys)
    half, small = running[NAMESPACE, "half", "main"], running[NAMESPACE, "small", "main"]
    node.list_on_gpus(also=(process(half, WHOLE), process(small, WHOLE)))

    total = memory_of(shown, WHOLE)
    body = shown.shows_lines(
        *entitled(half, WHOLE, "kai", 0.5, total / 2),
        *entitled(small, WHOLE, "kai", GIB / total, GIB),
    )
    assert RESERVATION not in "".join(line for line in body.splitlines() if not line.startswith("gpuledger_"))
    assert f"gpu_allocation_shared_by{{{owner(half, WHOLE)}" in body
    end(cluster, node, *(key[:2] for key in keys))


HAMI = "hami.io/vgpu-devices-allocated"
SLOTS = {
    "hami": (HAMI, "nvidia.com/vgpu", WHOLE),
    "volcano": ("volcano.sh/vgpu-ids-new", "volcano.sh/vgpu-number", SHARED),
}


@pytest.mark.parametrize("source", SLOTS)
def test_a_slot(cluster: Cluster, node: Node, shown: Ledger, source: str) -> None:
    """The annotation tells how much of the GPU the pod has, in whose slot the kubelet placed it."""
    annotation, resource, device = SLOTS[source]
    create(cluster, NAMESPACE, source, {resource: 1}, annotations={annotation: f"{device},NVIDIA,2048,30:;"})
    (vgpu,) = node.runs({(NAMESPACE, source, "main"): 1}).values()
    node.list_on_gpus(also=(process(vgpu, device),))

    shown.shows_lines(*entitled(vgpu, device, source, 0.3, 2 * GIB))
    end(cluster, node, (NAMESPACE, source))


def test_an_annotation_with_the_gpu_of_another_pod(cluster: Cluster, node: Node, shown: Ledger) -> None:
    """It takes no part of that GPU, and is named."""
    annotations = {HAMI: f"{SHARED},NVIDIA,1,1:;"}
    create(cluster, NAMESPACE, "victim", {"nvidia.com/gpu.shared": 1})
    create(cluster, NAMESPACE, "thief", {"nvidia.com/gpu": 1}, annotations=annotations)
    running = node.runs({(NAMESPACE, "victim", "main"): 1, (NAMESPACE, "thief", "main"): 1})
    victim, thief = running[NAMESPACE, "victim", "main"], running[NAMESPACE, "thief", "main"]
    node.list_on_gpus(victim, thief)

    body = shown.shows_lines(
        *entitled(victim, SHARED, "replica", 0.5, memory_of(shown, SHARED) / 2),
        *entitled(thief, WHOLE, "device", 1.0, memory_of(shown, WHOLE)),
    )
    assert owner(thief, SHARED) not in body
    named = (
        "pod ml/thief",
        "has an annotation of hami that does not match the slots of GPUs that the kubelet allocated to it",
    )
    node.wait(lambda: named in problems(shown), f"a problem: {named}")
    end(cluster, node, (NAMESPACE, "victim"), (NAMESPACE, "thief"))


def test_capacity_of_a_claim(cluster: Cluster, node: Node, shown: Ledger) -> None:
    """The memory and the cores that the scheduler wrote into the claim."""
    shared: dict[str, Any] = {"shareID": str(uuid.uuid4()), "consumedCapacity": {"memory": "10Gi", "cores": "25"}}
    with DraDriver(node.kubelet.plugins, pool=NODE, device="gpu-0", request="one"):
        pod = claiming_pod(cluster, **shared)
        (main,) = node.runs({(NAMESPACE, "train", "main"): 0}).values()
        node.list_on_gpus(also=(process(main, WHOLE),))

        shown.shows_lines(*entitled(main, WHOLE, "dra", 0.25, 10 * GIB))
        end(cluster, node, (NAMESPACE, pod["name"]))


def test_a_replica_and_a_malformed_annotation(cluster: Cluster, node: Node, shown: Ledger) -> None:
    """One of the two replicas that the device plugin offers; a pod without a group asks for nothing."""
    create(cluster, NAMESPACE, "sliced", {"nvidia.com/gpu.shared": 1}, annotations={"gpu-fraction": "7"})
    create(cluster, NAMESPACE, "wrong", {}, labels={"runai-gpu-group": "g2"}, annotations={"gpu-fraction": "7"})
    running = node.runs({(NAMESPACE, "sliced", "main"): 1, (NAMESPACE, "wrong", "main"): 0})
    sliced = running[NAMESPACE, "sliced", "main"]
    node.list_on_gpus(sliced)

    body = shown.shows_lines(*entitled(sliced, SHARED, "replica", 0.5, memory_of(shown, SHARED) / 2))
    assert 'pod="wrong"' not in body
    malformed = "pod ml/wrong", "has gpu-fraction '7', which is no number above 0 and at most 1"
    node.wait(lambda: malformed in problems(shown), f"a problem: {malformed}")
    end(cluster, node, (NAMESPACE, "sliced"), (NAMESPACE, "wrong"))
