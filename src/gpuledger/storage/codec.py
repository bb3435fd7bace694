"""Conversion between dataclasses and JSON. Every field is checked, so damaged JSON never gives a wrong number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

LARGEST = 1 << 64
PLAIN = frozenset({int, str, float, bool, type(None)})
T = TypeVar("T")


def plain(record: Any, *omit: str) -> dict[str, Any]:
    """The fields of a record that differ from their defaults, as JSON values; fields in `omit` are left out."""
    data = {}
    for name, default in _defaults(type(record)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(record, name)
        if value is not default and value != default and name not in omit:
            data[name] = value if type(value) in PLAIN else _value(value)
    return data


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(kind))


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [item if type(item) in PLAIN else _value(item) for item in value]
    return plain(value) if hasattr(value, "__dataclass_fields__") else value


def parse(text: str, name: str = "the line") -> dict[str, Any]:
    """The JSON object in a text; ValueError or TypeError if it is not one."""
    try:
        return fields_of(json.loads(text, parse_constant=_refuse_constant), name)
    except json.JSONDecodeError:
        raise ValueError("not JSON") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse_constant(text: str) -> float:
    """Refuse NaN and Infinity, which Python accepts and JSON does not."""
    raise ValueError(f"{text} is not a number")


def fields_of(data: Any, name: str) -> dict[str, Any]:
    """`data`, if it is an object; TypeError otherwise."""
    if not isinstance(data, dict):
        raise TypeError(f"{name} is not an object")
    return data


def items(data: Any, name: str) -> list[Any]:
    """`data`, if it is a list; TypeError otherwise."""
    if not isinstance(data, list):
        raise TypeError(f"{name} is not a list")
    return data


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def record(kind: type[T], data: Any, **given: Any) -> T:
    """A record from JSON; ValueError or TypeError for unknown fields and wrong types."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values = dict(given)
    for name, value in fields_of(data, f"a {kind.__name__}").items():
        if name in given:
            continue
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no field {name!r}")
        values[name] = check(hints[name], value, name)
    for field in fields(kind):  # type: ignore[arg-type]  # always a dataclass
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} lacks {field.name!r}")
    return kind(**values)


def check(hint: Any, value: Any, name: str) -> Any:
    """`value` converted to the type `hint`; ValueError or TypeError with the name of the field."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        value = items(value, name)
        if inner[-1] is ...:
            return tuple(check(inner[0], item, name) for item in value)
        return tuple(check(kind, item, name) for kind, item in zip(inner, value, strict=True))
    if inner:  # X | None
        return None if value is None else check(inner[0], value, name)
    if hasattr(hint, "__dataclass_fields__"):
        return record(hint, value)
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"{name} is not of type {hint.__name__}")
    if isinstance(value, str):
        if not _is_text(value):
            raise ValueError(f"{name} is not text")
    elif not -LARGEST < value < LARGEST:
        raise ValueError(f"{name} is larger than any counter")
    return value


def _is_text(value: str) -> bool:
    """Whether a string can be encoded; JSON can contain half of a surrogate pair."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
