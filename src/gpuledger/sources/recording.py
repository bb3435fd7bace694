"""The recording format: gzip-compressed JSON lines.

The first line says what the file is: `{"gpuledger": "recording", "version": 1, ...}`. Each line after it is one tick.
A device, a process's facts and its owner are written in full the first time and by number afterwards; fields that hold
nothing are left out. What is kept of a process: command name, uid and its name, start time, cgroup text, and its owner
as far as it was known. Never command lines or environments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gpuledger.errors import RecordingError
from gpuledger.model import Device, Driver, Facts, Owner, Owners, Reading, Tick

VERSION = 1
LARGEST = 1 << 64
T = TypeVar("T")


def header(**about: str | float) -> dict[str, Any]:
    """The first line of a recording."""
    return {"gpuledger": "recording", "version": VERSION, **about}


def check_header(line: str) -> dict[str, Any]:
    """The first line as read; RecordingError when this is no recording, or one of a newer gpuledger."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("gpuledger") != "recording":
        raise RecordingError("it is not a gpuledger recording; make one with `gpuledger record FILE`")
    version = head.get("version")
    if not isinstance(version, int) or version < 1:
        raise RecordingError(f"its format version is {version!r}, and should be a number from 1 to {VERSION}")
    if version > VERSION:
        raise RecordingError(
            f"it has format version {version}, and this gpuledger knows {VERSION} and older; install a newer gpuledger"
        )
    return head


class Encoder:
    """Turns ticks into lines, one after the other."""

    def __init__(self) -> None:
        self._devices: dict[Device, int] = {}
        self._facts: dict[Facts, int] = {}
        self._owners: dict[Owner, int] = {}
        self._driver: Driver | None = None

    def line(self, tick: Tick) -> str:
        """One tick."""
        row: dict[str, Any] = {"t": tick.time_ns}
        if tick.driver != self._driver:
            self._driver = tick.driver
            row["driver"] = _plain(tick.driver)
        if devices := _number([reading.device for reading in tick.readings], self._devices):
            row["devices"] = devices
        if facts := _number(tick.facts.values(), self._facts):
            row["facts"] = facts
        row["alive"] = [self._facts[one] for one in tick.facts.values()]
        if tick.owners.by_pid:
            owners = [tick.owners.by_pid.get(pid, Owner()) for pid in tick.facts]
            if new := _number(owners, self._owners):
                row["owners"] = new
            row["owned"] = [self._owners[owner] for owner in owners]
        row["readings"] = [{**_plain(r), "device": self._devices[r.device]} for r in tick.readings]
        return json.dumps(row, separators=(",", ":"))


class Decoder:
    """Turns lines back into ticks. Every line is checked: a damaged one is an error, never a strange number."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._facts: list[Facts] = []
        self._owners: list[Owner] = []
        self._driver: Driver | None = None

    def tick(self, line: str) -> Tick:
        """One tick; RecordingError says what is wrong with the line."""
        try:
            row = _object(json.loads(line, parse_constant=_no_number), "it")
            self._devices += [_record(Device, device) for device in _list(row.get("devices", []), "devices")]
            self._facts += [_record(Facts, facts) for facts in _list(row.get("facts", []), "facts")]
            self._owners += [_record(Owner, owner) for owner in _list(row.get("owners", []), "owners")]
            if "driver" in row:
                self._driver = _record(Driver, row["driver"])
            alive = [self._facts[_index(i)] for i in _list(row["alive"], "alive")]
            owned = [self._owners[_index(i)] for i in _list(row.get("owned", []), "owned")]
            if len(owned) not in (0, len(alive)):
                raise ValueError("owned is not as long as alive")
            by_pid = {facts.pid: owner for facts, owner in zip(alive, owned, strict=False)}
            return Tick(
                time_ns=_check(int, row["t"], "t"),
                driver=self._driver or _record(Driver, row["driver"]),
                readings=tuple(self._reading(reading) for reading in _list(row["readings"], "readings")),
                facts={facts.pid: facts for facts in alive},
                owners=Owners(by_pid=by_pid) if by_pid else Owners(),
            )
        except KeyError as error:
            raise RecordingError(f"{error.args[0]} is missing") from None
        except json.JSONDecodeError:
            raise RecordingError("it is not JSON") from None
        except IndexError:
            raise RecordingError("it refers to a device or process that is not in the recording") from None
        except (ValueError, TypeError) as error:
            raise RecordingError(str(error)) from None
        except RecursionError:
            raise RecordingError("it is nested too deep") from None

    def _reading(self, data: Any) -> Reading:
        number = _index(_object(data, "a reading")["device"])
        return _record(Reading, data, device=self._devices[number])


def _number(things: Iterable[T], known: dict[T, int]) -> list[dict[str, Any]]:
    """Give each thing that is new a number, and return the new ones to be written in full."""
    new = []
    for thing in things:
        if thing not in known:
            known[thing] = len(known)
            new.append(_plain(thing))
    return new


def _no_number(text: str) -> float:
    """For what Python takes as JSON and JSON does not know: NaN and Infinity."""
    raise ValueError(f"{text} is no number")


def _object(data: Any, name: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise TypeError(f"{name} is not an object")
    return data


def _list(data: Any, name: str) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"{name} is not a list")
    return data


def _index(value: Any) -> int:
    if _check(int, value, "a reference") < 0:
        raise ValueError("a reference is negative")
    return int(value)


def _plain(record: Any) -> dict[str, Any]:
    """A record's fields that differ from their defaults, as JSON can hold them."""
    plain = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if value != field.default and field.name != "device":
            plain[field.name] = _value(value)
    return plain


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_value(item) for item in value]
    return _plain(value) if hasattr(value, "__dataclass_fields__") else value


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _record(kind: type[T], data: Any, **given: Any) -> T:
    """A record from JSON; unknown fields and wrong types are errors."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    values = dict(given)
    for name, value in _object(data, f"a {kind.__name__}").items():
        if name in given:
            continue
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no field {name!r}")
        values[name] = _check(hints[name], value, name)
    for field in fields(kind):  # type: ignore[arg-type]  # always one of our records
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{kind.__name__} lacks {field.name!r}")
    return kind(**values)


def _check(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type `hint` says, or an error that names the field."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        value = _list(value, name)
        if inner[-1] is ...:
            return tuple(_check(inner[0], item, name) for item in value)
        return tuple(_check(kind, item, name) for kind, item in zip(inner, value, strict=True))
    if inner:  # X | None
        return None if value is None else _check(inner[0], value, name)
    if hasattr(hint, "__dataclass_fields__"):
        return _record(hint, value)
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
