"""Conversion between dataclasses and JSON.

Reading a file is strict: every field is checked, so damaged JSON never gives a wrong number. Reading the answer of
another host is tolerant: it may be of another version, so what cannot be used is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gpuledger.model.plaintext import escaped

LARGEST = 1 << 64
PLAIN = frozenset({int, str, float, bool, type(None)})
Numbers = Mapping[type, dict[Any, int]]
"""The number of each record that is written once and then by number, by its class."""
Numbered = Mapping[type, Sequence[Any]]
"""The same records in the order of their numbers."""
T = TypeVar("T")


# Writing


def plain(record: Any, numbers: Numbers | None = None, omit: str = "") -> dict[str, Any]:
    """The fields of a record that differ from their defaults, as JSON values, without the fields named `omit`.

    Records of the classes in `numbers` are written as their numbers, after the other fields; new ones get the next
    number.
    """
    numbers = numbers or {}
    data, references = {}, {}
    for name, default in _defaults(type(record)):  # type: ignore[arg-type]  # a class is hashable
        value = getattr(record, name)
        if type(value) in numbers:
            references[name] = plain_value(value, numbers)
        elif value is not default and value != default and name != omit:
            data[name] = value if type(value) in PLAIN else plain_value(value, numbers, omit)
    return data | references


@cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.default) for field in fields(kind))


def plain_value(value: Any, numbers: Numbers, omit: str = "") -> Any:
    """A value of a record as JSON; see `plain`."""
    if isinstance(value, tuple):
        return [item if type(item) in PLAIN else plain_value(item, numbers, omit) for item in value]
    if (known := numbers.get(type(value))) is not None:
        return known.setdefault(value, len(known))
    return plain(value, numbers, omit) if is_dataclass(value) else value


def numbered_from(first: int, known: Iterable[Any]) -> list[dict[str, Any]]:
    """The records whose numbers begin with `first`, in full."""
    return [plain(record) for record in list(known)[first:]]


# Reading a file


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


def records(kind: type[T], data: Any, name: str, numbered: Numbered | None = None) -> tuple[T, ...]:
    """Records from a JSON list; errors as those of `record`."""
    try:
        return tuple(record(kind, item, numbered) for item in _items(data, name))
    except RecursionError:  # an owner may have an outer owner
        raise ValueError("nested too deeply") from None


def record(kind: type[T], data: Any, numbered: Numbered | None = None) -> T:
    """A record from JSON; ValueError or TypeError for unknown fields and wrong types, IndexError for a wrong number."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values = {}
    for name, value in fields_of(data, f"a {kind.__name__}").items():
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no field {name!r}")
        values[name] = check(hints[name], value, name, numbered)
    for name in _required(kind):  # type: ignore[arg-type]
        if name not in values:
            raise ValueError(f"{kind.__name__} lacks {name!r}")
    return kind(**values)


def check(hint: Any, value: Any, name: str, numbered: Numbered | None = None) -> Any:
    """`value` converted to the type `hint`; errors as those of `record`, with the name of the field."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        value = _items(value, name)
        kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
        return tuple(check(kind, item, name, numbered) for kind, item in zip(kinds, value, strict=True))
    if origin is Mapping:
        return {key: check(inner[1], item, key) for key, item in fields_of(value, name).items()}
    if inner:  # X | None
        return None if value is None else check(inner[0], value, name, numbered)
    if numbered and hint in numbered:
        return numbered[hint][number(value)]
    if is_dataclass(hint):
        return record(hint, value, numbered)  # type: ignore[arg-type]  # always a class
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"{name} is not of type {hint.__name__}")
    if isinstance(value, str):
        if not _is_text(value):
            raise ValueError(f"{name} is not text")
    elif not -LARGEST < value < LARGEST:
        raise ValueError(f"{name} is larger than any counter")
    return value


def number(value: Any) -> int:
    """The number of a record."""
    if check(int, value, "a reference") < 0:
        raise ValueError("a reference is negative")
    return int(value)


def _items(data: Any, name: str) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"{name} is not a list")
    return data


def _is_text(value: str) -> bool:
    """Whether a string can be encoded; JSON can contain half of a surrogate pair."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


@cache
def _required(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)


# Reading the answer of another host

MOST_ITEMS = 20_000
"""Items of a list; an exporter shows 10,000 processes at most."""
LONGEST_TEXT = 512
"""Characters of a string, and entries of a mapping."""
LARGEST_NUMBER = 1e18
"""Larger numbers are not plausible and would not fit into a column."""
Decoder = Callable[[object], Any]
_UNUSABLE: Any = object()


def tolerant(kind: type[T], data: object) -> T:
    """A record from JSON of another version or from an untrusted host; every field of `kind` must have a default.

    Unknown fields are ignored. A value of a wrong type becomes the field's default, and a list item without its
    required fields is dropped. Strings contain no control characters.
    """
    decoded: T = _record(kind, data if isinstance(data, dict) else {})
    return decoded


def _record(kind: Any, data: object) -> Any:
    if not isinstance(data, dict):
        return _UNUSABLE
    values = {name: decoder(data.get(name)) for name, decoder in _decoders(kind)}
    if any(values[name] is _UNUSABLE for name in _required(kind)):
        return _UNUSABLE
    return kind(**{name: value for name, value in values.items() if value is not _UNUSABLE})


@cache
def _decoders(kind: Any) -> tuple[tuple[str, Decoder], ...]:
    return tuple((name, _decoder(_hints(kind)[name])) for name, _ in _defaults(kind))


def _decoder(hint: Any) -> Decoder:
    """A function that returns its argument as the type `hint`, or _UNUSABLE."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _decoder(inner[0])  # X | None, with None as the default
    if origin is Literal:
        return lambda value: value if value in inner else _UNUSABLE
    if origin is tuple:
        return partial(_usable_items, _decoder(inner[0]))
    if origin is Mapping:
        return partial(_usable_mapping, _decoder(inner[1]))
    return partial(_record, hint) if is_dataclass(hint) else SCALARS[hint]


def _usable_items(decoder: Decoder, value: object) -> Any:
    items = map(decoder, value[:MOST_ITEMS] if isinstance(value, list) else ())
    return tuple(item for item in items if item is not _UNUSABLE)


def _usable_mapping(decoder: Decoder, value: object) -> Any:
    if not isinstance(value, dict):
        return _UNUSABLE
    pairs = ((_text(str(name)), decoder(item)) for name, item in list(value.items())[:LONGEST_TEXT])
    return {name: item for name, item in pairs if item is not _UNUSABLE}


def _text(value: object) -> Any:
    return escaped(value[:LONGEST_TEXT], in_columns=True) if isinstance(value, str) else _UNUSABLE


def _flag(value: object) -> Any:
    return value if isinstance(value, bool) else _UNUSABLE


def _float(value: object) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _UNUSABLE
    return value if 0 <= value <= LARGEST_NUMBER else _UNUSABLE


def _integer(value: object) -> Any:
    amount = _float(value)
    if isinstance(amount, float):
        return int(amount) if amount.is_integer() else _UNUSABLE
    return amount


SCALARS: dict[Any, Decoder] = {str: _text, bool: _flag, int: _integer, float: _float}
