"""The recording rules, by Prometheus's own tool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpuledger.catalog import families_in, groups_with
from gpuledger.catalog.others import ENGINES
from tests.mixin.rules import NAMES, RULES
from tests.real.daemons import run

pytestmark = pytest.mark.needs("promtool")

TESTS = Path(__file__).parent
FILES = [
    ("gpuledger-fleet.yml", "rules_test.yml"),
    ("gpuledger-namespaces.yml", "namespaces_test.yml"),
    ("gpuledger-tokens.yml", "tokens_test.yml"),
]


@pytest.mark.parametrize(("rules", "_"), FILES)
def test_promtool_accepts_the_rules(rules: str, _: str) -> None:
    """Prometheus would load them."""
    assert "SUCCESS" in run("promtool", "check", "rules", str(RULES / rules))


@pytest.mark.parametrize(("_", "expected"), FILES)
def test_promtool_finds_the_numbers_expected(_: str, expected: str) -> None:
    """80, 40, 0 and 0 % are 60 % of those busy; all idle is 0; nothing scraped is nothing; sums over time are right."""
    assert "SUCCESS" in run("promtool", "test", "rules", str(TESTS / expected))


@pytest.mark.parametrize(("rules", "_"), FILES)
def test_the_rules_ask_for_metrics_there_are(rules: str, _: str) -> None:
    """They are exposed by default; a metric that is renamed must be renamed here too."""
    expressions = [rule["expr"] for group in yaml.safe_load((RULES / rules).read_text())["groups"]
                   for rule in group["rules"]]  # fmt: skip
    bare = [re.sub(r"(cluster|namespace|pod|model):[a-z_0-9:]+", "", text) for text in expressions]
    asked = {name for text in bare for name in NAMES.findall(text)}

    assert len(asked) > 3
    assert asked - {family.name for family in families_in(groups_with([]))} == set()


@pytest.mark.parametrize(("rules", "expected"), FILES)
def test_every_rule_is_tested(rules: str, expected: str) -> None:
    """Each record of the rules is in the expectations."""
    groups = yaml.safe_load((RULES / rules).read_text())["groups"]
    text = (TESTS / expected).read_text()

    assert [rule["record"] for group in groups for rule in group["rules"] if rule["record"] not in text] == []


def test_the_rules_ask_for_the_counters_of_all_servers() -> None:
    """A kind of server that `--tokens.scrape` reads is in the rules, too."""
    text = (RULES / "gpuledger-tokens.yml").read_text()

    assert [engine.name for engine in ENGINES if engine.prompt not in text or engine.output not in text] == []
