"""Committed dashboards are up to date, complete, and use known metrics. tests/real/test_mixin.py runs their queries."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.dashboards.__main__ import DASHBOARDS, FOLDER, render, render_import

from gpuledger.catalog import CATALOG, OPTIONAL, families_in
from tests.mixin.dashboards import FILES, PLACED_QUERIES, QUERIES, PanelQuery, panels, variables
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
    """The files are identical to the output of `make dashboards`."""
    assert (FOLDER / name).read_text() == render(DASHBOARDS[name]), "run `make dashboards`"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_an_import_asks_for_the_data_source(name: str) -> None:
    """The files for grafana.com differ in their inputs and in the data source that is chosen at first."""
    text = render_import(DASHBOARDS[name])
    imported, provisioned = json.loads(text), json.loads(render(DASHBOARDS[name]))

    (given,) = imported.pop("__inputs")
    assert (given["type"], given["pluginId"]) == ("datasource", "prometheus")
    assert text.count(f"${{{given['name']}}}") == 1
    assert {required["id"] for required in imported.pop("__requires")} == {"grafana", "prometheus"}
    for dashboard in (imported, provisioned):
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "datasource":
                del variable["current"]
    assert imported == provisioned


def test_no_file_is_left_over() -> None:
    """A renamed dashboard leaves no old file."""
    assert {path.name for path in FOLDER.iterdir()} == set(DASHBOARDS)


def test_panels_of_optional_metrics_name_the_flag() -> None:
    """Every other panel works with the default settings."""
    for group in OPTIONAL:
        names = {family.name for family in families_in([group])}
        for dashboard in FILES:
            for panel in panels(dashboard):
                if any(metrics(target["expr"]) & names for target in panel.get("targets", ())):
                    assert f"--collector.{group}" in panel["description"]


@pytest.mark.parametrize("dashboard", FILES)
def test_each_dashboard_has_its_own_identity(dashboard: str) -> None:
    """A stable uid, the tag that the dashboard links use, and a schema that Grafana 10 and newer read."""
    model = FILES[dashboard]

    assert model["uid"] == dashboard
    assert model["id"] is None
    assert model["tags"] == ["gpuledger"]
    assert model["links"][0]["tags"] == ["gpuledger"]
    assert model["schemaVersion"] >= 39
    assert model["title"]
    assert model["description"]


@pytest.mark.parametrize("dashboard", FILES)
def test_panels_have_unique_ids_and_positions(dashboard: str) -> None:
    """Ids and titles are unique, panels do not overlap, and no panel is wider than the grid."""
    all_panels = FILES[dashboard]["panels"]
    ids = [panel["id"] for panel in all_panels]

    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in all_panels}) == len(all_panels)
    for panel in all_panels:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for panel, other in combinations(all_panels, 2):
        assert not _overlap(panel["gridPos"], other["gridPos"]), (panel["title"], other["title"])


@pytest.mark.parametrize("dashboard", FILES)
def test_panels_are_described(dashboard: str) -> None:
    """Each panel has a title, description, unit, thresholds, legends, and the data source variable."""
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
    """Each value column has a name and a unit."""
    for panel in panels(dashboard):
        if panel["type"] == "table":
            names = [target["legendFormat"] for target in panel["targets"]]
            renamed = panel["transformations"][1]["options"]["renameByName"]
            units = {item["matcher"]["options"]: item["properties"][0]["value"] for item in _unit_overrides(panel)}
            assert list(renamed.values()) == names
            assert list(units) == names
            assert set(units.values()) <= UNITS


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_queries_use_known_metrics(query: PanelQuery) -> None:
    """Metrics of the catalog and of the recording rules."""
    assert _metrics(query.promql)
    assert _metrics(query.promql) - KNOWN == set()


@pytest.mark.parametrize("query", PLACED_QUERIES, ids=str)
def test_queries_respect_the_variables(query: PanelQuery) -> None:
    """Each selector filters by cluster, job and node."""
    for matchers in re.findall(r"\{([^{}]*)\}", query.promql):
        for name in ("cluster", "job", "instance"):
            assert f'{name}=~"${name}"' in matchers


@pytest.mark.parametrize("dashboard", FILES)
def test_every_variable_is_defined_and_used(dashboard: str) -> None:
    """Queries, titles and links use exactly the variables that the dashboard defines."""
    listed = {item["name"] for item in FILES[dashboard]["templating"]["list"]}
    text = str(FILES[dashboard]["panels"])
    named = set(re.findall(r"\$\{?([a-z_]\w*)", text)) - BUILT_IN - {"__data", "__value"}

    assert named == listed


@pytest.mark.parametrize("dashboard", FILES)
def test_variables_depend_on_the_previous_variables(dashboard: str) -> None:
    """They query known metrics, and All is `.*`, which also matches series without the label."""
    before: set[str] = set()
    for name, variable in variables(dashboard).items():
        query = variable["query"]["query"]
        series = re.sub(r"^label_values\((.*), \w+\)$", r"\1", query)
        assert _metrics(series)
        assert _metrics(series) - KNOWN == set()
        assert set(re.findall(r"\$(\w+)", query)) == before
        assert variable["definition"] == query
        assert (variable["allValue"], variable["multi"]) == (".*", True)
        assert variable["includeAll"] is ((dashboard, name) != ("gpuledger-node", "instance"))
        before.add(name)


@pytest.mark.parametrize("dashboard", ["gpuledger-fleet", "gpuledger-energy"])
def test_fleet_dashboards_query_few_series(dashboard: str) -> None:
    """They query processes only outside of containers, which have no other total, and have no line per GPU."""
    for query in QUERIES:
        if query.dashboard == dashboard:
            assert "{{gpu}}" not in query.name
            for name, matchers in re.findall(r"(gpu_process_\w+_total)\{([^{}]*)\}", query.promql):
                assert 'container_id=""' in matchers, (query, name)


def test_links_lead_to_known_dashboards() -> None:
    """The links set only variables of the target dashboard."""
    links = re.findall(r"/d/([\w-]+)\?([^'\"]*)", "".join(path.read_text() for path in FOLDER.iterdir()))

    assert len(links) > 2
    for dashboard, parameters in links:
        listed = {item["name"] for item in FILES[dashboard]["templating"]["list"]}
        assert set(re.findall(r"var-(\w+)=", parameters)) <= listed


def test_the_page_names_every_dashboard() -> None:
    """docs/dashboards.md has one row for each file."""
    page = (ROOT / "docs" / "dashboards.md").read_text()

    assert set(re.findall(r"`(gpuledger-\w+\.json)`", page)) == set(DASHBOARDS)


def _overlap(first: Any, second: Any) -> bool:
    horizontal = first["x"] < second["x"] + second["w"] and second["x"] < first["x"] + first["w"]
    vertical = first["y"] < second["y"] + second["h"] and second["y"] < first["y"] + first["h"]
    return bool(horizontal and vertical)


def _unit_overrides(panel: Any) -> list[Any]:
    return [item for item in panel["fieldConfig"]["overrides"] if item["properties"][0]["id"] == "unit"]


def _metrics(promql: str) -> set[str]:
    """Names of the metrics in a query, including those that a `__name__` matcher matches."""
    matched = set()
    for pattern in re.findall(r'__name__=~"([^"]*)"', promql):
        matched |= {name for name in KNOWN if re.fullmatch(pattern, name)}
    return metrics(promql) | matched
