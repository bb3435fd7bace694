"""What pods of gpuledger can reach, by the NetworkPolicy that the chart installs by default.

`make e2e` compares these manifests with what Helm renders, and has a real API server validate them.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.checkout import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
NAME = "kubernetes.io/metadata.name"


def policy(file: str) -> dict[str, Any]:
    """The spec of the only NetworkPolicy of a manifest."""
    items = yaml.safe_load_all((KUBERNETES / file).read_text())
    (found,) = [item for item in items if item and item["kind"] == "NetworkPolicy"]
    return dict(found["spec"])


def selects(labels: dict[str, Any], namespace: str) -> bool:
    """Whether a namespaceSelector selects the namespace of this name."""
    names = [labels.get("matchLabels", {}).get(NAME)]
    names += [name for rule in labels.get("matchExpressions", ()) if rule["key"] == NAME for name in rule["values"]]
    return namespace in names


def allows(rules: list[dict[str, Any]], namespace: str, port: int, protocol: str = "TCP") -> bool:
    """Whether a rule allows connections with a pod of this namespace; "" is an address outside of the cluster."""
    for rule in rules:
        ports = [(item["port"], item["protocol"]) for item in rule.get("ports", ())]
        peers = rule.get("to", rule.get("from", ()))
        named = [peer["namespaceSelector"] for peer in peers if "namespaceSelector" in peer]
        if (not ports or (port, protocol) in ports) and (not peers or any(selects(one, namespace) for one in named)):
            return True
    return False


@pytest.mark.parametrize("file", ["gpuledger.yaml", "fleet.yaml"])
def test_pods_are_covered(file: str) -> None:
    """A pod that no NetworkPolicy selects may connect anywhere: the policies select the pods, in both directions."""
    spec, items = policy(file), list(yaml.safe_load_all((KUBERNETES / file).read_text()))
    (pods,) = [item["spec"]["template"] for item in items if item and item["kind"] in ("DaemonSet", "Deployment")]

    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["podSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert spec["ingress"] == [{"ports": [{"port": "metrics", "protocol": "TCP"}]}]


@pytest.mark.parametrize("port", [22, 53, 80, 2379, 8080, 9090, 10250])
@pytest.mark.parametrize("namespace", ["", "ml", "kube-system", "gpuledger"])
def test_an_exporter_that_is_taken_over(namespace: str, port: int) -> None:
    """An exporter is taken over and connects elsewhere: only ports 443 and 6443, those of API servers, are open."""
    egress = policy("gpuledger.yaml")["egress"]

    assert not allows(egress, namespace, port)
    assert not allows(egress, namespace, port, "UDP")
    assert allows(egress, "", 443)
    assert allows(egress, "", 6443)


def test_a_fleet_that_is_taken_over() -> None:
    """A fleet service is taken over and connects elsewhere: only DNS and the namespace of Prometheus are open."""
    egress = policy("fleet.yaml")["egress"]

    assert allows(egress, "gpuledger", 9090)
    assert allows(egress, "kube-system", 53, "UDP")
    assert not allows(egress, "kube-system", 6443)
    for namespace in ("", "ml", "default"):
        assert not any(allows(egress, namespace, port) for port in (53, 80, 443, 6443, 9090))


def test_the_token_of_the_exporter() -> None:
    """An exporter is taken over and uses its token: it can list and watch pods, get their claims, and nothing else."""
    items = list(yaml.safe_load_all((KUBERNETES / "gpuledger.yaml").read_text()))
    (role,) = [item for item in items if item and item["kind"] in ("ClusterRole", "Role")]

    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
    ]
