"""Panels, queries and variables of the committed dashboards, for tests."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "mixin" / "dashboards"
FILES: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


@dataclass(frozen=True)
class PanelQuery:
    """One query of one panel."""

    dashboard: str
    panel: str
    name: str
    promql: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.name}"


def panels(dashboard: str) -> list[Any]:
    """Panels of a dashboard without row headings."""
    return [panel for panel in FILES[dashboard]["panels"] if panel["type"] != "row"]


QUERIES = [
    PanelQuery(name, panel["title"], target["legendFormat"], target["expr"])
    for name in FILES
    for panel in panels(name)
    for target in panel["targets"]
]


RULED = "gpuledger-tokens"
"""The dashboard of recording rules, whose series have no cluster, job or node. tests/real/test_tokens.py runs it."""
PLACED = [name for name in FILES if name != RULED]
PLACED_QUERIES = [query for query in QUERIES if query.dashboard != RULED]


def variables(dashboard: str, kind: str = "query") -> dict[str, Any]:
    """Variables of one kind, by name."""
    return {item["name"]: item for item in FILES[dashboard]["templating"]["list"] if item["type"] == kind}


def fill_variables(text: str, dashboard: str, selected: Mapping[str, str], *, interval: str, span: str) -> str:
    """Replace variables like Grafana: the selected value, else the value of All, else the default of a text box."""
    values = {name: item["query"] for name, item in variables(dashboard, "textbox").items()}
    values |= {name: item["allValue"] for name, item in variables(dashboard).items()}
    values |= {"__rate_interval": interval, "__range": span} | dict(selected)
    return re.sub(r"\$([a-z_]\w*)", lambda match: values[match[1]], text)
