"""Helm chart and plain manifests, checked by Helm and by an API server with strict field validation."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.build import CRDS, built
from tests.e2e.clusters import EXISTS, Cluster, Json, RefusedError, a_cluster

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm/gpuledger"
MANIFESTS = sorted(DEPLOY.glob("kubernetes/*.yaml"))
VALUES = sorted(CHART.glob("ci/*-values.yaml"))
NAMESPACE, RELEASE = "gpu", "gpuledger"

each_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Cluster with the CRDs of the Prometheus Operator and of OpenShift."""
    with a_cluster() as cluster:
        cluster.ensure_namespace(NAMESPACE)
        for name in CRDS:
            cluster.add_kind(built(f"crds/{name}").read_text())
        yield cluster


def helm(*words: str) -> str:
    """Output of helm; the error output if it fails."""
    done = subprocess.run([built("helm"), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(values: Path) -> list[str]:
    """Objects that Helm renders with these values, as text."""
    text = helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", str(values))
    return documents(text)


def documents(text: str) -> list[str]:
    """Documents of a YAML text, without empty ones."""
    return [part for part in re.split(r"(?m)^---$", text) if yaml.safe_load(part) is not None]


def parsed(texts: Iterable[str]) -> list[Json]:
    """Parsed documents of a YAML text."""
    return [yaml.safe_load(text) for text in texts]


def test_there_is_something_to_check() -> None:
    """Guard against empty parametrization of the tests below."""
    assert (CHART / "Chart.yaml").exists()
    assert VALUES
    assert MANIFESTS


@each_values
def test_lint(values: Path) -> None:
    """`helm lint --strict` reports no error and no warning."""
    helm("lint", str(CHART), "--strict", "--values", str(values))


@each_values
def test_every_object_is_accepted(cluster: Cluster, values: Path) -> None:
    """Every kind is known, and no field is unknown, missing, duplicate or of the wrong type."""
    assert refused_by(cluster, rendered(values)) == []


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_every_plain_manifest_is_accepted(cluster: Cluster, manifest: Path) -> None:
    """The API server accepts the manifests for installation without Helm."""
    assert refused_by(cluster, documents(manifest.read_text())) == []


def refused_by(cluster: Cluster, texts: list[str]) -> list[str]:
    """Errors of the API server for these objects, which must be distinct."""
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in parsed(texts)]
    assert len(names) == len(set(names)) > 0
    refused = []
    for (kind, namespace, name), text in zip(names, texts, strict=True):
        if namespace is not None:
            cluster.ensure_namespace(namespace)
        try:
            cluster.create(text, dry_run=True)
        except RefusedError as error:
            if error.status != EXISTS:  # runs only for valid objects
                refused.append(f"{kind} {name}: {error}")
    return refused


def test_a_wrong_field_is_rejected(cluster: Cluster) -> None:
    """The checks detect wrong fields, in kinds of Kubernetes and of CRDs."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": NAMESPACE}}
    with pytest.raises(RefusedError, match=r'unknown field "spec\.prots"'):
        cluster.create(service | {"spec": {"prots": []}}, dry_run=True)
    monitor = service | {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor"}
    with pytest.raises(RefusedError, match=r'unknown field "spec\.endpoints\[0\]\.prot"'):
        cluster.create(monitor | {"spec": {"selector": {}, "endpoints": [{"prot": "metrics"}]}}, dry_run=True)


def test_a_duplicate_field_is_rejected(cluster: Cluster) -> None:
    """A YAML parser would not detect a duplicate field."""
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  namespace: {NAMESPACE}\n  name: one\n  name: two\n"
    with pytest.raises(RefusedError, match='"name" already set'):
        cluster.create(text, dry_run=True)


def test_permissions(cluster: Cluster) -> None:
    """The exporter's account may list and watch pods and get their claims, and nothing else."""
    kinds = ("ClusterRole", "ClusterRoleBinding", "ServiceAccount")
    made = [item for item in parsed(rendered(CHART / "values.yaml")) if item["kind"] in kinds]
    assert sorted(item["kind"] for item in made) == list(kinds)
    for item in made:
        cluster.create(item)
    account = next(item["metadata"]["name"] for item in made if item["kind"] == "ServiceAccount")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"},
    }
    review_result = cluster.create(review, token=cluster.token_of(NAMESPACE, account))
    # Every account may query its own permissions.
    rules = [
        rule for rule in review_result["status"]["resourceRules"] if not rule["resources"][0].startswith("selfsubject")
    ]
    assert rules == [
        {"verbs": ["list", "watch"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get"], "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"]},
    ]


@pytest.mark.parametrize(
    ("words", "selector"),
    [
        ("", 'job="gpuledger"'),
        ("--set=nameOverride=gpus", 'job="gpus"'),
        ("--set=serviceMonitor.jobLabel=app.kubernetes.io/component", 'job="exporter"'),
        ('--set=prometheusRule.selector=team="gpu"', 'team="gpu"'),
    ],
)
def test_rules_and_fleet_select_the_job_of_the_monitors(words: str, selector: str) -> None:
    """Also if a value changes the job; otherwise they would be without data."""
    text = helm("template", RELEASE, str(CHART), "--set=prometheusRule.enabled=true", "--set=fleet.enabled=true",
                "--set=fleet.prometheusUrl=http://p:9090", *filter(None, [words]))  # fmt: skip

    assert f"container_gpu_busy_seconds_total{{{selector}, " in text
    if words:
        assert "--prometheus.selector=" + selector.replace('"', '\\"') in text
        assert 'job="gpuledger"' not in text
