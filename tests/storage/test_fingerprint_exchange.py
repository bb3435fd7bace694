"""Fingerprints as JSON for other nodes: readable, stable, validated, and merged by the time of observation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuledger.shares.fingerprint import Behaviour, Fingerprint, Workload
from gpuledger.storage.fingerprints import WorkloadState, export, merge, pack, parse_export

MATMUL = [0.9, 0.1, 0.9, 0.0, 0.0, 0.0, 0.0, 0.2]


def workload(name: str, *seconds: float, model: str = "NVIDIA H200") -> WorkloadState:
    """A workload that works a third of the time at 570 W, with one behaviour for each of these times."""
    labels: Workload = (("gpu_model", model), ("process_name", name), ("uid", "0"))
    behaviours = [
        Behaviour(time, time / 3, 570 * time / 3, 0.9 * time, [amount * time / 3 for amount in MATMUL], 0.01)
        for time in seconds
    ]
    return pack([(labels, Fingerprint(behaviours, 0.5))])[0]


def test_an_export_is_readable() -> None:
    """Means with their units instead of sums; sorted by labels, and the most observed behaviour first."""
    whole = json.loads(export([workload("b", 5.0), workload("a", 30.0, 60.0)]))

    assert (whole["gpuledger"], whole["version"]) == ("fingerprints export", 1)
    first, second = whole["fingerprints"]
    assert first["workload"] == {"gpu_model": "NVIDIA H200", "process_name": "a", "uid": "0"}
    assert first["peak"] == 0.5
    assert [behaviour["seconds"] for behaviour in first["behaviours"]] == [60, 30]
    assert second["behaviours"] == [
        {
            "seconds": 5.0,
            "power_watts": 570.0,
            "engine_ratio": 0.333333,
            "clock_ratio": 0.9,
            "spread": 0.01,
            "activity": {
                "sm": 0.9, "occupancy": 0.1, "tensor": 0.9, "integer": 0, "fp64": 0, "fp32": 0, "fp16": 0, "dram": 0.2,
            },
        }
    ]  # fmt: skip


def test_round_trip() -> None:
    """An import has the same means; its export has the same bytes, whatever the order of workloads and keys."""
    workloads = [workload("a", 12.345678, 600.0), workload("b", 3.3)]
    text = export(workloads)

    again = parse_export(text)

    assert [state.labels for state in again] == [state.labels for state in workloads]
    assert [state.seconds for state in again] == pytest.approx([state.seconds for state in workloads])
    assert export(again) == export(reversed(workloads)) == text
    assert export(parse_export(json.dumps(json.loads(text), sort_keys=True).encode())) == text


ENTRY: dict[str, Any] = json.loads(export([workload("a", 9.0)]))["fingerprints"][0]


def whole(**fields: object) -> bytes:
    """An export with other fields."""
    fields = {"gpuledger": "fingerprints export", "version": 1, "fingerprints": [ENTRY], **fields}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def entry(**fields: object) -> bytes:
    """An export whose second workload has other fields."""
    second = {**ENTRY, "workload": {"process_name": "b"}, **fields}
    return whole(fingerprints=[ENTRY, {name: value for name, value in second.items() if value is not None}])


def behaviour(**fields: object) -> bytes:
    """An export in which the behaviour of the second workload has other fields."""
    made = {**ENTRY["behaviours"][0], **fields}
    return entry(behaviours=[{name: value for name, value in made.items() if value is not None}])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\x1f\x8b\xff", "not UTF-8 text"),
        (b"[]", "the file is not an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "not an export of gpuledger fingerprints"),
        (whole(gpuledger=None, time=1.5), "/api/v1/fingerprints does not contain the time on the compute engine"),
        (whole(version=2), "format version 2, but this gpuledger reads version 1"),
        (whole(more=1), "unknown field 'more'"),
        (whole(fingerprints=None), "fingerprints is not a list"),
        (whole(fingerprints=[ENTRY, ENTRY]), "a workload occurs twice"),
        (whole(fingerprints=[1]), "fingerprint 1: the entry is not an object"),
        (entry(workload=None), "fingerprint 2: workload is not an object"),
        (entry(workload={"pid": "7"}), "fingerprint 2: unknown label 'pid'"),
        (entry(workload={"uid": 7}), "fingerprint 2: uid is not of type str"),
        (entry(workload={"uid": ""}), "fingerprint 2: label uid does not have 1 to 512 characters"),
        (entry(peak=None), "fingerprint 2: ExportedWorkload lacks 'peak'"),
        (entry(peak=2), "fingerprint 2: peak is 2, but must be from 0 to 1"),
        (entry(more=2), "fingerprint 2: ExportedWorkload has no field 'more'"),
        (entry(behaviours=[]), "fingerprint 2: 0 behaviours, but a workload has 1 to 3"),
        (behaviour(engine_ratio=None), "fingerprint 2: ExportedBehaviour lacks 'engine_ratio'"),
        (behaviour(engine_ratio=0), "fingerprint 2: time on the engine is 0, but must be from 1e-06 to 1e+06"),
        (behaviour(power_watts=-1), "fingerprint 2: power is -1, but must be from 0 to 1e+06"),
        (behaviour(power_watts=float("nan")), "NaN is not a number"),
        (behaviour(activity={"sm": "much"}), "fingerprint 2: sm is not of type float"),
        (behaviour(activity={"rt": 1.0}), "fingerprint 2: unknown unit 'rt'"),
    ],
)
def test_an_invalid_export_is_refused(data: bytes, reason: str) -> None:
    """All of it, with the number of the entry and what is wrong in it."""
    with pytest.raises((ValueError, TypeError)) as caught:
        parse_export(data)

    assert str(caught.value) == reason


def test_more_seconds_win() -> None:
    """Other workloads are added; the same workload on another GPU model is another workload."""
    known = [workload("a", 10.0), workload("b", 10.0), workload("c", 10.0)]
    imported = [workload("a", 6.0, 6.0), workload("b", 9.0), workload("c", 10.0), workload("a", 1.0, model="L4")]

    merged = merge(known, imported)

    assert (merged.added, merged.replaced, merged.left) == (1, 1, 2)
    assert merged.workloads == [known[1], known[2], imported[0], imported[3]]
    assert merge(merged.workloads, imported).workloads == merged.workloads
