"""What a dashboard is made of, and how Grafana wants it written down."""

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
"""From this value on it has this colour; the first one from None on."""
PLAIN: tuple[Step, ...] = ((None, "blue"),)
BAD_ABOVE_0: tuple[Step, ...] = ((None, "green"), (0.0000001, "red"))


@dataclass(frozen=True, slots=True)
class Query:
    """One question, and the name of what it gives: labels in double braces, or the column of a table."""

    promql: str
    name: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. Its title is its name: the number Grafana knows it by is made of it, so that links to it last."""

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
    """The name of a line that stands beside a stack and is no part of it."""
    columns: Mapping[str, str] | None = None
    """Of a table: the unit of each column of values."""
    hidden: Sequence[str] = ()
    """Of a table: labels that are not shown."""
    links: Mapping[str, str] | None = None
    """Of a table: where a click on the values of a label leads."""

    @property
    def number(self) -> int:
        """As Grafana knows it."""
        return zlib.crc32(self.title.encode()) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One file."""

    name: str
    title: str
    description: str
    variables: tuple[Json, ...]
    rows: tuple[Row, ...]
    span: str = "now-3h"

    def json(self) -> Json:
        """As Grafana reads it."""
        return {
            "annotations": {"list": []},
            "description": self.description,
            "editable": True,
            "graphTooltip": 1,  # one crosshair for all panels
            "id": None,
            "links": [_to_the_others()],
            "panels": _placed(self.rows),
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
    """Lines over time."""
    return Panel("timeseries", title, description, queries, unit, **more)


def stat(title: str, description: str, unit: str, promql: str, **more: Any) -> Panel:
    """One number."""
    return Panel("stat", title, description, (Query(promql, title),), unit, **{"width": 3, "height": 4, **more})


def bars(title: str, description: str, unit: str, *queries: Query, **more: Any) -> Panel:
    """A bar for each."""
    return Panel("bargauge", title, description, queries, unit, **more)


def table(title: str, description: str, columns: Mapping[str, tuple[str, str]], **more: Any) -> Panel:
    """Rows of labels; each column of values has a name, a query and a unit. Joined by the labels all of them have."""
    queries = tuple(Query(promql, name) for name, (promql, _) in columns.items())
    units = {name: unit for name, (_, unit) in columns.items()}
    return Panel("table", title, description, queries, "none", columns=units, **{"width": 24, **more})


def _to_the_others() -> Json:
    return {
        "asDropdown": False, "icon": "external link", "includeVars": True, "keepTime": True, "tags": [TAG],
        "targetBlank": False, "title": "", "tooltip": "", "type": "dashboards", "url": "",
    }  # fmt: skip


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Left to right, and down where a line is full."""
    found: list[Json] = []
    top = 0
    for row in rows:
        number = zlib.crc32(f"row {row.title}".encode()) & 0x7FFFFFFF
        found.append({"collapsed": False, "gridPos": _place(0, top, COLUMNS, 1), "id": number, "panels": [],
                      "title": row.title, "type": "row"})  # fmt: skip
        top += 1
        left = highest = 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, highest = top + highest, 0, 0
            found.append(_panel(panel, _place(left, top, panel.width, panel.height)))
            left, highest = left + panel.width, max(highest, panel.height)
        top += highest
    return found


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"h": height, "w": width, "x": left, "y": top}


def _panel(panel: Panel, place: Json) -> Json:
    found = {
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
        found["transformations"] = _columns(panel)
    return found


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
    found: Json = {"mappings": [], "thresholds": {"mode": "absolute", "steps": steps}, "unit": panel.unit}
    if panel.kind == "timeseries":
        found["color"] = {"mode": "palette-classic"}
        found["custom"] = {
            "drawStyle": "line", "fillOpacity": 40 if panel.stacked else 5, "lineWidth": 1, "showPoints": "auto",
            "spanNulls": False, "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
            "thresholdsStyle": {"mode": "off" if panel.steps == PLAIN else "dashed"},
        }  # fmt: skip
    else:
        found["color"] = {"mode": "thresholds"}
    if panel.unit in {"percentunit", "bytes", "watt", "celsius", "short"}:
        found["min"] = 0
    if panel.most is not None:
        found["max"] = panel.most
    return found


def _overrides(panel: Panel) -> list[Json]:
    found = []
    if panel.total:
        alone = {"group": "A", "mode": "none"}
        found.append(_override(panel.total, {"custom.stacking": alone, "custom.fillOpacity": 0,
                                             "custom.lineWidth": 2, "color": _fixed("text")}))  # fmt: skip
    for name, unit in (panel.columns or {}).items():
        found.append(_override(name, {"unit": unit}))
    for label, url in (panel.links or {}).items():
        found.append(_override(label, {"links": [{"title": "Look at it", "url": url}]}))
    return found


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
    """All queries in one table. Grafana calls the values `Value` where there is one query, else `Value #A`."""
    several = len(panel.queries) > 1
    names = {f"Value #{chr(ord('A') + n)}" if several else "Value": q.name for n, q in enumerate(panel.queries)}
    options = {
        "excludeByName": dict.fromkeys(["Time", "__name__", *panel.hidden], True),
        "indexByName": {},
        "renameByName": names,
    }
    return [{"id": "merge", "options": {}}, {"id": "organize", "options": options}]
