"""Manifests in deploy/autoscaling, a check against their schemas, and the formula of the HorizontalPodAutoscaler."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "autoscaling"
SCHEMAS = yaml.safe_load((Path(__file__).parent / "schemas.yaml").read_text())
TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict}
TOLERANCE = 0.1
"""Kubernetes does not scale if the ratio differs from 1 by at most this."""


def manifest(name: str) -> Any:
    """Content of one manifest."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def check(value: Any, schema: Any, at: str = "") -> None:
    """Raise AssertionError if a field is missing, unknown or of the wrong type."""
    if schema == "strings":
        assert all(type(item) is str for item in value.values()), f"{at}: {value}"
    elif isinstance(schema, str) and schema in TYPES:
        assert type(value) is TYPES[schema], f"{at}: {value!r} is not of type {schema}"
    elif isinstance(schema, str):
        assert value == schema, f"{at}: {value!r} is not {schema}"
    elif isinstance(schema, list) and isinstance(schema[0], dict):
        assert isinstance(value, list), at
        for item in value:
            check(item, schema[0], at)
    elif isinstance(schema, list):
        assert value in schema, f"{at}: {value!r} is not in {schema}"
    else:
        known = {name.rstrip("!"): inner for name, inner in schema.items()}
        assert not set(value) - set(known), f"{at}: unknown fields {set(value) - set(known)}"
        missing = {name[:-1] for name in schema if name.endswith("!")} - set(value)
        assert not missing, f"{at}: {missing} missing"
        for name, inner in value.items():
            check(inner, known[name], f"{at}.{name}")


def replicas(current: int, value: float, target: float, least: int, most: int) -> int:
    """Replicas that Kubernetes calculates for a metric of type Value."""
    ratio = value / target
    wanted = current if abs(ratio - 1) <= TOLERANCE else ceil(current * ratio)
    return min(most, max(least, wanted))
