"""Write the dashboards to mixin/dashboards."""

from __future__ import annotations

import json
from pathlib import Path

from tools.dashboards.energy import ENERGY
from tools.dashboards.fleet import FLEET
from tools.dashboards.grafana import Dashboard
from tools.dashboards.node import NODE
from tools.dashboards.tokens import TOKENS
from tools.dashboards.workload import WORKLOAD

FOLDER = Path(__file__).parents[2] / "mixin" / "dashboards"
DASHBOARDS = {f"gpuledger-{dashboard.name}.json": dashboard for dashboard in (NODE, FLEET, WORKLOAD, ENERGY, TOKENS)}


def render(dashboard: Dashboard) -> str:
    """Content of the dashboard's JSON file."""
    return json.dumps(dashboard.json(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        (FOLDER / name).write_text(render(dashboard), encoding="utf-8")
        print(f"wrote mixin/dashboards/{name}")
