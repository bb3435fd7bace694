"""Alerting rules, checked with promtool, and their runbooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.catalog import CATALOG, families_in, groups_with
from gpuledger.model import ADVICE_AFTER_S
from tests.mixin.promql import metrics
from tests.real.daemons import run

ROOT = Path(__file__).parents[2]
RULES = ROOT / "mixin" / "alerts" / "gpuledger.yml"
TESTS = Path(__file__).parent / "alerts_test.yml"
ALERTS: dict[str, Any] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
CASES: list[Any] = yaml.safe_load(TESTS.read_text())["tests"]
PARTS = ["**Meaning.**", "**Check.**", "**Action.**"]


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_alerts() -> None:
    """Prometheus can load the rules."""
    assert "SUCCESS" in run("promtool", "check", "rules", str(RULES))


@pytest.mark.needs("promtool")
def test_each_alert_fires_and_clears() -> None:
    """Each alert also does not fire in similar situations."""
    assert "SUCCESS" in run("promtool", "test", "rules", str(TESTS), timeout_s=120)


def test_the_alert_advises_when_the_commands_do() -> None:
    """One threshold: the alert, `gpuledger idle` and the page."""
    assert f") > {ADVICE_AFTER_S:g} " in " ".join(ALERTS["GpuAllocatedIdle"]["expr"].split())


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_tested(alert: str) -> None:
    """Before, while and after the alert fires, with an instance named fine that never fires it."""
    (case,) = [case for case in CASES if case["alert_rule_test"][0]["alertname"] == alert]
    expected = [check["exp_alerts"] for check in case["alert_rule_test"]]

    assert {check["alertname"] for check in case["alert_rule_test"]} == {alert}
    assert [bool(alerts) for alerts in expected] == [False, True, False]
    assert any('instance="fine"' in source["series"] for source in case["input_series"])
    assert "fine" not in {firing["exp_labels"]["instance"] for alerts in expected for firing in alerts}


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_runbook(alert: str) -> None:
    """`runbook_url` leads to a section of docs/alerts.md with three parts."""
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", _page(), re.MULTILINE | re.DOTALL))

    assert ALERTS[alert]["annotations"]["runbook_url"] == f"docs/alerts.md#{alert.lower()}"
    assert re.findall(r"^\*\*.+?\*\*", sections[alert], re.MULTILINE) == PARTS


def test_each_runbook_has_an_alert() -> None:
    """No runbook is left over, and the order is that of the rules."""
    assert re.findall(r"^## (\w+)$", _page(), re.MULTILINE) == list(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_a_severity_and_a_place(alert: str) -> None:
    """Severity, summary, description and runbook; both texts name the instance or the device."""
    rule = ALERTS[alert]

    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
        assert "$labels.instance" in text or "$labels.uuid" in text
        assert text.endswith(".")


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_uses_known_metrics(alert: str) -> None:
    """Metrics that are exposed by default, and those of Prometheus itself."""
    exposed = {family.name for family in families_in(groups_with([]))}

    assert metrics(ALERTS[alert]["expr"]) - exposed <= {"up", "ALERTS"}


def test_the_runbooks_name_known_metrics() -> None:
    """A renamed metric must be renamed in the runbooks too."""
    named = set(re.findall(r"`((?:gpu|gpuledger|container_gpu)_\w+)", _page()))

    assert len(named) > 15
    assert named - {family.name for family in CATALOG} == set()


def test_inhibition_rules_name_known_alerts_and_labels() -> None:
    """An inhibition rule with an unknown alert would inhibit nothing."""
    (block,) = re.findall(r"^```yaml\n(inhibit_rules:.*?)^```", _page(), re.MULTILINE | re.DOTALL)
    rules = yaml.safe_load(block)["inhibit_rules"]
    named = {name for rule in rules for side in ("source", "target") for name in _names(rule[f"{side}_matchers"])}

    assert named <= set(ALERTS)
    assert all(set(rule["equal"]) == {"cluster", "instance", "uuid"} for rule in rules)


def _names(matchers: list[str]) -> list[str]:
    (matcher,) = matchers
    return re.split(r"=~?", matcher)[1].strip(' "').split("|")


def _page() -> str:
    return (ROOT / "docs" / "alerts.md").read_text()
