"""Workload fingerprints: as bytes beside the journal, and as readable JSON that other nodes can import.

They are not part of the journal: a journal is valid within one boot, a fingerprint for as long as the workload exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

from gpuledger.errors import JournalError
from gpuledger.shares.fingerprint import (
    LABELS,
    LEARN_S,
    MOST_WORKLOADS,
    NOISE,
    Fingerprint,
    Workload,
    population_of,
)
from gpuledger.shares.units import POPULATIONS, UNITS
from gpuledger.storage.codec import fields_of, parse, plain, record
from gpuledger.storage.journal import check_header, unzipped, zipped

VERSION = 2
LARGEST_BYTES = 1 << 22
"""Limit of the unpacked size, for writing and reading. A workload takes about 1 kB."""
LONGEST_LABEL = 512
"""Characters. The longest label is the name of an image with its tag and digest."""
FILE, EXPORT = "fingerprints", "fingerprints export"
HEAD = f'{{"gpuledger":"{FILE}","version":{VERSION},"workloads":['
TAIL = "]}"
POWER = "power"
"""In `spread`: power beyond the usual power of the activity."""

MOST_S = 1.1 * LEARN_S
"""Sums with exponential decay exceed LEARN_S by half an interval, and an interval has at most 10 s."""
MOST_POWER, MOST_SPREAD = 1.5, 5.0
"""A board exceeds its power limit by a few percent; what was learned in a second extrapolates to 1.31. No workload has
such a spread."""


@dataclass(frozen=True, slots=True)
class WorkloadState:
    """The fingerprint of a workload: means per second on the compute engine."""

    workload: Mapping[str, str]
    seconds: float
    """Time on the compute engine, with exponential decay."""
    alone_seconds: float
    spread_seconds: float
    duty_seconds: float
    duty: float
    """Part of the time on the compute engine while alone."""
    power_ratio: float
    """Above parked power, relative to the power limit."""
    activity: Mapping[str, float]
    """By unit, from 0 to 1."""
    spread: Mapping[str, float]
    """Standard deviation of each unit, and of POWER."""

    @property
    def key(self) -> Workload:
        """The labels in their order."""
        return tuple((name, self.workload[name]) for name in LABELS if name in self.workload)


@dataclass(frozen=True, slots=True)
class State:
    """All workload fingerprints, the least recently learned first."""

    workloads: tuple[WorkloadState, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of an import."""

    workloads: list[WorkloadState]
    """The most recently learned last."""
    added: int
    replaced: int
    left: int


def pack(workloads: Iterable[tuple[Workload, Fingerprint]]) -> list[WorkloadState]:
    """The fingerprints as records. Slow enough that the writer of the file calls it, and not the tick."""
    return [_packed(workload, fingerprint) for workload, fingerprint in workloads]


def _packed(workload: Workload, known: Fingerprint) -> WorkloadState:
    population = population_of(workload)
    phi = population.bounded(known.phi())
    spread = [
        sd * sqrt(deviation / known.seconds) if known.seconds else 0.0
        for sd, deviation in zip(population.sd, known.deviations, strict=True)
    ]
    return WorkloadState(
        workload=dict(workload),
        seconds=_rounded(known.weight),
        alone_seconds=_rounded(known.alone_s),
        spread_seconds=_rounded(known.seconds),
        duty_seconds=_rounded(known.duty_s),
        duty=_rounded(known.duty2_s / known.duty_s) if known.duty_s else 0.0,
        power_ratio=_rounded(population.power(phi)),
        activity=dict(zip(UNITS, map(_rounded, population.activity(phi)), strict=True)),
        spread=dict(zip((*UNITS, POWER), map(_rounded, spread), strict=True)),
    )


def _rounded(number: float) -> float:
    """Six significant digits, so that an export of imported fingerprints has the same bytes."""
    return float(f"{number:.6g}")


def unpack(workloads: Iterable[WorkloadState]) -> list[tuple[Workload, Fingerprint]]:
    """The fingerprints."""
    return [(state.key, _unpacked(state)) for state in workloads]


def _unpacked(state: WorkloadState) -> Fingerprint:
    population = population_of(state.key)
    phi = population.deviations([state.activity.get(unit, 0.0) for unit in UNITS], state.power_ratio, 1.0)
    spread = [state.spread.get(unit, 0.0) / sd for unit, sd in zip((*UNITS, POWER), population.sd, strict=True)]
    return Fingerprint(
        weight=state.seconds,
        alone_s=state.alone_seconds,
        moments=[unit * (state.seconds + NOISE**2) for unit in phi],
        deviations=[unit * unit * state.spread_seconds for unit in spread],
        seconds=state.spread_seconds,
        duty_s=state.duty_seconds,
        duty2_s=state.duty * state.duty_seconds,
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
        check_header(fields, FILE, VERSION, "not a file of gpuledger fingerprints")
        workloads = record(State, fields).workloads
        _check(workloads)
    except (ValueError, TypeError) as error:
        raise JournalError(f"damaged: {error}", kind="damaged") from None
    return workloads


def export(workloads: Iterable[WorkloadState]) -> bytes:
    """The fingerprints as JSON, sorted by their labels; equal fingerprints give equal bytes."""
    ordered = sorted(workloads, key=lambda state: state.key)
    whole = {"gpuledger": EXPORT, "version": VERSION, "workloads": [plain(_ordered(state)) for state in ordered]}
    return (json.dumps(whole, indent=1) + "\n").encode()


def _ordered(state: WorkloadState) -> WorkloadState:
    """The same fingerprint with its labels and units in their order."""
    return replace(
        state,
        workload=dict(state.key),
        activity={unit: state.activity.get(unit, 0.0) for unit in UNITS},
        spread={unit: state.spread.get(unit, 0.0) for unit in (*UNITS, POWER)},
    )


def parse_export(data: bytes) -> list[WorkloadState]:
    """The fingerprints in an export; ValueError or TypeError if any part of it is invalid."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    fields = parse(text, "the file")
    if "gpuledger" not in fields and "time" in fields:
        raise ValueError("/api/v1/fingerprints does not contain the spread of a workload")
    if fields.pop("gpuledger", None) != EXPORT:
        raise ValueError("not an export of gpuledger fingerprints")
    version = fields.pop("version", None)
    if version != VERSION:
        raise ValueError(f"format version {version!r}, but this gpuledger reads version {VERSION}")
    entries = fields.pop("workloads", None)
    if not isinstance(entries, list):
        raise TypeError("workloads is not a list")
    if fields:
        raise ValueError(f"unknown field {min(fields)!r}")
    workloads = []
    for number, entry in enumerate(entries, start=1):
        try:
            workload = record(WorkloadState, fields_of(entry, "the entry"))
            _check_workload(workload)
        except (ValueError, TypeError) as error:
            raise ValueError(f"workload {number}: {error}") from None
        workloads.append(workload)
    _check(workloads)
    return workloads


def merge(known: Sequence[WorkloadState], imported: Iterable[WorkloadState]) -> Merged:
    """Both sets of fingerprints. If a workload is in both, the fingerprint with more seconds is used."""
    merged = {state.key: state for state in known}
    added = replaced = left = 0
    for state in imported:
        previous = merged.get(state.key)
        if previous is not None and state.seconds <= previous.seconds:
            left += 1
            continue
        added += previous is None
        replaced += previous is not None
        merged.pop(state.key, None)  # so that it becomes the last one
        merged[state.key] = state
    return Merged(workloads=list(merged.values()), added=added, replaced=replaced, left=left)


def _check(workloads: Sequence[WorkloadState]) -> None:
    """ValueError if a fingerprint is invalid, or a workload occurs twice."""
    if len(workloads) > MOST_WORKLOADS:
        raise ValueError(f"{len(workloads)} workloads, but the limit is {MOST_WORKLOADS}")
    for workload in workloads:
        _check_workload(workload)
    if len({workload.key for workload in workloads}) != len(workloads):
        raise ValueError("a workload occurs twice")


def _check_workload(state: WorkloadState) -> None:
    """ValueError if the labels or the numbers of a fingerprint are invalid."""
    if not state.workload:
        raise ValueError("a workload without labels")
    for name, value in state.workload.items():
        if name not in LABELS:
            raise ValueError(f"unknown label {name!r}")
        if not 0 < len(value) <= LONGEST_LABEL:
            raise ValueError(f"label {name} does not have 1 to {LONGEST_LABEL} characters")
    if (signals := state.workload.get("signals", "")) not in POPULATIONS:
        raise ValueError(f"unknown signals {signals!r}")
    for name in ("seconds", "alone_seconds", "spread_seconds", "duty_seconds"):
        _check_range(name, getattr(state, name), MOST_S)
    _check_range("alone_seconds", state.alone_seconds, 1.001 * state.seconds)  # rounded
    _check_range("duty", state.duty, 1.0)
    _check_range("power_ratio", state.power_ratio, MOST_POWER)
    _check_units("activity", state.activity, UNITS, 1.0)
    _check_units("spread", state.spread, (*UNITS, POWER), MOST_SPREAD)


def _check_units(name: str, numbers: Mapping[str, float], units: Sequence[str], most: float) -> None:
    for unit, number in numbers.items():
        if unit not in units:
            raise ValueError(f"unknown unit {unit!r}")
        _check_range(f"{name} of {unit}", number, most)


def _check_range(name: str, number: float, most: float) -> None:
    if not 0 <= number <= most:  # also refuses NaN
        raise ValueError(f"{name} is {number:g}, but must be from 0 to {most:g}")
