"""Fingerprints of other tenants: their keys, their places, and files that somebody else wrote."""

from __future__ import annotations

import json

import pytest

from gpuledger.ledger.rows import Row
from gpuledger.model import Device, Facts, Owner, Resident
from gpuledger.shares.fingerprint import MOST_WORKLOADS, Fingerprint, Fingerprints, workload_of
from gpuledger.shares.units import POPULATIONS
from gpuledger.storage.fingerprints import VERSION, parse_export

GPU = Device(0, "GPU-0", name="NVIDIA H200")
GOOD: dict[str, object] = {
    "workload": {"gpu_model": "NVIDIA H200", "process_name": "train", "uid": "1000"},
    "seconds": 100.0, "alone_seconds": 50.0, "spread_seconds": 50.0, "duty_seconds": 20.0, "duty": 0.5,
    "power_ratio": 0.5, "activity": {}, "spread": {},
}  # fmt: skip


def facts(uid: int, name: str = "python3") -> Facts:
    """A process of a user."""
    return Facts(7, 1, 0, name=name, uid=uid, program=name)


OWNERS = [
    (Owner(container="a", container_id="c1", image="torch"), Owner(container="a", container_id="c2", image="torch")),
    (Owner(), Owner()),
    (Owner(container_id="c1"), Owner(container_id="c2")),
]  # fmt: skip


def test_root_in_containers_without_names() -> None:
    """Two tenants work as uid 0 in nameless containers of one image: no fingerprint is kept for the next one."""
    owners = [Owner(container_id=name, image="torch") for name in ("c1", "c2")]

    assert [workload_of(GPU, facts(0), owner) for owner in owners] == [None, None]


@pytest.mark.parametrize(("mine", "theirs"), OWNERS)
def test_another_user_with_the_same_names(mine: Owner, theirs: Owner) -> None:
    """A tenant gives its program, container and image the names of another tenant's: the fingerprints stay apart."""
    first, second = workload_of(GPU, facts(1000), mine), workload_of(GPU, facts(1001), theirs)

    assert first is None or first != second


def test_a_process_that_renames_itself() -> None:
    """A process takes ever new names: it evicts its own fingerprints, and those of other tenants stay."""
    fingerprints, population = Fingerprints(), POPULATIONS[""]
    for uid, names in ((1000, ["victim"]), (1001, [f"x{n}" for n in range(2 * MOST_WORKLOADS)])):
        for name in names:
            row = Row(GPU, GPU.uuid, 7, 1, 0, Resident(7, "compute"), facts=facts(uid, name))
            fingerprints.keep(row, population, Fingerprint(weight=1.0))
    workloads = [dict(workload) for workload, _ in fingerprints.snapshot()]

    assert len(workloads) == MOST_WORKLOADS
    assert "victim" in {workload["process_name"] for workload in workloads}


@pytest.mark.parametrize(
    "wrong",
    [
        {"seconds": 1e9},
        {"power_ratio": 1e6 / 700},
        {"power_ratio": 1.6},
        {"alone_seconds": 101.0},
        {"duty": 1.1},
        {"activity": {"tensor": 2.0}},
    ],
    ids=str,
)
def test_imports_beyond_physics(wrong: dict[str, object]) -> None:
    """A file for `fingerprints import` has more seconds, power or activity than there can be: it is refused."""
    whole = {"gpuledger": "fingerprints export", "version": VERSION, "workloads": [GOOD | wrong]}

    with pytest.raises(ValueError, match="workload 1: "):
        parse_export(json.dumps(whole).encode())


def test_an_import_within_physics() -> None:
    """The same file without these values: it is accepted."""
    whole = {"gpuledger": "fingerprints export", "version": VERSION, "workloads": [GOOD]}

    assert len(parse_export(json.dumps(whole).encode())) == 1
