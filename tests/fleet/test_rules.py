"""The recording rules, by Prometheus's own tool."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpuledger.catalog import CATALOG
from tests.real.daemons import run

RULES = Path(__file__).parents[2] / "mixin" / "rules" / "gpuledger-fleet.yml"


def test_promtool_accepts_the_rules() -> None:
    """Prometheus would load them."""
    assert "SUCCESS" in run("promtool", "check", "rules", str(RULES))


def test_promtool_finds_the_numbers_expected() -> None:
    """80, 40, 0 and 0 % are 60 % of those busy; all idle is 0; nothing scraped is nothing."""
    assert "SUCCESS" in run("promtool", "test", "rules", str(Path(__file__).parent / "rules_test.yml"))


@pytest.mark.parametrize("metric", ["gpu_utilization_ratio", "gpu_in_use_seconds_total", "container_gpu_detected"])
def test_the_rules_ask_for_metrics_there_are(metric: str) -> None:
    """A metric that is renamed must be renamed here too."""
    text = RULES.read_text()

    assert metric in text
    assert metric in {family.name for family in CATALOG}


def test_every_rule_is_tested() -> None:
    """Each record of the rules is in the expectations."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    expected = (Path(__file__).parent / "rules_test.yml").read_text()

    assert [rule["record"] for group in groups for rule in group["rules"] if rule["record"] not in expected] == []
