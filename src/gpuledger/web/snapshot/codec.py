"""Snapshots as JSON: the encoder, a tolerant decoder, and the JSON Schema of each record."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from gpuledger.errors import SnapshotError
from gpuledger.web.snapshot.schema import VERSION, Snapshot

MAX_ROWS = 20_000
"""Rows of one list; an exporter shows 10,000 processes at most."""
MAX_NAME = 512
"""Characters of a string, and entries of a mapping."""
MAX_NUMBER = 1e18
"""Larger numbers are not plausible and would not fit into a column."""
AMBIGUOUS_WIDTH = (("\u2630", "\u2637"), ("\u268a", "\u268f"), ("\u4dc0", "\u4dff"), ("\U0001d300", "\U0001d376"))
"""Trigrams, hexagrams and similar: one column wide before Unicode 16 and two since; terminals disagree."""
UPGRADE = "install the same version of gpuledger on both hosts"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
Decoder = Callable[[object], Any]
_MISSING: Any = object()


def encode(record: object, indent: int | None = None) -> bytes:
    """A record as JSON."""
    separators = (",", ":") if indent is None else None
    return json.dumps(record, default=_as_dict, indent=indent, separators=separators, allow_nan=False).encode()


def _as_dict(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in _names(type(record))}  # type: ignore[arg-type]  # a class is hashable


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


# Decoding


def decode(data: object) -> Snapshot:
    """The snapshot in parsed JSON, which may come from another version or from an untrusted host.

    Unknown fields are ignored. A value of a wrong type becomes the field's default, and a list item without its
    required fields is dropped. Strings contain no control characters. Raises SnapshotError if `data` is no snapshot.
    """
    version = data.get("version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise SnapshotError("not a gpuledger snapshot", kind="format")
    if version != VERSION:
        raise SnapshotError(f"snapshot version {version} is not supported, only {VERSION}", UPGRADE, "version")
    decoded: Snapshot = _record(Snapshot, data)
    return decoded


def _record(kind: Any, data: object) -> Any:
    """A record, or _MISSING if a required field is missing."""
    if not isinstance(data, dict):
        return _MISSING
    values = {}
    for name, decoder, is_required in _decoders(kind):
        value = decoder(data.get(name))
        if value is not _MISSING:
            values[name] = value
        elif is_required:
            return _MISSING
    return kind(**values)


@cache
def _decoders(kind: Any) -> tuple[tuple[str, Decoder, bool], ...]:
    """The name and decoder of each field, and whether it is required."""
    hints = get_type_hints(kind)
    required = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    return tuple((name, _decoder(hints[name]), name in required) for name in _names(kind))


def _decoder(hint: Any) -> Decoder:
    """A function that returns its argument as the type `hint`, or _MISSING."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decoder(inner[0])  # X | None, with None as the default
    if origin is Literal:
        return lambda value: value if value in inner else _MISSING
    if origin is tuple:
        return partial(_items, _decoder(inner[0]))
    if origin is Mapping:
        return partial(_mapping, _decoder(inner[1]))
    return partial(_record, hint) if is_dataclass(hint) else SCALARS[hint]


def _items(decoder: Decoder, value: object) -> Any:
    items = map(decoder, value[:MAX_ROWS] if isinstance(value, list) else ())
    return tuple(item for item in items if item is not _MISSING)


def _mapping(decoder: Decoder, value: object) -> Any:
    if not isinstance(value, dict):
        return _MISSING
    pairs = ((clean(str(name)[:MAX_NAME]), decoder(item)) for name, item in list(value.items())[:MAX_NAME])
    return {name: item for name, item in pairs if item is not _MISSING}


def _text(value: object) -> Any:
    return clean(value[:MAX_NAME]) if isinstance(value, str) else _MISSING


def _flag(value: object) -> Any:
    return value if isinstance(value, bool) else _MISSING


def _number(value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _MISSING
    return value if 0 <= value <= MAX_NUMBER else _MISSING


def _integer(value: object) -> Any:
    number = _number(value)
    if isinstance(number, float):
        return int(number) if number.is_integer() else _MISSING
    return number


SCALARS: dict[Any, Decoder] = {str: _text, bool: _flag, int: _integer, float: _number}


def clean(text: str) -> str:
    """The text without characters that control a terminal or whose width is uncertain; they are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if _is_safe(c) else c.encode("unicode_escape").decode() for c in unicodedata.normalize("NFC", text)
    )


def _is_safe(character: str) -> bool:
    if not character.isprintable() or unicodedata.category(character)[0] == "M":
        return False
    return not any(first <= character <= last for first, last in AMBIGUOUS_WIDTH)


# JSON Schema


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
