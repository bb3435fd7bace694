"""Recordings of ticks: gzip-compressed JSON lines.

The first line is the header, `{"gpuledger": "recording", "version": 1, ...}`; each further line is one tick. A device,
a process and its owner are written in full once and by number afterwards; fields with their default value are left out.
Of a process a recording contains the command name, uid and user name, start time, cgroup and owner, but never its
command line or environment. Of a device it contains its allocations and the owners that may hold its memory.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gpuledger import __version__
from gpuledger.errors import RecordingError
from gpuledger.model import Device, Driver, Facts, Granted, Holder, Owner, Owners, Reading, Tick
from gpuledger.storage.atomicfile import replacing
from gpuledger.storage.codec import check, fields_of, items, parse, plain, record

VERSION = 1
LARGEST_BYTES = 1 << 30
"""Limit of the unpacked size; a day at 1 s ticks has about 300 MB."""
LONGEST_LINE_BYTES = 1 << 24
"""Limit of a line; a tick of 8 GPUs with 1000 processes has a fiftieth of it."""
RECORD_AGAIN = "record it again"
WRONG_FILE = "name a file that `gpuledger record` wrote"
T = TypeVar("T")


def header(**about: str | float) -> dict[str, Any]:
    """The first line of a recording."""
    return {"gpuledger": "recording", "version": VERSION, **about}


def check_header(line: str) -> dict[str, Any]:
    """The parsed first line; RecordingError if the file is not a recording or its version is unsupported."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("gpuledger") != "recording":
        raise RecordingError("not a gpuledger recording", "make one with `gpuledger record FILE`", "damaged")
    version = head.get("version")
    if not isinstance(version, int) or version < 1:
        raise RecordingError(f"format version {version!r} is not a number from 1 to {VERSION}", RECORD_AGAIN, "damaged")
    if version > VERSION:
        raise RecordingError(
            f"format version {version}, but this gpuledger reads {VERSION} and older",
            "install a newer gpuledger",
            "version",
        )
    return head


class Encoder:
    """Encodes the ticks of one recording as lines."""

    def __init__(self) -> None:
        self._devices: dict[Device, int] = {}
        self._facts: dict[Facts, int] = {}
        self._owners: dict[Owner, int] = {}
        self._driver: Driver | None = None

    def line(self, tick: Tick) -> str:
        """The line of a tick."""
        row: dict[str, Any] = {"t": tick.time_ns}
        if tick.driver != self._driver:
            self._driver = tick.driver
            row["driver"] = plain(tick.driver)
        granted, holders = tick.owners.granted, tick.owners.holders
        devices = [r.device for r in tick.readings] + [grant.device for grant in granted] + [h.device for h in holders]
        if new_devices := _add_new(devices, self._devices):
            row["devices"] = new_devices
        if facts := _add_new(tick.facts.values(), self._facts):
            row["facts"] = facts
        row["alive"] = [self._facts[facts] for facts in tick.facts.values()]
        by_pid = tick.owners.by_pid
        owners = [by_pid.get(pid, Owner()) for pid in tick.facts] if by_pid else []
        if new_owners := _add_new(owners + [holder.owner for holder in holders], self._owners):
            row["owners"] = new_owners
        if owners:
            row["owned"] = [self._owners[owner] for owner in owners]
        if granted:
            row["granted"] = [{**plain(grant, "device"), "device": self._devices[grant.device]} for grant in granted]
        if holders:
            row["holders"] = [
                {**plain(h, "device", "owner"), "device": self._devices[h.device], "owner": self._owners[h.owner]}
                for h in holders
            ]
        row["readings"] = [{**plain(r, "device"), "device": self._devices[r.device]} for r in tick.readings]
        return json.dumps(row, separators=(",", ":"))


def _add_new(values: Iterable[T], numbers: dict[T, int]) -> list[dict[str, Any]]:
    """Number the values that are new, and return them to be written in full."""
    new = []
    for value in values:
        if value not in numbers:
            numbers[value] = len(numbers)
            new.append(plain(value))
    return new


class Decoder:
    """Decodes the lines of one recording. Every field is checked, so a damaged file never gives a wrong number."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._facts: list[Facts] = []
        self._owners: list[Owner] = []
        self._driver: Driver | None = None

    def tick(self, line: str) -> Tick:
        """The tick of a line; RecordingError if the line is damaged."""
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
                owners=Owners(
                    by_pid=by_pid,
                    granted=tuple(self._granted(grant) for grant in items(row.get("granted", []), "granted")),
                    holders=tuple(self._holder(holder) for holder in items(row.get("holders", []), "holders")),
                ),
            )
        except KeyError as error:
            raise RecordingError(f"{error.args[0]} is missing", kind="damaged") from None
        except IndexError:
            raise RecordingError("reference to an unknown device or process", kind="damaged") from None
        except (ValueError, TypeError) as error:
            raise RecordingError(str(error), kind="damaged") from None

    def _reading(self, data: Any) -> Reading:
        return record(Reading, _with_problem(data), device=self._device(data, "a reading"))

    def _granted(self, data: Any) -> Granted:
        return record(Granted, data, device=self._device(data, "granted"))

    def _holder(self, data: Any) -> Holder:
        device = self._device(data, "a holder")
        return record(Holder, data, device=device, owner=self._owners[_index(data["owner"])])

    def _device(self, data: Any, name: str) -> Device:
        return self._devices[_index(fields_of(data, name)["device"])]


def _with_problem(data: Any) -> Any:
    """Convert the field `reason` of recordings from before 0.2 to a problem."""
    if not isinstance(data, dict) or "reason" not in data:
        return data
    fields = {name: value for name, value in data.items() if name != "reason"}
    return {**fields, "problem": {"what": check(str, data["reason"], "reason")}}


def _index(value: Any) -> int:
    if check(int, value, "a reference") < 0:
        raise ValueError("a reference is negative")
    return int(value)


class Recorder:
    """Appends ticks to a recording."""

    def __init__(self, file: gzip.GzipFile, interval_s: float) -> None:
        self._file = file
        self._encoder = Encoder()
        self._last_ns = -1
        self.ticks = 0
        self._line(json.dumps(header(made_by=f"gpuledger {__version__}", interval_s=interval_s)))

    def write(self, tick: Tick) -> None:
        """Append a tick; one that is not later than the last is skipped (clock set back, or a repeated replay)."""
        if tick.time_ns <= self._last_ns:
            return
        self._last_ns = tick.time_ns
        self._line(self._encoder.line(tick))
        self.ticks += 1

    def _line(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")


@contextmanager
def recording(path: Path, interval_s: float) -> Iterator[Recorder]:
    """A recorder. The file is created at the end of the block, and only if the block succeeds."""
    with replacing(path) as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file) as packed:
        yield Recorder(packed, interval_s)


def read_packed(path: Path) -> bytes:
    """The compressed file, kept in memory because it may change during the replay."""
    try:
        if path.exists() and not path.is_file():
            raise RecordingError(f"cannot replay {path}: not a regular file", WRONG_FILE, "unreadable")
        return path.read_bytes()
    except OSError as error:
        raise RecordingError(f"cannot replay {path}: {error.strerror}", WRONG_FILE, "unreadable") from None


def load(packed: bytes, path: Path) -> Iterator[Tick]:
    """The ticks of a recording; RecordingError names the file and the damaged line."""
    try:
        yield from _ticks(packed)
    except RecordingError as error:
        raise RecordingError(f"cannot replay {path}: {error.problem.what}", error.problem.fix, error.kind) from None
    except EOFError:
        raise RecordingError(f"cannot replay {path}: truncated", RECORD_AGAIN, "damaged") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        what = f"cannot replay {path}: damaged or not a recording: {error}"
        raise RecordingError(what, WRONG_FILE, "damaged") from None


def _ticks(packed: bytes) -> Iterator[Tick]:
    decoder = Decoder()
    last_ns = -1
    lines = _lines(packed)
    check_header(next(lines, ""))
    for number, line in enumerate(lines, start=2):
        try:
            tick = decoder.tick(line)
        except RecordingError as error:
            raise RecordingError(f"line {number}: {error}", RECORD_AGAIN, error.kind) from None
        if tick.time_ns <= last_ns:
            raise RecordingError(f"line {number}: not later than the line before", RECORD_AGAIN, "damaged")
        last_ns = tick.time_ns
        yield tick
    if last_ns < 0:
        raise RecordingError("no readings", RECORD_AGAIN, "damaged")


def _lines(packed: bytes) -> Iterator[str]:
    size_bytes = 0
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        while line := file.readline(LONGEST_LINE_BYTES):
            size_bytes += len(line)
            if size_bytes > LARGEST_BYTES:
                raise RecordingError(f"unpacks to more than {LARGEST_BYTES >> 20} MiB", RECORD_AGAIN, "too_large")
            if not line.endswith(b"\n"):
                raise RecordingError("the last line is incomplete or too long", RECORD_AGAIN, "damaged")
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise RecordingError("not UTF-8 text", RECORD_AGAIN, "damaged") from None
