"""The recording format: gzip-compressed JSON lines.

The first line says what the file is: `{"gpuledger": "recording", "version": 1, ...}`. Each line after it is one tick.
A device, a process's facts and its owner are written in full the first time and by number afterwards; fields that hold
nothing are left out. What is kept of a process: command name, uid and its name, start time, cgroup text, and its owner
as far as it was known. Never command lines or environments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from gpuledger.errors import RecordingError
from gpuledger.model import Device, Driver, Facts, Owner, Owners, Reading, Tick
from gpuledger.records import check, fields_of, items, parse, plain, record

VERSION = 1
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
            row["driver"] = plain(tick.driver)
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
        row["readings"] = [{**plain(r, "device"), "device": self._devices[r.device]} for r in tick.readings]
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
            row = parse(line)
            self._devices += [record(Device, device) for device in items(row.get("devices", []), "devices")]
            self._facts += [record(Facts, facts) for facts in items(row.get("facts", []), "facts")]
            self._owners += [record(Owner, owner) for owner in items(row.get("owners", []), "owners")]
            if "driver" in row:
                self._driver = record(Driver, _with_problem(row["driver"]))
            alive = [self._facts[_index(i)] for i in items(row["alive"], "alive")]
            owned = [self._owners[_index(i)] for i in items(row.get("owned", []), "owned")]
            if len(owned) not in (0, len(alive)):
                raise ValueError("owned is not as long as alive")
            by_pid = {facts.pid: owner for facts, owner in zip(alive, owned, strict=False)}
            return Tick(
                time_ns=check(int, row["t"], "t"),
                driver=self._driver or record(Driver, row["driver"]),
                readings=tuple(self._reading(reading) for reading in items(row["readings"], "readings")),
                facts={facts.pid: facts for facts in alive},
                owners=Owners(by_pid=by_pid) if by_pid else Owners(),
            )
        except KeyError as error:
            raise RecordingError(f"{error.args[0]} is missing") from None
        except IndexError:
            raise RecordingError("it refers to a device or process that is not in the recording") from None
        except (ValueError, TypeError) as error:
            raise RecordingError(str(error)) from None

    def _reading(self, data: Any) -> Reading:
        number = _index(fields_of(data, "a reading")["device"])
        return record(Reading, _with_problem(data), device=self._devices[number])


def _number(things: Iterable[T], known: dict[T, int]) -> list[dict[str, Any]]:
    """Give each thing that is new a number, and return the new ones to be written in full."""
    new = []
    for thing in things:
        if thing not in known:
            known[thing] = len(known)
            new.append(plain(thing))
    return new


def _with_problem(data: Any) -> Any:
    """Recordings made by versions before 0.2 have the problem as one line of text, under `reason`."""
    if not isinstance(data, dict) or "reason" not in data:
        return data
    rest = {name: value for name, value in data.items() if name != "reason"}
    return {**rest, "problem": {"what": check(str, data["reason"], "reason")}}


def _index(value: Any) -> int:
    if check(int, value, "a reference") < 0:
        raise ValueError("a reference is negative")
    return int(value)
