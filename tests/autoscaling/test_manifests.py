"""Manifests in deploy/autoscaling match their schemas and avoid known pitfalls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gpuledger.export.scaling import PATH
from gpuledger.fleet.pages import families as fleet_families
from tests.autoscaling.manifests import FOLDER, SCHEMAS, check, manifest, replicas
from tests.export.scaling_node import numbers
from tests.real.daemons import run

KEDA = ["keda-prometheus", "keda-metrics-api"]
RULES = yaml.safe_load((FOLDER.parents[1] / "mixin" / "rules" / "gpuledger-fleet.yml").read_text())
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"]}
SERIES = "namespace:gpu_in_use_utilization:resident"


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("hpa", "HorizontalPodAutoscaler"),
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


def test_no_answer_is_not_zero() -> None:
    """KEDA counts an empty answer as 0 unless ignoreNullValues is false."""
    (trigger,) = manifest("keda-prometheus")["spec"]["triggers"]

    assert trigger["metadata"]["ignoreNullValues"] == "false"


@pytest.mark.needs("promtool")
def test_the_queries_are_promql_about_a_recorded_series(tmp_path: Path) -> None:
    """Promtool accepts the queries, and the series is recorded."""
    (trigger,) = manifest("keda-prometheus")["spec"]["triggers"]
    rule, memory = manifest("prometheus-adapter")["rules"]
    (fleet,) = manifest("prometheus-adapter")["externalRules"]
    query = rule["metricsQuery"].replace("<<.Series>>", SERIES).replace("<<.LabelMatchers>>", 'namespace="ml"')
    queries = [trigger["metadata"]["query"], query.replace("<<.GroupBy>>", "namespace"), rule["seriesQuery"]]
    others = [memory["seriesQuery"], fleet["metricsQuery"].replace("<<.Series>>", fleet["seriesQuery"])]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [
        {"record": f"a:{n}", "expr": text} for n, text in enumerate(queries + others)]}]}))  # fmt: skip

    assert "SUCCESS" in run("promtool", "check", "rules", str(path))
    assert {SERIES, memory["seriesQuery"].partition("{")[0]} <= RECORDED
    assert fleet["seriesQuery"] in {family.name for family in fleet_families(())}
    assert all(SERIES in text for text in queries)


def test_the_hpa_uses_the_metric_of_the_adapter() -> None:
    """The HPA uses the metric name of the adapter, for a namespace."""
    adapter, (metric,) = manifest("prometheus-adapter"), manifest("hpa")["spec"]["metrics"]
    (fleet,) = manifest("hpa-fleet")["spec"]["metrics"]

    assert metric["object"]["metric"]["name"] == adapter["rules"][0]["name"]["as"]
    assert fleet["external"]["metric"]["name"] == adapter["externalRules"][0]["name"]["as"]
    assert metric["object"]["describedObject"]["kind"] == "Namespace"
    assert metric["object"]["target"]["type"] == "Value"


def test_keda_queries_existing_fields() -> None:
    """KEDA keeps only the path when it queries every endpoint. The formula gives the mean."""
    spec = manifest("keda-metrics-api")["spec"]
    values = {}
    for trigger in spec["triggers"]:
        url = urlsplit(trigger["metadata"]["url"])
        assert (url.query, url.port, url.path.startswith(PATH)) == ("", 9400, True)
        values[trigger["name"]] = numbers(url.path.removeprefix(PATH))[trigger["metadata"]["valueLocation"]]

    assert values == {"busy": 1.2, "in_use": 2}
    assert spec["advanced"]["scalingModifiers"]["formula"] == "in_use > 0 ? 100 * busy / in_use : 0"


@pytest.mark.parametrize(
    ("current", "value", "wanted"), [(4, 0, 1), (4, 35, 2), (4, 75, 4), (4, 100, 6), (1, 90, 2), (8, 100, 8)]
)
def test_the_formula(current: int, value: float, wanted: int) -> None:
    """The formula of the Kubernetes docs, with tolerance and bounds."""
    assert replicas(current, value, 70, 1, 8) == wanted


def test_the_example_in_the_docs_is_correct() -> None:
    """The example in the docs is the answer for the node of these tests."""
    page = (FOLDER.parents[1] / "docs" / "autoscaling.md").read_text()
    shown = page.partition("```json\n")[2].partition("```")[0]

    assert json.loads(shown) == numbers("?namespace=ml")
