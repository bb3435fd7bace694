"""Workload fingerprints: as bytes beside the journal, and as readable JSON that other nodes can import.

They are not part of the journal: a journal is valid within one boot, a fingerprint for as long as the workload exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gpuledger.errors import JournalError
from gpuledger.shares.fingerprint import (
    LABELS,
    MOST_BEHAVIOURS,
    MOST_WORKLOADS,
    UNIT_NAMES,
    Behaviour,
    Fingerprint,
    Workload,
)
from gpuledger.storage.codec import fields_of, parse, plain, record
from gpuledger.storage.journal import check_header, unzipped, zipped

VERSION = 1
LARGEST_BYTES = 1 << 22
"""Limit of the unpacked size, for writing and reading. A workload takes about 1 kB."""
LONGEST_LABEL = 512
"""Characters. The longest label is the name of an image with its tag and digest."""
HEAD = f'{{"gpuledger":"fingerprints","version":{VERSION},"workloads":['
TAIL = "]}"
EXPORT, EXPORT_VERSION = "fingerprints export", 1

MOST_S = 1e6
MOST_W = 1e6
MOST_ACTIVITY = 1e4
"""Of a unit while on the compute engine. Above 1 if the driver's samples missed most of the time on the engine."""
LEAST_CLOCK, MOST_CLOCK = 1e-3, 10.0
LEAST_S = 1e-6
"""These limits are far from any workload. They ensure that no quotient of damaged numbers is infinite or NaN."""


@dataclass(frozen=True, slots=True)
class BehaviourState:
    """The sums of a `Behaviour`."""

    seconds: float
    engine_s: float
    joules: float
    clock_s: float
    spread: float
    activity_s: tuple[tuple[str, float], ...]
    """By unit, so that a later version can add units. A unit that is not listed has no activity."""


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """The fingerprint of a workload."""

    labels: Workload
    peak: float
    behaviours: tuple[BehaviourState, ...]

    @property
    def seconds(self) -> float:
        """Observed time of all behaviours."""
        return sum(behaviour.seconds for behaviour in self.behaviours)


@dataclass(frozen=True, slots=True)
class State:
    """All workload fingerprints."""

    workloads: tuple[WorkloadState, ...]


def pack(workloads: Iterable[tuple[Workload, Fingerprint]]) -> list[WorkloadState]:
    """The fingerprints as records. Slow enough that the writer of the file calls it, and not the tick."""
    return [
        WorkloadState(workload, fingerprint.peak, tuple(map(_packed, fingerprint.behaviours)))
        for workload, fingerprint in workloads
    ]


def _packed(behaviour: Behaviour) -> BehaviourState:
    return BehaviourState(
        seconds=behaviour.seconds,
        engine_s=behaviour.engine_s,
        joules=behaviour.joules,
        clock_s=behaviour.clock_s,
        spread=behaviour.spread,
        activity_s=tuple(zip(UNIT_NAMES, behaviour.activity_s, strict=True)),
    )


def unpack(workloads: Iterable[WorkloadState]) -> list[tuple[Workload, Fingerprint]]:
    """The fingerprints."""
    return [(state.labels, Fingerprint(list(map(_unpacked, state.behaviours)), state.peak)) for state in workloads]


def _unpacked(state: BehaviourState) -> Behaviour:
    activity_s = dict(state.activity_s)
    return Behaviour(
        seconds=state.seconds,
        engine_s=state.engine_s,
        joules=state.joules,
        clock_s=state.clock_s,
        activity_s=[activity_s.get(unit, 0.0) for unit in UNIT_NAMES],
        spread=state.spread,
    )


def encode(workloads: Sequence[WorkloadState]) -> bytes:
    """The bytes of a file. Invalid fingerprints, and the least recently learned beyond the limits, are left out."""
    entries: list[str] = []
    size = len(HEAD) + len(TAIL)
    for workload in reversed(workloads):
        try:
            _check_workload(workload)
        except ValueError:
            continue
        # One call per workload: the JSON encoder holds the interpreter lock, and a tick must not wait for it.
        entry = json.dumps(plain(workload), separators=(",", ":"))
        size += len(entry) + 1
        if size > LARGEST_BYTES or len(entries) == MOST_WORKLOADS:
            break
        entries.append(entry)
    return zipped(f"{HEAD}{','.join(reversed(entries))}{TAIL}".encode())


def decode(data: bytes) -> tuple[WorkloadState, ...]:
    """The fingerprints in a file, the least recently learned first; JournalError if it cannot be used."""
    try:
        fields = parse(unzipped(data, LARGEST_BYTES))
        check_header(fields, "fingerprints", VERSION, "not a file of gpuledger fingerprints")
        workloads = record(State, fields).workloads
        _check(workloads)
    except (ValueError, TypeError) as error:
        raise JournalError(f"damaged: {error}", kind="damaged") from None
    return workloads


def _check(workloads: Sequence[WorkloadState]) -> None:
    """ValueError if a fingerprint is invalid, or a workload occurs twice."""
    if len(workloads) > MOST_WORKLOADS:
        raise ValueError(f"{len(workloads)} workloads, but the limit is {MOST_WORKLOADS}")
    for workload in workloads:
        _check_workload(workload)
    if len({workload.labels for workload in workloads}) != len(workloads):
        raise ValueError("a workload occurs twice")


def _check_workload(workload: WorkloadState) -> None:
    """ValueError if the labels or the numbers of a fingerprint are invalid."""
    for name, value in workload.labels:
        if name not in LABELS:
            raise ValueError(f"unknown label {name!r}")
        if not 0 < len(value) <= LONGEST_LABEL:
            raise ValueError(f"label {name} does not have 1 to {LONGEST_LABEL} characters")
    positions = [LABELS.index(name) for name, _ in workload.labels]
    if not positions or any(position >= following for position, following in pairwise(positions)):
        raise ValueError("the labels are missing, in another order, or occur twice")
    if not 0 < len(workload.behaviours) <= MOST_BEHAVIOURS:
        raise ValueError(f"{len(workload.behaviours)} behaviours, but a workload has 1 to {MOST_BEHAVIOURS}")
    _check_range("peak", workload.peak, 0, 1)
    for behaviour in workload.behaviours:
        _check_behaviour(behaviour)


def _check_behaviour(behaviour: BehaviourState) -> None:
    _check_range("seconds", behaviour.seconds, LEAST_S, MOST_S)
    _check_range("time on the engine", behaviour.engine_s, LEAST_S, MOST_S)
    _check_range("power", behaviour.joules / behaviour.engine_s, 0, MOST_W)
    _check_range("clock", behaviour.clock_s / behaviour.seconds, LEAST_CLOCK, MOST_CLOCK)
    _check_range("spread", behaviour.spread, 0, 1)
    if len(dict(behaviour.activity_s)) != len(behaviour.activity_s):
        raise ValueError("a unit occurs twice")
    for unit, amount in behaviour.activity_s:
        if unit not in UNIT_NAMES:
            raise ValueError(f"unknown unit {unit!r}")
        _check_range(f"activity of {unit}", amount / behaviour.engine_s, 0, MOST_ACTIVITY)


def _check_range(name: str, number: float, least: float, most: float) -> None:
    if not least <= number <= most:  # also refuses NaN
        raise ValueError(f"{name} is {number:g}, but must be from {least:g} to {most:g}")


# The exchange of fingerprints between nodes: means instead of sums


@dataclass(frozen=True, slots=True)
class ExportedBehaviour:
    """A behaviour in an export."""

    seconds: float
    power_watts: float
    """Above parked power, while on the compute engine."""
    engine_ratio: float
    """Time on the compute engine divided by `seconds`."""
    clock_ratio: float
    """SM clock relative to its highest value."""
    spread: float
    activity: Mapping[str, float]
    """By unit, while on the compute engine."""


@dataclass(frozen=True, slots=True)
class ExportedWorkload:
    """A workload in an export."""

    workload: Mapping[str, str]
    peak: float
    behaviours: tuple[ExportedBehaviour, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of an import."""

    workloads: list[WorkloadState]
    """The most recently learned last."""
    added: int
    replaced: int
    left: int


def export(workloads: Iterable[WorkloadState]) -> bytes:
    """The fingerprints as JSON, sorted by their labels; equal fingerprints give equal bytes."""
    fingerprints = [
        {
            "workload": dict(workload.labels),
            "peak": _rounded(workload.peak),
            "behaviours": [_exported(b) for b in sorted(workload.behaviours, key=lambda b: (-b.seconds, b.joules))],
        }
        for workload in sorted(workloads, key=lambda workload: workload.labels)
    ]
    whole = {"gpuledger": EXPORT, "version": EXPORT_VERSION, "fingerprints": fingerprints}
    return (json.dumps(whole, indent=1) + "\n").encode()


def _exported(behaviour: BehaviourState) -> dict[str, Any]:
    activity_s = dict(behaviour.activity_s)
    return {
        "seconds": _rounded(behaviour.seconds),
        "power_watts": _rounded(behaviour.joules / behaviour.engine_s),
        "engine_ratio": _rounded(behaviour.engine_s / behaviour.seconds),
        "clock_ratio": _rounded(behaviour.clock_s / behaviour.seconds),
        "spread": _rounded(behaviour.spread),
        "activity": {unit: _rounded(activity_s.get(unit, 0.0) / behaviour.engine_s) for unit in UNIT_NAMES},
    }


def _rounded(number: float) -> float:
    """Six significant digits, so that an export of imported fingerprints has the same bytes."""
    return float(f"{number:.6g}")


def parse_export(data: bytes) -> list[WorkloadState]:
    """The fingerprints in an export; ValueError or TypeError if any part of it is invalid."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    fields = parse(text, "the file")
    if "gpuledger" not in fields and "time" in fields:
        raise ValueError("/api/v1/fingerprints does not contain the time on the compute engine")
    if fields.pop("gpuledger", None) != EXPORT:
        raise ValueError("not an export of gpuledger fingerprints")
    version = fields.pop("version", None)
    if version != EXPORT_VERSION:
        raise ValueError(f"format version {version!r}, but this gpuledger reads version {EXPORT_VERSION}")
    entries = fields.pop("fingerprints", None)
    if not isinstance(entries, list):
        raise TypeError("fingerprints is not a list")
    if fields:
        raise ValueError(f"unknown field {min(fields)!r}")
    workloads = []
    for number, entry in enumerate(entries, start=1):
        try:
            workload = _imported(entry)
            _check_workload(workload)
        except (ValueError, TypeError) as error:
            raise ValueError(f"fingerprint {number}: {error}") from None
        workloads.append(workload)
    _check(workloads)
    return workloads


def _imported(data: Any) -> WorkloadState:
    labels = fields_of(fields_of(data, "the entry").get("workload"), "workload")
    if unknown := set(labels) - set(LABELS):
        raise ValueError(f"unknown label {min(unknown)!r}")
    entry = record(ExportedWorkload, data)
    return WorkloadState(
        labels=tuple((name, entry.workload[name]) for name in LABELS if name in entry.workload),
        peak=entry.peak,
        behaviours=tuple(_imported_behaviour(behaviour) for behaviour in entry.behaviours),
    )


def _imported_behaviour(behaviour: ExportedBehaviour) -> BehaviourState:
    engine_s = behaviour.engine_ratio * behaviour.seconds
    return BehaviourState(
        seconds=behaviour.seconds,
        engine_s=engine_s,
        joules=behaviour.power_watts * engine_s,
        clock_s=behaviour.clock_ratio * behaviour.seconds,
        spread=behaviour.spread,
        activity_s=tuple((unit, amount * engine_s) for unit, amount in behaviour.activity.items()),
    )


def merge(known: Sequence[WorkloadState], imported: Iterable[WorkloadState]) -> Merged:
    """Both sets of fingerprints. If a workload is in both, the fingerprint with more seconds is used."""
    merged = {workload.labels: workload for workload in known}
    added = replaced = left = 0
    for workload in imported:
        previous = merged.get(workload.labels)
        if previous is not None and workload.seconds <= previous.seconds:
            left += 1
            continue
        added += previous is None
        replaced += previous is not None
        merged.pop(workload.labels, None)  # so that it becomes the last one
        merged[workload.labels] = workload
    return Merged(workloads=list(merged.values()), added=added, replaced=replaced, left=left)
