"""The committed dashboards: fresh, whole, and about metrics there are. tests/real/test_mixin.py asks their queries."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.dashboards.__main__ import DASHBOARDS, FOLDER, written

from gpuledger.catalog import CATALOG
from tests.mixin.dashboards import FILES, QUERIES, Asked, panels, variables
from tests.mixin.promql import metrics

ROOT = Path(__file__).parents[2]
RECORDED = {
    rule["record"]
    for path in (ROOT / "mixin" / "rules").glob("*.yml")
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}
KNOWN = {family.name for family in CATALOG} | RECORDED
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
BUILT_IN = {"__rate_interval", "__range", "__url_time_range"}
UNITS = {
    "none", "short", "percentunit", "bytes", "Bps", "watt", "kwatth", "joule", "celsius", "hertz", "s", "masskg",
    "dateTimeFromNow",
}  # fmt: skip


@pytest.mark.parametrize("name", DASHBOARDS)
def test_committed_files_are_fresh(name: str) -> None:
    """What `make dashboards` would write is what is there."""
    assert (FOLDER / name).read_text() == written(DASHBOARDS[name]), "run `make dashboards`"


def test_no_file_is_left_over() -> None:
    """Of a dashboard that was renamed."""
    assert {path.name for path in FOLDER.iterdir()} == set(DASHBOARDS)


@pytest.mark.parametrize("dashboard", FILES)
def test_a_dashboard_can_be_told_from_others(dashboard: str) -> None:
    """A lasting address, the tag by which the others link to it, and a schema that Grafana 10 and newer read."""
    found = FILES[dashboard]

    assert found["uid"] == dashboard
    assert found["id"] is None
    assert found["tags"] == ["gpuledger"]
    assert found["links"][0]["tags"] == ["gpuledger"]
    assert found["schemaVersion"] >= 39
    assert found["title"]
    assert found["description"]


@pytest.mark.parametrize("dashboard", FILES)
def test_panels_have_numbers_and_places_of_their_own(dashboard: str) -> None:
    """No two the same, none on top of another, none beside the screen."""
    everything = FILES[dashboard]["panels"]
    numbers = [panel["id"] for panel in everything]

    assert len(set(numbers)) == len(numbers)
    assert len({panel["title"] for panel in everything}) == len(everything)
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(everything, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


@pytest.mark.parametrize("dashboard", FILES)
def test_panels_say_what_they_show(dashboard: str) -> None:
    """Title, description, unit, colours, a name for each line, and a data source that can be chosen."""
    for panel in panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == SOURCE
        assert defaults["unit"] in UNITS
        assert defaults["thresholds"]["steps"][0]["value"] is None
        assert panel["targets"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            assert target["legendFormat"]
            assert target["instant"] is not target["range"]


@pytest.mark.parametrize("dashboard", FILES)
def test_tables_name_their_columns(dashboard: str) -> None:
    """Each column of values has a name and a unit."""
    for panel in panels(dashboard):
        if panel["type"] == "table":
            names = [target["legendFormat"] for target in panel["targets"]]
            renamed = panel["transformations"][1]["options"]["renameByName"]
            units = {one["matcher"]["options"]: one["properties"][0]["value"] for one in _with_units(panel)}
            assert list(renamed.values()) == names
            assert list(units) == names
            assert set(units.values()) <= UNITS


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_queries_ask_for_metrics_there_are(asked: Asked) -> None:
    """Those of the catalog, and of the recording rules."""
    assert _asked_for(asked.promql)
    assert _asked_for(asked.promql) - KNOWN == set()


@pytest.mark.parametrize("asked", QUERIES, ids=str)
def test_queries_heed_what_is_chosen(asked: Asked) -> None:
    """Each series of them is narrowed by cluster, job and node, and by what else the dashboard lets choose of it."""
    for matchers in re.findall(r"\{([^{}]*)\}", asked.promql):
        for name in ("cluster", "job", "instance"):
            assert f'{name}=~"${name}"' in matchers


@pytest.mark.parametrize("dashboard", FILES)
def test_every_variable_is_there_and_used(dashboard: str) -> None:
    """What queries, titles and links name can be chosen, and what can be chosen is asked for."""
    listed = {one["name"] for one in FILES[dashboard]["templating"]["list"]}
    text = str(FILES[dashboard]["panels"])
    named = set(re.findall(r"\$\{?([a-z_]\w*)", text)) - BUILT_IN - {"__data", "__value"}

    assert named == listed


@pytest.mark.parametrize("dashboard", FILES)
def test_variables_follow_from_those_before_them(dashboard: str) -> None:
    """Asked of metrics there are; `.*` for all, so that series without the label are in it."""
    before: set[str] = set()
    for name, one in variables(dashboard).items():
        query = one["query"]["query"]
        series = re.sub(r"^label_values\((.*), \w+\)$", r"\1", query)
        assert _asked_for(series)
        assert _asked_for(series) - KNOWN == set()
        assert set(re.findall(r"\$(\w+)", query)) == before
        assert one["definition"] == query
        assert (one["allValue"], one["multi"]) == (".*", True)
        assert one["includeAll"] is ((dashboard, name) != ("gpuledger-node", "instance"))
        before.add(name)


@pytest.mark.parametrize("dashboard", ["gpuledger-fleet", "gpuledger-energy"])
def test_dashboards_of_all_nodes_ask_for_few_series(dashboard: str) -> None:
    """Of processes only those outside of containers, which have no total elsewhere; no line for each GPU."""
    for asked in QUERIES:
        if asked.dashboard == dashboard:
            assert "{{gpu}}" not in asked.name
            for name, matchers in re.findall(r"(gpu_process_\w+_total)\{([^{}]*)\}", asked.promql):
                assert 'container_id=""' in matchers, (asked, name)


def test_links_lead_to_dashboards_there_are() -> None:
    """With variables that those have."""
    links = re.findall(r"/d/([\w-]+)\?([^'\"]*)", "".join(path.read_text() for path in FOLDER.iterdir()))

    assert len(links) > 2
    for dashboard, parameters in links:
        listed = {one["name"] for one in FILES[dashboard]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", parameters)) <= listed


def test_the_page_names_every_dashboard() -> None:
    """docs/dashboards.md has a row for each file."""
    page = (ROOT / "docs" / "dashboards.md").read_text()

    assert set(re.findall(r"`(gpuledger-\w+\.json)`", page)) == set(DASHBOARDS)


def _overlap(one: Any, other: Any) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    down = one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]
    return bool(across and down)


def _with_units(panel: Any) -> list[Any]:
    return [one for one in panel["fieldConfig"]["overrides"] if one["properties"][0]["id"] == "unit"]


def _asked_for(promql: str) -> set[str]:
    """Names of metrics, those in a matcher of `__name__` too."""
    spelled = set()
    for pattern in re.findall(r'__name__=~"([^"]*)"', promql):
        spelled |= {name for name in KNOWN if re.fullmatch(pattern, name)}
    return metrics(promql) | spelled
