"""Dashboards, rows, panels and queries, and their JSON model in Grafana."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

SCHEMA_VERSION = 39
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "gpuledger"

Step = tuple[float | None, str]
"""Lower bound and colour of a threshold; the bound of the first step is None."""
PLAIN: tuple[Step, ...] = ((None, "blue"),)
BAD_ABOVE_0: tuple[Step, ...] = ((None, "green"), (0.0000001, "red"))


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query and its legend: labels in double braces, or the column of a table."""

    promql: str
    name: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Its id is derived from its title, so that links to it stay valid."""

    kind: str
    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str
    width: int = 8
    height: int = 8
    steps: tuple[Step, ...] = PLAIN
    most: float | None = None
    stacked: bool = False
    total: str = ""
    """Legend of a line that is not part of the stack."""
    columns: Mapping[str, str] | None = None
    """Tables: unit of each value column."""
    hidden: Sequence[str] = ()
    """Tables: labels to hide."""
    links: Mapping[str, str] | None = None
    """Tables: link target for the values of a label."""

    @property
    def number(self) -> int:
        """Panel id in Grafana."""
        return zlib.crc32(self.title.encode()) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Row:
    """Heading with the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard file."""

    name: str
    title: str
    description: str
    variables: tuple[Json, ...]
    rows: tuple[Row, ...]
    span: str = "now-3h"

    def json(self) -> Json:
        """JSON model of the dashboard."""
        return {
            "annotations": {"list": []},
            "description": self.description,
            "editable": True,
            "graphTooltip": 1,  # one crosshair for all panels
            "id": None,
            "links": [_dashboard_links()],
            "panels": _layout(self.rows),
            "refresh": "30s",
            "schemaVersion": SCHEMA_VERSION,
            "tags": [TAG],
            "templating": {"list": list(self.variables)},
            "time": {"from": self.span, "to": "now"},
            "timepicker": {},
            "timezone": "",
            "title": self.title,
            "uid": f"gpuledger-{self.name}",
            "version": 1,
            "weekStart": "",
        }


def timeseries(title: str, description: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Panel with lines over time."""
    return Panel("timeseries", title, description, queries, unit, **more)


def stat(title: str, description: str, unit: str, promql: str, **more: Any) -> Panel:
    """Panel with one value."""
    return Panel("stat", title, description, (Query(promql, title),), unit, **{"width": 3, "height": 4, **more})


def bars(title: str, description: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """Panel with one bar per series."""
    return Panel("bargauge", title, description, queries, unit, **more)


def table(title: str, description: str, columns: Mapping[str, tuple[str, str]], **more: Any) -> Panel:
    """Table panel with a name, a query and a unit per value column, joined by the labels that all queries share."""
    queries = tuple(Query(promql, name) for name, (promql, _) in columns.items())
    units = {name: unit for name, (_, unit) in columns.items()}
    return Panel("table", title, description, queries, "none", columns=units, **{"width": 24, **more})


def _dashboard_links() -> Json:
    return {
        "asDropdown": False, "icon": "external link", "includeVars": True, "keepTime": True, "tags": [TAG],
        "targetBlank": False, "title": "", "tooltip": "", "type": "dashboards", "url": "",
    }  # fmt: skip


def _layout(rows: Sequence[Row]) -> list[Json]:
    """Place panels from left to right, and start a new line where one is full."""
    placed: list[Json] = []
    top = 0
    for row in rows:
        number = zlib.crc32(f"row {row.title}".encode()) & 0x7FFFFFFF
        placed.append({"collapsed": False, "gridPos": _place(0, top, COLUMNS, 1), "id": number, "panels": [],
                       "title": row.title, "type": "row"})  # fmt: skip
        top += 1
        left = highest = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, highest = top + highest, 0, 0
            placed.append(_panel(panel, _place(left, top, panel.width, panel.height)))
            left, highest = left + panel.width, max(highest, panel.height)
        top += highest
    return placed


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"h": height, "w": width, "x": left, "y": top}


def _panel(panel: Panel, place: Json) -> Json:
    model = {
        "datasource": SOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "gridPos": place,
        "id": panel.number,
        "options": _OPTIONS[panel.kind],
        "targets": [_target(panel, query, chr(ord("A") + n)) for n, query in enumerate(panel.queries)],
        "title": panel.title,
        "type": panel.kind,
    }
    if panel.kind == "table":
        model["transformations"] = _columns(panel)
    return model


_REDUCED = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"calcs": ["mean", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
             "reduceOptions": _REDUCED, "textMode": "value"},
    "bargauge": {"displayMode": "basic", "orientation": "horizontal", "reduceOptions": _REDUCED,
                 "showUnfilled": True, "valueMode": "color"},
    "table": {"cellHeight": "sm", "footer": {"countRows": False, "fields": "", "reducer": ["sum"], "show": False},
              "showHeader": True},
}  # fmt: skip


def _defaults(panel: Panel) -> Json:
    steps = [{"color": colour, "value": value} for value, colour in panel.steps]
    defaults: Json = {"mappings": [], "thresholds": {"mode": "absolute", "steps": steps}, "unit": panel.unit}
    if panel.kind == "timeseries":
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line", "fillOpacity": 40 if panel.stacked else 5, "lineWidth": 1, "showPoints": "auto",
            "spanNulls": False, "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "off" if panel.steps == PLAIN else "dashed"},
        }  # fmt: skip
    else:
        defaults["color"] = {"mode": "thresholds"}
    if panel.unit in {"percentunit", "bytes", "watt", "celsius", "short"}:
        defaults["min"] = 0
    if panel.most is not None:
        defaults["max"] = panel.most
    return defaults


def _overrides(panel: Panel) -> list[Json]:
    overrides = []
    if panel.total:
        unstacked = {"group": "A", "mode": "none"}
        overrides.append(_override(panel.total, {"custom.stacking": unstacked, "custom.fillOpacity": 0,
                                                 "custom.lineWidth": 2, "color": _fixed("text")}))  # fmt: skip
    for name, unit in (panel.columns or {}).items():
        overrides.append(_override(name, {"unit": unit}))
    for label, url in (panel.links or {}).items():
        overrides.append(_override(label, {"links": [{"title": "Open the dashboard", "url": url}]}))
    return overrides


def _fixed(colour: str) -> Json:
    return {"fixedColor": colour, "mode": "fixed"}


def _override(name: str, properties: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def _target(panel: Panel, query: Query, letter: str) -> Json:
    over_time = panel.kind == "timeseries"
    return {
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.promql,
        "format": "table" if panel.kind == "table" else "time_series",
        "instant": not over_time,
        "legendFormat": query.name,
        "range": over_time,
        "refId": letter,
    }


def _columns(panel: Panel) -> list[Json]:
    """Merge all queries into one table. Grafana names the value column `Value` for one query, else `Value #A`."""
    several = len(panel.queries) > 1
    names = {f"Value #{chr(ord('A') + n)}" if several else "Value": q.name for n, q in enumerate(panel.queries)}
    options = {
        "excludeByName": dict.fromkeys(["Time", "__name__", *panel.hidden], True),
        "indexByName": {},
        "renameByName": names,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]
