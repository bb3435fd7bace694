"""Write the dashboards to mixin/dashboards; with a folder as argument, as grafana.com wants them."""

from __future__ import annotations

import json
import sys
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


def render_import(dashboard: Dashboard) -> str:
    """The same with `__inputs`: an import asks for the data source. Provisioning does not replace inputs."""
    name, plugin = "DS_PROMETHEUS", {"id": "prometheus", "name": "Prometheus"}
    made = json.loads(render(dashboard))
    (variable,) = (item for item in made["templating"]["list"] if item["type"] == "datasource")
    variable["current"] = {"text": "Prometheus", "value": f"${{{name}}}"}
    return json.dumps({
        "__inputs": [{"name": name, "label": "Prometheus", "description": "", "type": "datasource",
                      "pluginId": plugin["id"], "pluginName": plugin["name"]}],
        "__requires": [{"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.0.0"},
                       {"type": "datasource", **plugin, "version": "1.0.0"}],
        **made,
    }, indent=2) + "\n"  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    for name, dashboard in DASHBOARDS.items():
        text = render(dashboard) if folder == FOLDER else render_import(dashboard)
        (folder / name).write_text(text, encoding="utf-8")
        print(f"wrote {folder.name}/{name}")
