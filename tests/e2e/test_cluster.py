"""Pods of a real API server on a real kubelet: workloads, labels and names without a runtime socket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from tests.e2e import dra
from tests.e2e.clusters import Cluster, Json, a_cluster
from tests.e2e.dra import DraDriver
from tests.e2e.kubelets import NODE, pod_spec
from tests.e2e.ledgers import Ledger, has, ledger, uses
from tests.e2e.nodes import WHOLE, Node, a_node, process

NAMESPACE = "ml"
RIGHTS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
"""Permissions of the ClusterRole in the docs."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Cluster with a namespace for all pods."""
    with a_cluster() as cluster:
        cluster.ensure_namespace(NAMESPACE)
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    """The only node of the cluster."""
    with a_node(cluster.kubeconfig()) as node:
        node.log_paths.append(cluster.log)
        yield node


def account(cluster: Cluster, name: str, rules: list[Json]) -> str:
    """Token of a new service account with these permissions."""
    rbac, subject = "rbac.authorization.k8s.io", {"name": name, "namespace": NAMESPACE}
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    for item in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": subject},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name}, "roleRef": role,
         "subjects": [{"kind": "ServiceAccount", **subject}]},
    ):  # fmt: skip
        cluster.create(item)
    return cluster.token_of(NAMESPACE, name)


def exporter(cluster: Cluster, node: Node, token: str) -> AbstractContextManager[Ledger]:
    """Exporter with the kubelet's socket and a service account, but without a runtime socket."""
    return ledger(
        node,
        f"--pod-resources-socket={node.kubelet.pod_resources}",
        "--kubernetes.api",
        f"--kubernetes.kubeconfig={cluster.kubeconfig(token)}",
        f"--kubernetes.node-name={NODE}",
        "--kubernetes.pod-labels=app",
    )


def pod_of_deployment(name: str, resource: str) -> Json:
    """Pod of a Deployment, assigned to the node."""
    template_hash = "7d4b9c6f5"
    replicas = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{name}-{template_hash}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{template_hash}-x2k9p",
            "namespace": NAMESPACE,
            "labels": {"app": name, "pod-template-hash": template_hash},
            "ownerReferences": [{**replicas, "uid": str(uuid.uuid4()), "controller": True}],
        },
        "spec": pod_spec({"main": {resource: 1}}) | {"nodeName": NODE},
    }


def test_pods_of_deployments(cluster: Cluster, node: Node) -> None:
    """Names, workload, labels and devices survive restarts of API server and kubelet, until a pod ends."""
    with exporter(cluster, node, account(cluster, "as-in-the-docs", RIGHTS)) as shown:
        pod = cluster.create(pod_of_deployment("serve", "nvidia.com/gpu"))["metadata"]
        running = node.runs({(NAMESPACE, pod["name"], "main"): 1})
        (main,) = running.values()
        assert (main.pod_uid, main.given) == (pod["uid"], (WHOLE,))
        node.list_on_gpus(main)
        body = shown.shows(main)
        assert 'workload_kind="Deployment",workload_name="serve"' in body
        assert 'label="app",value="serve"' in body

        with shown.always_shows(main):
            cluster.kill_api()
            shown.shows_lines('gpuledger_provider_up{provider="kubernetes"} 0')
            cluster.start_api()
            shown.shows_lines('gpuledger_provider_up{provider="kubernetes"} 1')

            # The watch continues.
            other = cluster.create(pod_of_deployment("tune", "nvidia.com/mig-1g.18gb"))["metadata"]
            running = node.runs({(NAMESPACE, pod["name"], "main"): 1, (NAMESPACE, other["name"], "main"): 1})
            node.list_on_gpus(*running.values())
            body = shown.shows(*running.values())
            assert 'workload_kind="Deployment",workload_name="tune"' in body

        with shown.always_shows(*running.values()):
            node.kubelet.kill()
            shown.shows_lines('gpuledger_provider_up{provider="podresources"} 0')
            node.start_kubelet()
            shown.shows_lines('gpuledger_provider_up{provider="podresources"} 1')
            assert node.running() == running
            shown.waits_for_answers("podresources", 2)

        end(cluster, pod)
        running = node.runs({(NAMESPACE, other["name"], "main"): 1})
        node.list_on_gpus(*running.values())
        shown.shows(*running.values())
        end(cluster, other)
        node.runs({})


def test_a_claimed_device(cluster: Cluster, node: Node) -> None:
    """A device of a ResourceClaim is exposed with its pod, under the driver's uuid."""
    driver = DraDriver(node.kubelet.plugins, pool=NODE, device="gpu-0", request="one")
    with driver, exporter(cluster, node, account(cluster, "with-claims", RIGHTS)) as shown:
        wanted = {"requests": [{"name": "one", "exactly": {"deviceClassName": dra.NAME}}]}
        named = {"name": "train", "namespace": NAMESPACE}
        claim = cluster.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": named,
                "spec": {"devices": wanted},
            }
        )
        spec = pod_spec({"main": {}}) | {"resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]}
        spec["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        pod = cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec})["metadata"]

        # Like the scheduler.
        given = {"request": "one", "driver": dra.NAME, "pool": NODE, "device": "gpu-0"}
        claim["status"] = {
            "allocation": {"devices": {"results": [given]}},
            "reservedFor": [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}],
        }
        cluster.ask("PUT", f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/train/status", claim)
        place = {"apiVersion": "v1", "kind": "Binding", "metadata": named, "target": {"kind": "Node", "name": NODE}}
        cluster.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/train/binding", place)

        (main,) = node.runs({(NAMESPACE, "train", "main"): 0}).values()
        node.list_on_gpus(also=(process(main, WHOLE),))
        shown.shows_lines(*uses(main, WHOLE), has(main, WHOLE, dra.NAME))
        end(cluster, pod)
        node.runs({})
        node.list_on_gpus()
        shown.shows()


def test_an_account_without_permissions(cluster: Cluster, node: Node) -> None:
    """The exporter logs the missing permission; pods have metrics and uids, and get names once it is granted."""
    with exporter(cluster, node, account(cluster, "may-not", [])) as shown:
        pod = cluster.create(pod_of_deployment("serve", "nvidia.com/gpu"))["metadata"]
        (main,) = node.runs({(NAMESPACE, pod["name"], "main"): 1}).values()
        node.list_on_gpus(main)
        shown.shows_lines(
            'gpuledger_provider_up{provider="kubernetes"} 0', *uses(replace(main, namespace="", pod="", name=""), WHOLE)
        )
        assert "list and watch of pods" in shown.log()

        role = cluster.ask("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/may-not")
        cluster.ask("PUT", "/apis/rbac.authorization.k8s.io/v1/clusterroles/may-not", role | {"rules": RIGHTS})
        shown.shows(main)
        end(cluster, pod)
        node.runs({})


def end(cluster: Cluster, pod: Json) -> None:
    """Delete a pod, like `kubectl delete`."""
    cluster.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['name']}")
