"""The manifests in deploy/autoscaling, what may be in them, and what a HorizontalPodAutoscaler makes of a value."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "autoscaling"
SCHEMAS = yaml.safe_load((Path(__file__).parent / "schemas.yaml").read_text())
TYPES = {"string": str, "integer": int, "object": dict}
TOLERANCE = 0.1
"""Kubernetes does nothing about a ratio this near to 1."""


def manifest(name: str) -> Any:
    """One of them."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def check(value: Any, schema: Any, at: str = "") -> None:
    """AssertionError where something is missing, unknown or of another type."""
    if schema == "strings":
        assert all(type(one) is str for one in value.values()), f"{at}: {value}"
    elif isinstance(schema, str) and schema in TYPES:
        assert type(value) is TYPES[schema], f"{at}: {value!r} is no {schema}"
    elif isinstance(schema, str):
        assert value == schema, f"{at}: {value!r} is not {schema}"
    elif isinstance(schema, list) and isinstance(schema[0], dict):
        assert isinstance(value, list), at
        for one in value:
            check(one, schema[0], at)
    elif isinstance(schema, list):
        assert value in schema, f"{at}: {value!r} is none of {schema}"
    else:
        known = {name.rstrip("!"): inner for name, inner in schema.items()}
        assert not set(value) - set(known), f"{at}: there is no {set(value) - set(known)}"
        missing = {name[:-1] for name in schema if name.endswith("!")} - set(value)
        assert not missing, f"{at}: {missing} is missing"
        for name, inner in value.items():
            check(inner, known[name], f"{at}.{name}")


def replicas(current: int, value: float, target: float, least: int, most: int) -> int:
    """As Kubernetes does it for a metric of type Value."""
    ratio = value / target
    wanted = current if abs(ratio - 1) <= TOLERANCE else ceil(current * ratio)
    return min(most, max(least, wanted))
