"""The committed dashboards, as tests read them: their panels, queries and variables."""

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
class Asked:
    """One query of one panel."""

    dashboard: str
    panel: str
    name: str
    promql: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.name}"


def panels(dashboard: str) -> list[Any]:
    """All but the headings."""
    return [panel for panel in FILES[dashboard]["panels"] if panel["type"] != "row"]


QUERIES = [
    Asked(name, panel["title"], target["legendFormat"], target["expr"])
    for name in FILES
    for panel in panels(name)
    for target in panel["targets"]
]


def variables(dashboard: str, kind: str = "query") -> dict[str, Any]:
    """The variables of one kind, by name."""
    return {one["name"]: one for one in FILES[dashboard]["templating"]["list"] if one["type"] == kind}


def filled(text: str, dashboard: str, chosen: Mapping[str, str], *, interval: str, span: str) -> str:
    """As Grafana fills in variables: what is chosen, else what All stands for, else what a text box begins with."""
    values = {name: one["query"] for name, one in variables(dashboard, "textbox").items()}
    values |= {name: one["allValue"] for name, one in variables(dashboard).items()}
    values |= {"__rate_interval": interval, "__range": span} | dict(chosen)
    return re.sub(r"\$([a-z_]\w*)", lambda match: values[match[1]], text)
