"""A tick as JSON for scripts: the metric families of the catalog, and the learned fingerprints."""

from __future__ import annotations

import json
from typing import Any

from gpuledger.catalog import CATALOG, Kind
from gpuledger.model import Tick


def tick_json(tick: Tick) -> bytes:
    """`{"time": ..., "metrics": {name: {"type", "unit", "help", "series": [{"labels": {...}, "value": ...}]}}}`."""
    rows: dict[Kind, dict[Any, Any]] = {family.of: {} for family in CATALOG}
    for of in rows:
        rows[of] = dict(of.things(tick))  # rows with equal labels become one
    metrics: dict[str, Any] = {}
    for family in CATALOG:
        series = []
        names = (*family.of.labels, *family.labels)
        for values, thing in rows[family.of].items():
            if family.series is not None:
                samples = list(family.series(thing))
            else:
                value = family.value(thing) if family.value is not None else None
                samples = [] if value is None else [((), value)]
            series += [
                {"labels": dict(zip(names, (*values, *extra), strict=True)), "value": value} for extra, value in samples
            ]
        if series:
            metrics[family.name] = {
                "type": family.type.value, "unit": family.unit, "help": family.help, "series": series,
            }  # fmt: skip
    return (json.dumps({"time": tick.time_ns / 1e9, "metrics": metrics}, indent=1) + "\n").encode()


def learned_json(tick: Tick) -> bytes:
    """`{"fingerprints": [{"workload": {...}, "behaviours": [{"seconds", "power_watts", "activity": {...}}]}]}`."""
    fingerprints = [
        {
            "workload": dict(learned.workload),
            "behaviours": [
                {
                    "seconds": behaviour.seconds,
                    "power_watts": behaviour.power_mw / 1000,
                    "activity": dict(behaviour.activity),
                }
                for behaviour in learned.behaviours
            ],
        }
        for learned in tick.learned
    ]
    return (json.dumps({"time": tick.time_ns / 1e9, "fingerprints": fingerprints}, indent=1) + "\n").encode()
