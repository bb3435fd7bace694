"""A tick as JSON for scripts: the metric families of the catalog, and the learned fingerprints."""

from __future__ import annotations

import json
from typing import Any

from gpuledger.catalog import CATALOG
from gpuledger.catalog.family import with_things
from gpuledger.model import Tick


def tick_json(tick: Tick) -> bytes:
    """`{"time": ..., "metrics": {name: {"type", "unit", "help", "series": [{"labels": {...}, "value": ...}]}}}`."""
    metrics: dict[str, Any] = {}
    for family, things in with_things(CATALOG, tick):
        names = (*family.of.labels, *family.labels)
        series = [
            {"labels": dict(zip(names, (*values, *extra), strict=False)), "value": value}
            for values, thing in things
            for extra, value in family.samples(thing)
        ]
        if series:
            metrics[family.name] = {
                "type": family.type.value, "unit": family.unit, "help": family.help, "series": series,
            }  # fmt: skip
    return (json.dumps({"time": tick.time_ns / 1e9, "metrics": metrics}, indent=1) + "\n").encode()


def learned_json(tick: Tick) -> bytes:
    """`{"fingerprints": [{"workload": {...}, "seconds", "power_ratio", "activity": {...}}]}`."""
    fingerprints = [
        {
            "workload": dict(learned.workload),
            "seconds": learned.seconds,
            "power_ratio": learned.power_ratio,
            "activity": dict(learned.activity),
        }
        for learned in tick.learned
    ]
    return (json.dumps({"time": tick.time_ns / 1e9, "fingerprints": fingerprints}, indent=1) + "\n").encode()
