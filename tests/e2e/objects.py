"""Objects of a cluster that several tests create: accounts, exporters, claims."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.e2e import dra
from tests.e2e.clusters import Cluster, Json
from tests.e2e.kubelets import NODE, pod_spec
from tests.e2e.ledgers import Ledger, ledger
from tests.e2e.nodes import Node

NAMESPACE = "ml"
RIGHTS = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
]
"""Permissions of the ClusterRole in the docs."""


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


def claiming_pod(cluster: Cluster, **given: Any) -> Json:
    """A pod with a claim, which was allocated and placed as the scheduler would; its metadata."""
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
    pod: Json = cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": spec})["metadata"]
    claim["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "one", "driver": dra.NAME, "pool": NODE, "device": "gpu-0", **given}]}
        },
        "reservedFor": [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}],
    }
    cluster.ask("PUT", f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/train/status", claim)
    place = {"apiVersion": "v1", "kind": "Binding", "metadata": named, "target": {"kind": "Node", "name": NODE}}
    cluster.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/train/binding", place)
    return pod
