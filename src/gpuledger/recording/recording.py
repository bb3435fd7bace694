"""Recordings of ticks: gzip-compressed JSON lines.

The first line is the header, `{"gpuledger": "recording", "version": 1, ...}`; each further line is one tick. A device,
a process and its owner are written in full once and by number afterwards; fields with their default value are left out.
Of a process a recording contains the command name, uid and user name, start time, cgroup and owner, but never its
command line or environment. Of a device it contains its allocations to pods, containers and jobs, with the users of
jobs, and the owners that may hold its memory.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger import __version__
from gpuledger.errors import RecordingError
from gpuledger.model import Allocation, Device, Driver, Facts, Holder, Owner, Owners, Reading, Tick
from gpuledger.storage.atomicfile import replacing
from gpuledger.storage.codec import check, fields_of, numbered_from, parse, plain, plain_value, record, records

VERSION = 1
LARGEST_BYTES = 1 << 30
"""Limit of the unpacked size; a day at 1 s ticks has about 300 MB."""
LONGEST_LINE_BYTES = 1 << 24
"""Limit of a line; a tick of 8 GPUs with 1000 processes has a fiftieth of it."""
RECORD_AGAIN = "record it again"
WRONG_FILE = "name a file that `gpuledger record` wrote"
ALWAYS = ("t", "alive", "readings")
"""Fields of a line that are written even if they are empty."""


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


@dataclass(frozen=True, slots=True)
class _PodAllocation:
    """An allocation in recordings from before 0.2."""

    device: Device
    namespace: str = ""
    pod: str = ""
    container: str = ""
    resource: str = ""
    replica: str = ""


class Encoder:
    """Encodes the ticks of one recording as lines."""

    def __init__(self) -> None:
        self._numbers: dict[type, dict[Any, int]] = {Device: {}, Facts: {}, Owner: {}}
        self._driver: Driver | None = None

    def line(self, tick: Tick) -> str:
        """The line of a tick. Records get their numbers in the order in which they are converted here."""
        is_new_driver, self._driver = tick.driver != self._driver, tick.driver
        owners, by_pid = tick.owners, tick.owners.by_pid
        first = {kind: len(known) for kind, known in self._numbers.items()}
        readings = self._plain(tick.readings)
        alive = self._plain(tuple(tick.facts.values()))
        owned = self._plain(tuple(by_pid.get(pid, Owner()) for pid in tick.facts)) if by_pid else []
        allocations, holders = self._plain(owners.allocations), self._plain(owners.holders)
        new = {kind: numbered_from(first[kind], known) for kind, known in self._numbers.items()}
        row = {
            "t": tick.time_ns,
            "driver": plain(tick.driver) if is_new_driver else None,
            "devices": new[Device],
            "facts": new[Facts],
            "alive": alive,
            "owners": new[Owner],
            "owned": owned,
            "allocations": allocations,
            "holders": holders,
            "job_uids": dict(owners.job_uids),
            "running": sorted(owners.running),
            "readings": readings,
        }
        row = {name: value for name, value in row.items() if value or name in ALWAYS}
        return json.dumps(row, separators=(",", ":"))

    def _plain(self, values: tuple[Any, ...]) -> list[Any]:
        data: list[Any] = plain_value(values, self._numbers)
        return data


class Decoder:
    """Decodes the lines of one recording. Every field is checked, so a damaged file never gives a wrong number."""

    def __init__(self) -> None:
        self._numbered: dict[type, list[Any]] = {Device: [], Facts: [], Owner: []}
        self._driver: Driver | None = None

    def tick(self, line: str) -> Tick:
        """The tick of a line; RecordingError if the line is damaged."""
        try:
            row = parse(line)
            for name in ALWAYS:
                if name not in row:
                    raise KeyError(name)
            for kind, name in ((Device, "devices"), (Facts, "facts"), (Owner, "owners")):
                self._numbered[kind] += records(kind, row.get(name, []), name)
            if "driver" in row:
                self._driver = record(Driver, _with_problem(row["driver"]))
            facts = self._list(row, "alive", Facts)
            owned = self._list(row, "owned", Owner)
            if len(owned) not in (0, len(facts)):
                raise ValueError("owned is not as long as alive")
            return Tick(
                time_ns=check(int, row["t"], "t"),
                driver=self._driver or record(Driver, row["driver"]),
                readings=self._list({"readings": _readings(row["readings"])}, "readings", Reading),
                facts={known.pid: known for known in facts},
                owners=Owners(
                    by_pid={known.pid: owner for known, owner in zip(facts, owned, strict=False)},
                    running=frozenset(self._list(row, "running", str)),
                    allocations=self._allocations(row),
                    job_uids=check(Mapping[str, str], row.get("job_uids", {}), "job_uids"),
                    holders=self._list(row, "holders", Holder),
                ),
            )
        except KeyError as error:
            raise RecordingError(f"{error.args[0]} is missing", kind="damaged") from None
        except IndexError:
            raise RecordingError("reference to an unknown device or process", kind="damaged") from None
        except (ValueError, TypeError) as error:
            raise RecordingError(str(error), kind="damaged") from None

    def _allocations(self, row: dict[str, Any]) -> tuple[Allocation, ...]:
        if "granted" in row:  # a recording from before 0.2
            pods = self._list(row, "granted", _PodAllocation)
            return tuple(Allocation(p.device, _owner(p), p.resource, p.replica) for p in pods)
        allocations: tuple[Allocation, ...] = self._list(row, "allocations", Allocation)
        return allocations

    def _list(self, row: dict[str, Any], name: str, kind: Any) -> Any:
        """A list of the line; empty if the line lacks it."""
        return check(tuple[kind, ...], row.get(name, []), name, self._numbered)


def _owner(pod: _PodAllocation) -> Owner:
    return Owner(namespace=pod.namespace, pod=pod.pod, container=pod.container)


def _readings(data: Any) -> Any:
    """The readings of a line in the present format."""
    if not isinstance(data, list):
        return data
    for reading in data:
        if "device" not in fields_of(reading, "a reading"):
            raise KeyError("device")
    return [_with_problem(reading) for reading in data]


def _with_problem(data: Any) -> Any:
    """Convert the field `reason` of recordings from before 0.2 to a problem."""
    if not isinstance(data, dict) or "reason" not in data:
        return data
    fields = {name: value for name, value in data.items() if name != "reason"}
    return {**fields, "problem": {"what": check(str, data["reason"], "reason")}}


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
