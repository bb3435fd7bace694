"""Snapshots as JSON, and the JSON Schema of each record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from gpuledger.errors import SnapshotError
from gpuledger.storage.codec import tolerant
from gpuledger.web.snapshot.schema import VERSION, Snapshot

UPGRADE = "install the same version of gpuledger on both hosts"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def encode(record: object, indent: int | None = None) -> bytes:
    """A record as JSON."""
    separators = (",", ":") if indent is None else None
    return json.dumps(record, default=_as_dict, indent=indent, separators=separators, allow_nan=False).encode()


def _as_dict(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in _names(type(record))}  # type: ignore[arg-type]  # a class is hashable


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def decode(data: object) -> Snapshot:
    """The snapshot in parsed JSON, as far as it can be used. Raises SnapshotError if `data` is no snapshot."""
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise SnapshotError("not a gpuledger snapshot", kind="format")
    if version != VERSION:
        raise SnapshotError(f"snapshot version {version} is not supported, only {VERSION}", UPGRADE, "version")
    return tolerant(Snapshot, data)


def schemas(*kinds: Any) -> dict[str, Any]:
    """The JSON Schema of these records and of all records inside them, by component name."""
    components: dict[str, Any] = {}
    for kind in kinds:
        _describe(kind, components)
    return components


def _describe(kind: Any, components: dict[str, Any]) -> dict[str, str]:
    """Add a record to the components; returns the reference to it."""
    name = kind.__name__.removesuffix("Row")
    if name not in components:
        components[name] = described = {"type": "object", "description": kind.__doc__, "required": list(_names(kind))}
        hints = get_type_hints(kind, include_extras=True)
        described["properties"] = {field: _schema(hints[field], components) for field in _names(kind)}
    return {"$ref": f"#/components/schemas/{name}"}


def _schema(hint: Any, components: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_schema(inner[0], components), "description": inner[1]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, UnionType):
        types = [PLAIN.get(kind) for kind in inner]
        return {"type": types} if all(types) else {"anyOf": [_schema(kind, components) for kind in inner]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0], components)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(inner[1], components)}
    return _describe(hint, components) if is_dataclass(hint) else {"type": PLAIN[hint]}
