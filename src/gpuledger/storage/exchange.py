"""Workload fingerprints as readable JSON, so that one node can use what another node has learned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuledger.shares.fingerprint import LABELS, UNIT_NAMES, Workload
from gpuledger.storage.codec import check as check_type
from gpuledger.storage.codec import fields_of, items, parse, record
from gpuledger.storage.fingerprintstate import BehaviourState, WorkloadState, check, check_workload

KIND = "fingerprints export"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Behaviour:
    """A behaviour in an export: means instead of sums."""

    seconds: float
    power_watts: float
    """Above parked power, while on the compute engine."""
    engine_ratio: float
    """Time on the compute engine divided by `seconds`."""
    clock_ratio: float
    """SM clock relative to its highest value."""
    spread: float
    activity: tuple[tuple[str, float], ...]
    """By unit, while on the compute engine."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A workload in an export."""

    workload: Workload
    peak: float
    behaviours: tuple[BehaviourState, ...]


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
            "behaviours": [
                _plain(behaviour) for behaviour in sorted(workload.behaviours, key=lambda b: (-b.seconds, b.joules))
            ],
        }
        for workload in sorted(workloads, key=lambda workload: workload.labels)
    ]
    whole = {"gpuledger": KIND, "version": VERSION, "fingerprints": fingerprints}
    return (json.dumps(whole, indent=1) + "\n").encode()


def _plain(behaviour: BehaviourState) -> dict[str, Any]:
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
    if fields.pop("gpuledger", None) != KIND:
        raise ValueError("not an export of gpuledger fingerprints")
    version = fields.pop("version", None)
    if version != VERSION:
        raise ValueError(f"format version {version!r}, but this gpuledger reads version {VERSION}")
    entries = items(fields.pop("fingerprints", None), "fingerprints")
    if fields:
        raise ValueError(f"unknown field {min(fields)!r}")
    workloads = []
    for number, entry in enumerate(entries, start=1):
        try:
            workload = _workload(entry)
            check_workload(workload)
        except (ValueError, TypeError) as error:
            raise ValueError(f"fingerprint {number}: {error}") from None
        workloads.append(workload)
    check(workloads)
    return workloads


def _workload(data: Any) -> WorkloadState:
    fields = fields_of(data, "the entry")
    labels: dict[str, str] = _by_name(str, fields.get("workload"), "workload")
    if unknown := set(labels) - set(LABELS):
        raise ValueError(f"unknown label {min(unknown)!r}")
    entry = record(
        Entry,
        fields,
        workload=tuple((name, labels[name]) for name in LABELS if name in labels),
        behaviours=tuple(_behaviour(behaviour) for behaviour in items(fields.get("behaviours"), "behaviours")),
    )
    return WorkloadState(labels=entry.workload, peak=entry.peak, behaviours=entry.behaviours)


def _behaviour(data: Any) -> BehaviourState:
    fields = fields_of(data, "a behaviour")
    activity: dict[str, float] = _by_name(float, fields.get("activity"), "activity")
    behaviour = record(Behaviour, fields, activity=tuple(activity.items()))
    engine_s = behaviour.engine_ratio * behaviour.seconds
    return BehaviourState(
        seconds=behaviour.seconds,
        engine_s=engine_s,
        joules=behaviour.power_watts * engine_s,
        clock_s=behaviour.clock_ratio * behaviour.seconds,
        spread=behaviour.spread,
        activity_s=tuple((unit, amount * engine_s) for unit, amount in behaviour.activity),
    )


def _by_name(kind: type, data: Any, name: str) -> dict[str, Any]:
    return {key: check_type(kind, value, key) for key, value in fields_of(data, name).items()}


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
