"""The manifests in deploy/autoscaling: accepted by what reads them, and without the known traps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from gpuledger.export.scaling import PATH
from tests.autoscaling.manifests import FOLDER, SCHEMAS, check, manifest, replicas
from tests.export.scaling_node import numbers
from tests.real.daemons import run

KEDA = ["keda-prometheus", "keda-metrics-api"]
RULES = yaml.safe_load((FOLDER.parents[1] / "mixin" / "rules" / "gpuledger-fleet.yml").read_text())
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"]}
SERIES = "namespace:gpu_in_use_utilization:resident"


@pytest.mark.parametrize(("name", "schema"), [("hpa", "HorizontalPodAutoscaler"), *[(n, "ScaledObject") for n in KEDA],
                                              ("prometheus-adapter", "MetricsDiscoveryConfig")])  # fmt: skip
def test_the_schema_accepts_it(name: str, schema: str) -> None:
    """No field is unknown, missing or of another type."""
    check(manifest(name), SCHEMAS[schema], name)


@pytest.mark.parametrize("name", KEDA)
def test_the_scaler_accepts_its_parameters(name: str) -> None:
    """They are strings, and a misspelt one would be passed over in silence."""
    for trigger in manifest(name)["spec"]["triggers"]:
        check(trigger["metadata"], SCHEMAS[trigger["type"]], name)


def test_the_check_can_fail() -> None:
    """On each kind of mistake."""
    for change in ({"maxReplicas": "8"}, {"maxReplica": 8}):
        wrong = manifest("hpa")
        wrong["spec"] |= change
        with pytest.raises(AssertionError):
            check(wrong, SCHEMAS["HorizontalPodAutoscaler"])
    with pytest.raises(AssertionError, match="missing"):
        check({"kind": "ScaledObject"}, SCHEMAS["ScaledObject"])


@pytest.mark.parametrize("name", KEDA)
def test_a_mean_is_not_divided_by_the_replicas(name: str) -> None:
    """KEDA does so unless it is told that it is a Value; and it holds what runs when it gets no answer."""
    spec: dict[str, Any] = manifest(name)["spec"]

    assert {trigger["metricType"] for trigger in spec["triggers"]} == {"Value"}
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    modifiers = spec["advanced"].get("scalingModifiers")
    if modifiers is not None:
        assert modifiers["metricType"] == "Value"
        assert int(modifiers["target"]) > 0  # KEDA reads a whole number, else there is no fallback


def test_no_answer_is_not_zero() -> None:
    """KEDA takes an empty answer for 0 unless it is told not to."""
    (trigger,) = manifest("keda-prometheus")["spec"]["triggers"]

    assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_the_queries_are_promql_about_a_recorded_series(tmp_path: Path) -> None:
    """Prometheus's own tool accepts them."""
    (trigger,) = manifest("keda-prometheus")["spec"]["triggers"]
    (rule,) = manifest("prometheus-adapter")["rules"]
    query = rule["metricsQuery"].replace("<<.Series>>", SERIES).replace("<<.LabelMatchers>>", 'namespace="ml"')
    queries = [trigger["metadata"]["query"], query.replace("<<.GroupBy>>", "namespace"), rule["seriesQuery"]]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [
        {"record": f"a:{n}", "expr": text} for n, text in enumerate(queries)]}]}))  # fmt: skip

    assert "SUCCESS" in run("promtool", "check", "rules", str(path))
    assert SERIES in RECORDED
    assert all(SERIES in text for text in queries)


def test_the_hpa_asks_for_what_the_adapter_offers() -> None:
    """By name, and of a namespace."""
    (rule,), (metric,) = manifest("prometheus-adapter")["rules"], manifest("hpa")["spec"]["metrics"]

    assert metric["object"]["metric"]["name"] == rule["name"]["as"]
    assert metric["object"]["describedObject"]["kind"] == "Namespace"
    assert metric["object"]["target"]["type"] == "Value"


def test_keda_asks_the_exporter_for_numbers_that_are_there() -> None:
    """With what is left of the address when KEDA asks every endpoint: the path. Its formula gives the mean."""
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
    """As the documentation of Kubernetes has it, with its tolerance and the bounds."""
    assert replicas(current, value, 70, 1, 8) == wanted


def test_the_answer_in_the_documentation_is_one() -> None:
    """Of the same node."""
    page = (FOLDER.parents[1] / "docs" / "autoscaling.md").read_text()
    shown = page.partition("```json\n")[2].partition("```")[0]

    assert json.loads(shown) == numbers("?namespace=ml")
