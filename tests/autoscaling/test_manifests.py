"""Manifests in deploy/autoscaling match their schemas and avoid known pitfalls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gpuledger.tools.fleet.pages import families as fleet_families
from gpuledger.web.scaling import PATH
from tests.autoscaling.manifests import FOLDER, SCHEMAS, check, manifest, replicas
from tests.real.daemons import run
from tests.web.scaling_node import numbers

HPAS = ["hpa", "hpa-memory"]
KEDA_PROMETHEUS = ["keda-prometheus", "keda-prometheus-memory"]
KEDA_API = ["keda-metrics-api", "keda-metrics-api-memory"]
KEDA = [*KEDA_PROMETHEUS, *KEDA_API]
"""For utilization, and for memory activity."""
RULES = yaml.safe_load((FOLDER.parents[1] / "mixin" / "rules" / "gpuledger-fleet.yml").read_text())
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"]}
SERIES = ["namespace:gpu_in_use_utilization:resident", "namespace:gpu_in_use_memory_utilization:resident"]


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        *((name, "HorizontalPodAutoscaler") for name in HPAS),
        ("hpa-fleet", "HorizontalPodAutoscaler"),
        *((name, "ScaledObject") for name in KEDA),
        ("prometheus-adapter", "MetricsDiscoveryConfig"),
    ],
)
def test_the_schema_accepts_it(name: str, schema: str) -> None:
    """No field is unknown, missing or of the wrong type."""
    check(manifest(name), SCHEMAS[schema], name)


@pytest.mark.parametrize("name", KEDA)
def test_the_scaler_accepts_its_parameters(name: str) -> None:
    """Parameters are strings, and KEDA silently ignores misspelt ones."""
    for trigger in manifest(name)["spec"]["triggers"]:
        check(trigger["metadata"], SCHEMAS[trigger["type"]], name)


def test_the_check_can_fail() -> None:
    """The check detects each kind of error."""
    for change in ({"maxReplicas": "8"}, {"maxReplica": 8}):
        wrong = manifest("hpa")
        wrong["spec"] |= change
        with pytest.raises(AssertionError):
            check(wrong, SCHEMAS["HorizontalPodAutoscaler"])
    with pytest.raises(AssertionError, match="missing"):
        check({"kind": "ScaledObject"}, SCHEMAS["ScaledObject"])


@pytest.mark.parametrize("name", KEDA)
def test_a_mean_is_not_divided_by_the_replicas(name: str) -> None:
    """KEDA divides unless the type is Value; without an answer it keeps the current replicas."""
    spec: dict[str, Any] = manifest(name)["spec"]

    assert {trigger["metricType"] for trigger in spec["triggers"]} == {"Value"}
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    modifiers = spec["advanced"].get("scalingModifiers")
    if modifiers is not None:
        assert modifiers["metricType"] == "Value"
        assert int(modifiers["target"]) > 0  # with a fraction KEDA ignores the fallback


@pytest.mark.parametrize("name", KEDA_PROMETHEUS)
def test_no_answer_is_not_zero(name: str) -> None:
    """KEDA counts an empty answer as 0 unless ignoreNullValues is false."""
    (trigger,) = manifest(name)["spec"]["triggers"]

    assert trigger["metadata"]["ignoreNullValues"] == "false"


@pytest.mark.needs("promtool")
def test_the_queries_are_promql_about_a_recorded_series(tmp_path: Path) -> None:
    """Promtool accepts the queries, each is about its own series, and that is recorded."""
    queries = []
    for series, rule, name in zip(SERIES, manifest("prometheus-adapter")["rules"], KEDA_PROMETHEUS, strict=True):
        (trigger,) = manifest(name)["spec"]["triggers"]
        query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.LabelMatchers>>", 'namespace="ml"')
        queries += [query.replace("<<.GroupBy>>", "namespace"), trigger["metadata"]["query"]]
        assert rule["seriesQuery"].partition("{")[0] == series
        assert f"({series}{{" in trigger["metadata"]["query"]
    (fleet,) = manifest("prometheus-adapter")["externalRules"]
    queries.append(fleet["metricsQuery"].replace("<<.Series>>", fleet["seriesQuery"]))
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [
        {"record": f"a:{n}", "expr": text} for n, text in enumerate(queries)]}]}))  # fmt: skip

    assert "SUCCESS" in run("promtool", "check", "rules", str(path))
    assert set(SERIES) <= RECORDED
    assert fleet["seriesQuery"] in {family.name for family in fleet_families(())}


def test_the_hpa_uses_the_metric_of_the_adapter() -> None:
    """Each HPA uses a metric name of the adapter, for a namespace."""
    adapter, (fleet,) = manifest("prometheus-adapter"), manifest("hpa-fleet")["spec"]["metrics"]

    assert fleet["external"]["metric"]["name"] == adapter["externalRules"][0]["name"]["as"]
    for name, rule in zip(HPAS, adapter["rules"], strict=True):
        (metric,) = manifest(name)["spec"]["metrics"]
        assert metric["object"]["metric"]["name"] == rule["name"]["as"]
        assert metric["object"]["describedObject"]["kind"] == "Namespace"
        assert metric["object"]["target"]["type"] == "Value"


@pytest.mark.parametrize(("name", "busy"), [*zip(KEDA_API, (1.2, 0.6), strict=True)])
def test_keda_queries_existing_fields(name: str, busy: float) -> None:
    """KEDA keeps only the path when it queries every endpoint. The formula gives the mean."""
    spec = manifest(name)["spec"]
    values = {}
    for trigger in spec["triggers"]:
        url = urlsplit(trigger["metadata"]["url"])
        assert (url.query, url.port, url.path.startswith(PATH)) == ("", 9400, True)
        values[trigger["name"]] = numbers(url.path.removeprefix(PATH))[trigger["metadata"]["valueLocation"]]

    assert values == {"busy": busy, "in_use": 2}
    assert spec["advanced"]["scalingModifiers"]["formula"] == "in_use > 0 ? 100 * busy / in_use : 0"


@pytest.mark.parametrize(
    ("current", "value", "wanted"), [(4, 0, 1), (4, 35, 2), (4, 75, 4), (4, 100, 6), (1, 90, 2), (8, 100, 8)]
)
def test_the_formula(current: int, value: float, wanted: int) -> None:
    """The formula of the Kubernetes docs, with tolerance and bounds."""
    assert replicas(current, value, 70, 1, 8) == wanted


def test_addresses_and_namespaces_agree() -> None:
    """The chart, the plain manifests and the autoscalers name one Prometheus, in the namespace of the exporter."""
    deploy = FOLDER.parent
    values = yaml.safe_load((deploy / "helm" / "gpuledger" / "values.yaml").read_text())
    service = next(
        item for item in yaml.safe_load_all((deploy / "kubernetes" / "prometheus-minimal.yaml").read_text())
        if item["kind"] == "Service"
    )["metadata"]  # fmt: skip
    address = f"http://{service['name']}.{service['namespace']}.svc:9090"

    assert values["fleet"]["prometheusUrl"] == address
    assert f"--prometheus.url={address}" in (deploy / "kubernetes" / "fleet.yaml").read_text()
    for name in KEDA_PROMETHEUS:
        assert manifest(name)["spec"]["triggers"][0]["metadata"]["serverAddress"] == address
    for name in KEDA_API:
        assert f"//gpuledger.{service['namespace']}.svc:" in manifest(name)["spec"]["triggers"][0]["metadata"]["url"]
    assert {manifest(name)["metadata"]["namespace"] for name in (*HPAS, "hpa-fleet", *KEDA)} == {"ml"}


def test_the_example_in_the_docs_is_correct() -> None:
    """The example in the docs is the answer for the node of these tests."""
    page = (FOLDER.parents[1] / "docs" / "autoscaling.md").read_text()
    shown = page.partition("```json\n")[2].partition("```")[0]

    assert json.loads(shown) == numbers("?namespace=ml")
