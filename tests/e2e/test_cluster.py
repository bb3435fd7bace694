"""Pods of a real API server, run by a real kubelet: workloads, labels and names without the runtime's socket."""

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
RIGHTS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
"""As the docs have them."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With a namespace for all pods."""
    with a_cluster() as cluster:
        cluster.ensure_namespace(NAMESPACE)
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    """The cluster's only one."""
    with a_node(cluster.kubeconfig()) as node:
        node.log_paths.append(cluster.log)
        yield node


def account(cluster: Cluster, name: str, rules: list[Json]) -> str:
    """The token of a new one with these rights."""
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
    """One that has the kubelet's socket and an account, and no runtime's socket."""
    return ledger(
        node,
        f"--pod-resources-socket={node.kubelet.pod_resources}",
        "--kubernetes.api",
        f"--kubernetes.kubeconfig={cluster.kubeconfig(token)}",
        f"--kubernetes.node-name={NODE}",
        "--kubernetes.pod-labels=app",
    )


def pod_of_deployment(name: str, resource: str) -> Json:
    """A pod as the controllers of a Deployment make it, and as the scheduler places it."""
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
    """Names, workload, label and device are shown, through restarts of API server and kubelet, until a pod ends."""
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

            # The watch goes on.
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
    """A device that a claim was given is shown with its pod, by the name that the driver has for it."""
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

        # As the scheduler does it.
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


def test_an_account_without_rights(cluster: Cluster, node: Node) -> None:
    """Says what it lacks; the pod keeps its numbers and its uid, and gets its name with the rights."""
    with exporter(cluster, node, account(cluster, "may-not", [])) as shown:
        pod = cluster.create(pod_of_deployment("serve", "nvidia.com/gpu"))["metadata"]
        (main,) = node.runs({(NAMESPACE, pod["name"], "main"): 1}).values()
        node.list_on_gpus(main)
        shown.shows_lines(
            'gpuledger_provider_up{provider="kubernetes"} 0', *uses(replace(main, namespace="", pod="", name=""), WHOLE)
        )
        assert "pods list/watch" in shown.log()

        role = cluster.ask("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/may-not")
        cluster.ask("PUT", "/apis/rbac.authorization.k8s.io/v1/clusterroles/may-not", role | {"rules": RIGHTS})
        shown.shows(main)
        end(cluster, pod)
        node.runs({})


def end(cluster: Cluster, pod: Json) -> None:
    """As `kubectl delete` does."""
    cluster.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['name']}")
