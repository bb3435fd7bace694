"""Fingerprints as JSON for other nodes: readable, stable, validated, and merged by the time of observation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuledger.shares.fingerprint import Fingerprint, Workload
from gpuledger.shares.units import GPM
from gpuledger.storage.fingerprints import WorkloadState, decode, encode, export, merge, pack, parse_export

MATMUL = [0.9, 0.1, 0.9, 0.0, 0.0, 0.0, 0.2]


def workload(name: str, seconds: float, model: str = "NVIDIA H200") -> WorkloadState:
    """A workload that draws 80 % of the power limit and works a third of the time, observed for these seconds."""
    labels: Workload = (("gpu_model", model), ("process_name", name), ("uid", "0"))
    program = GPM.deviations(MATMUL, 0.8, 1.0)
    fingerprint = Fingerprint(
        alone_s=seconds / 2,
        deviations=[sd * seconds for sd in (0.01, 0, 0, 0, 0, 0, 0, 0.04)],
        seconds=seconds,
        duty_s=seconds / 3,
        duty2_s=seconds / 9,
    )
    fingerprint.learn(1.0, [1.000001 * unit for unit in program], seconds, is_alone=False)
    (state,) = pack([(labels, fingerprint)])
    return state


def test_an_export_is_readable() -> None:
    """Means with their units instead of sums; sorted by labels."""
    whole = json.loads(export([workload("b", 5000 / 17), workload("a", 60.0)]))

    assert list(whole) == ["gpuledger", "version", "workloads"]
    assert (whole["gpuledger"], whole["version"]) == ("fingerprints export", 2)
    first, second = whole["workloads"]
    assert first["workload"] == {"gpu_model": "NVIDIA H200", "process_name": "a", "uid": "0"}
    assert first["seconds"] == 60
    activity, power = second.pop("activity"), second.pop("power_ratio")
    assert activity == pytest.approx(
        {"sm": 0.9, "occupancy": 0.1, "tensor": 0.9, "fp64": 0, "fp32": 0, "fp16": 0, "dram": 0.2}, abs=1e-3
    )
    assert power == pytest.approx(0.8, abs=1e-3)
    assert second == {
        "workload": {"gpu_model": "NVIDIA H200", "process_name": "b", "uid": "0"},
        "seconds": 294.118,
        "alone_seconds": 147.059,
        "spread_seconds": 294.118,
        "duty_seconds": 98.0392,
        "duty": 0.333333,
        "spread": {
            "sm": 0.016, "occupancy": 0, "tensor": 0, "fp64": 0, "fp32": 0, "fp16": 0, "dram": 0, "power": 0.0214,
        },
    }  # fmt: skip
    assert all(number == float(f"{number:.6g}") for number in (*activity.values(), power))


def test_round_trip() -> None:
    """An import has the same means; its export has the same bytes, whatever the order of workloads and keys."""
    workloads = [workload("a", 212.345678), workload("b", 3.3)]
    text = export(workloads)

    again = parse_export(text)

    assert again == workloads
    assert export(again) == export(reversed(workloads)) == text
    assert export(parse_export(json.dumps(json.loads(text), sort_keys=True).encode())) == text


def test_an_import_is_the_same_after_a_restart() -> None:
    """From the file of one exporter to that of another."""
    imported = parse_export(export(decode(encode([workload("a", 212.345678), workload("b", 3.3)]))))

    assert export(decode(encode(imported))) == export(imported)


ENTRY: dict[str, Any] = json.loads(export([workload("a", 9.0)]))["workloads"][0]


def whole(**fields: object) -> bytes:
    """An export with other fields."""
    fields = {"gpuledger": "fingerprints export", "version": 2, "workloads": [ENTRY], **fields}
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def entry(**fields: object) -> bytes:
    """An export whose second workload has other fields."""
    second = {**ENTRY, "workload": {"process_name": "b"}, **fields}
    return whole(workloads=[ENTRY, {name: value for name, value in second.items() if value is not None}])


OLDER = {"workload": {"process_name": "a"}, "peak": 1.0, "behaviours": []}
"""Of version 1."""


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"\x1f\x8b\xff", "not UTF-8 text"),
        (b"[]", "the file is not an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "not an export of gpuledger fingerprints"),
        (whole(gpuledger="fingerprints"), "not an export of gpuledger fingerprints"),
        (whole(gpuledger=None, time=1.5), "/api/v1/fingerprints does not contain the spread of a workload"),
        (
            whole(version=1, workloads=None, fingerprints=[OLDER]),
            "format version 1, but this gpuledger reads version 2",
        ),
        (whole(version=3), "format version 3, but this gpuledger reads version 2"),
        (whole(version=None), "format version None, but this gpuledger reads version 2"),
        (whole(more=1), "unknown field 'more'"),
        (whole(workloads=None), "workloads is not a list"),
        (whole(workloads=[ENTRY, ENTRY]), "a workload occurs twice"),
        (whole(workloads=[1]), "workload 1: the entry is not an object"),
        (whole(workloads=[OLDER]), "workload 1: WorkloadState has no field 'peak'"),
        (entry(workload=None), "workload 2: WorkloadState lacks 'workload'"),
        (entry(workload=[]), "workload 2: workload is not an object"),
        (entry(workload={}), "workload 2: a workload without labels"),
        (entry(workload={"pid": "7"}), "workload 2: unknown label 'pid'"),
        (entry(workload={"uid": 7}), "workload 2: uid is not of type str"),
        (entry(workload={"uid": ""}), "workload 2: label uid does not have 1 to 512 characters"),
        (entry(workload={"uid": "7", "signals": "heat"}), "workload 2: unknown signals 'heat'"),
        (entry(duty=None), "workload 2: WorkloadState lacks 'duty'"),
        (entry(duty=2), "workload 2: duty is 2, but must be from 0 to 1"),
        (entry(more=2), "workload 2: WorkloadState has no field 'more'"),
        (entry(seconds=1000), "workload 2: seconds is 1000, but must be from 0 to 330"),
        (entry(power_ratio=-1), "workload 2: power_ratio is -1, but must be from 0 to 1.5"),
        (entry(power_ratio=float("nan")), "NaN is not a number"),
        (entry(activity={"sm": "much"}), "workload 2: sm is not of type float"),
        (entry(activity={"rt": 1.0}), "workload 2: unknown unit 'rt'"),
        (entry(spread={"sm": 9}), "workload 2: spread of sm is 9, but must be from 0 to 5"),
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
    imported = [workload("a", 12.0), workload("b", 9.0), workload("c", 10.0), workload("a", 1.0, model="L4")]

    merged = merge(known, imported)

    assert (merged.added, merged.replaced, merged.left) == (1, 1, 2)
    assert merged.workloads == [known[1], known[2], imported[0], imported[3]]
    assert merge(merged.workloads, imported).workloads == merged.workloads
