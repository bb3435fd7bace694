"""Records of the model as JSON and back, each field checked: what is damaged is an error, never a strange number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

LARGEST = 1 << 64
PLAIN = frozenset({int, str, float, bool, type(None)})
T = TypeVar("T")


def plain(record: Any, *but: str) -> dict[str, Any]:
    """A record's fields that differ from their defaults, but for those named, as JSON can hold them."""
    found = {}
    for name, default in _defaults(type(record)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(record, name)
        if value is not default and value != default and name not in but:
            found[name] = value if type(value) in PLAIN else _value(value)
    return found


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(kind))


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [item if type(item) in PLAIN else _value(item) for item in value]
    return plain(value) if hasattr(value, "__dataclass_fields__") else value


def parse(text: str) -> dict[str, Any]:
    """The object that a text is; ValueError or TypeError when it is not JSON, or anything else."""
    try:
        return fields_of(json.loads(text, parse_constant=_no_number), "it")
    except json.JSONDecodeError:
        raise ValueError("it is not JSON") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _no_number(text: str) -> float:
    """For what Python takes as JSON and JSON does not know: NaN and Infinity."""
    raise ValueError(f"{text} is no number")


def fields_of(data: Any, name: str) -> dict[str, Any]:
    """`data`, which must be an object."""
    if not isinstance(data, dict):
        raise TypeError(f"{name} is not an object")
    return data


def items(data: Any, name: str) -> list[Any]:
    """`data`, which must be a list."""
    if not isinstance(data, list):
        raise TypeError(f"{name} is not a list")
    return data


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def record(kind: type[T], data: Any, **given: Any) -> T:
    """A record from JSON; unknown fields and wrong types are errors."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values = dict(given)
    for name, value in fields_of(data, f"a {kind.__name__}").items():
        if name in given:
            continue
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no field {name!r}")
        values[name] = check(hints[name], value, name)
    for field in fields(kind):  # type: ignore[arg-type]  # always one of our records
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} lacks {field.name!r}")
    return kind(**values)


def check(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type `hint` says, or an error that names the field."""
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
    """JSON can hold half of a surrogate pair, which could never be shown."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
