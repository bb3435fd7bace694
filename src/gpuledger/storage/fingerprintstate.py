"""Workload fingerprints as bytes, so that they survive a restart.

They are not part of the journal: a journal is valid within one boot, a fingerprint for as long as the workload exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
from gpuledger.storage.codec import parse, plain, record
from gpuledger.storage.journal import check_header, unzipped, zipped

VERSION = 1
LARGEST_BYTES = 1 << 22
"""Limit of the unpacked size, for writing and reading. A workload takes about 1 kB."""
LONGEST_LABEL = 512
"""Characters. The longest label is the name of an image with its tag and digest."""
HEAD = f'{{"gpuledger":"fingerprints","version":{VERSION},"workloads":['
TAIL = "]}"

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
        WorkloadState(
            labels=workload,
            peak=fingerprint.peak,
            behaviours=tuple(
                BehaviourState(
                    seconds=behaviour.seconds,
                    engine_s=behaviour.engine_s,
                    joules=behaviour.joules,
                    clock_s=behaviour.clock_s,
                    spread=behaviour.spread,
                    activity_s=tuple(zip(UNIT_NAMES, behaviour.activity_s, strict=True)),
                )
                for behaviour in fingerprint.behaviours
            ),
        )
        for workload, fingerprint in workloads
    ]


def unpack(workloads: Iterable[WorkloadState]) -> list[tuple[Workload, Fingerprint]]:
    """The fingerprints."""
    return [
        (workload.labels, Fingerprint([_behaviour(behaviour) for behaviour in workload.behaviours], workload.peak))
        for workload in workloads
    ]


def _behaviour(state: BehaviourState) -> Behaviour:
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
        if not _is_valid(workload):
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
        check(workloads)
    except (ValueError, TypeError) as error:
        raise JournalError(f"damaged: {error}", kind="damaged") from None
    return workloads


def check(workloads: Sequence[WorkloadState]) -> None:
    """ValueError if a fingerprint is invalid, or a workload occurs twice."""
    if len(workloads) > MOST_WORKLOADS:
        raise ValueError(f"{len(workloads)} workloads, but the limit is {MOST_WORKLOADS}")
    for workload in workloads:
        check_workload(workload)
    if len({workload.labels for workload in workloads}) != len(workloads):
        raise ValueError("a workload occurs twice")


def _is_valid(workload: WorkloadState) -> bool:
    try:
        check_workload(workload)
    except ValueError:
        return False
    return True


def check_workload(workload: WorkloadState) -> None:
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
    units = [unit for unit, _ in behaviour.activity_s]
    if len(set(units)) != len(units):
        raise ValueError("a unit occurs twice")
    for unit, amount in behaviour.activity_s:
        if unit not in UNIT_NAMES:
            raise ValueError(f"unknown unit {unit!r}")
        _check_range(f"activity of {unit}", amount / behaviour.engine_s, 0, MOST_ACTIVITY)


def _check_range(name: str, number: float, least: float, most: float) -> None:
    if not least <= number <= most:  # also refuses NaN
        raise ValueError(f"{name} is {number:g}, but must be from {least:g} to {most:g}")
