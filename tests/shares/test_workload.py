"""Which processes are one workload, and whose fingerprints leave the LRU when it is full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuledger.ledger.rows import Row
from gpuledger.model import Device, Facts, Owner
from gpuledger.shares.fingerprint import LABELS, MOST_WORKLOADS, Fingerprint, Fingerprints, Workload, workload_of
from gpuledger.shares.units import GPM, POPULATIONS, WITHOUT_GPM
from tests.builders import row

H200 = Device(0, "GPU-0", name="NVIDIA H200")
FACTS = Facts(7, 1, 0, "python3", 1000, program="5f3a9c01")
POD = Owner(
    container="main", container_id="a" * 64, pod="train-x1", pod_uid="u1", namespace="ml", image="train:v1",
    workload_kind="Job", workload_name="train",
)  # fmt: skip
JOB = Owner(unit="slurmd.service", job="slurm/211", step="0", account="physics")


def key(owner: Owner | None = None, facts: Facts | None = FACTS, signals: str = "", device: Device = H200) -> Workload:
    """The key of a workload."""
    workload = workload_of(device, facts, owner or Owner(), signals)
    assert workload is not None
    return workload


# -- what identifies a workload


def test_two_scripts_of_one_user_are_two_workloads() -> None:
    """Both are python3 in the same session; another pid with the same script is the same workload."""
    train, serve = replace(FACTS, program="11111111"), replace(FACTS, program="22222222")
    session = Owner(unit="session-4.scope")

    assert key(session, train) != key(session, serve)
    assert key(session, replace(train, pid=8, start_ticks=5, start_time_ms=9, cgroup="0::/x\n")) == key(session, train)
    assert dict(key(session, train)) == {
        "gpu_model": "NVIDIA H200", "process_name": "python3", "program": "11111111", "unit": "session-4.scope",
        "uid": "1000",
    }  # fmt: skip


@pytest.mark.parametrize("change", [{"uid": 1001}, {"name": "python4"}, {"uid": 0}, {"program": "5"}])
def test_a_process_of_another_user_or_name_is_another_workload(change: dict[str, Any]) -> None:
    """All of them count."""
    assert key(facts=replace(FACTS, **change)) != key()


def test_a_workload_in_a_container() -> None:
    """Image, container, namespace and pod template, whichever pod and container id it has; the uid does not count."""
    again = replace(POD, pod="train-x2", pod_uid="u2", container_id="b" * 64, reason="x")

    assert dict(key(POD)) == {
        "gpu_model": "NVIDIA H200",
        "process_name": "python3",
        "program": "5f3a9c01",
        "container": "main",
        "image": "train:v1",
        "namespace": "ml",
        "workload_kind": "Job",
        "workload_name": "train",
    }
    assert key(again) == key(POD) == key(POD, replace(FACTS, uid=1234))


@pytest.mark.parametrize(
    "change",
    [
        {"container": "sidecar"},
        {"image": "train:v2"},
        {"namespace": "other"},
        {"workload_kind": "CronJob"},
        {"workload_name": "evaluate"},
    ],
)
def test_another_container_is_another_workload(change: dict[str, Any]) -> None:
    """Each of them separates workloads, and so does the program inside."""
    assert key(replace(POD, **change)) != key(POD)
    assert key(POD, replace(FACTS, program="22222222")) != key(POD)


def test_a_container_of_docker_without_a_pod() -> None:
    """Its image and name, as reported by the daemon."""
    owner = Owner(container="triton", container_id="c" * 64, image="triton:24")

    assert dict(key(owner))["image"] == "triton:24"
    assert key(replace(owner, container="triton2")) != key(owner)


@pytest.mark.parametrize(
    "owner",
    [
        Owner(container_id="a" * 64),
        Owner(container_id="a" * 64, unit="docker.service", job="slurm/7"),
        Owner(pod_uid="7f2c1a9e"),
        Owner(container_id="a" * 64, container="main", pod_uid="7f2c1a9e", namespace="ml", pod="train-x1"),
    ],
)
def test_a_container_of_which_only_the_id_is_known(owner: Owner) -> None:
    """It is none: python3 with uid 0 in the containers of two tenants would be one workload."""
    assert workload_of(H200, FACTS, owner) is None
    fingerprints = Fingerprints()
    fingerprints.keep(process(owner=owner), GPM, Fingerprint(weight=9.0))
    assert fingerprints.snapshot() == []
    assert fingerprints.of(process(owner=owner), GPM) == Fingerprint()


@pytest.mark.parametrize("facts", [None, replace(FACTS, program="")])
def test_a_process_without_a_program(facts: Facts | None) -> None:
    """Outside of containers it is none: its command line is read some ticks later. In a container it is one."""
    assert workload_of(H200, facts, Owner(unit="a.service")) is None
    assert "program" not in dict(key(POD, facts))


def test_a_batch_job_has_its_number() -> None:
    """The steps of a job share what was learned, another job does not: its number is the only name that is trusted."""
    step = replace(JOB, step="1", task="3", account="x")

    assert dict(key(JOB))["job"] == "slurm/211"
    assert key(step) == key(JOB)
    assert key(replace(JOB, job="slurm/212")) != key(JOB)
    assert key(JOB, replace(FACTS, uid=1001)) != key(JOB)


def test_gpus_without_gpm_have_fingerprints_of_their_own() -> None:
    """What they measure is something else; so is another model of GPU."""
    l4 = replace(H200, name="NVIDIA L4")
    fingerprints = Fingerprints()
    fingerprints.keep(process(), GPM, Fingerprint(weight=9.0))

    assert key(signals=GPM.signals) == key()
    assert key(signals=WITHOUT_GPM.signals) == (*key(), ("signals", "power"))
    assert key(device=l4) != key()
    assert len({key(signals=signals, device=device) for signals in POPULATIONS for device in (H200, l4)}) == 4
    assert fingerprints.of(process(), GPM).weight == 9
    assert fingerprints.of(process(), WITHOUT_GPM) == Fingerprint()


def test_labels_are_in_their_order_and_not_empty() -> None:
    """The key of a stored fingerprint is built in this order."""
    keys = [key(POD, signals="power"), key(JOB, signals="power"), key(replace(POD, job="slurm/1")), key()]

    for names in ([name for name, _ in labels] for labels in keys):
        assert names == sorted(names, key=LABELS.index)
    assert {name for labels in keys for name, _ in labels} == set(LABELS)
    assert all(value for labels in keys for _, value in labels)


# -- the LRU


def process(name: str = "python3", uid: int = 1000, owner: Owner | None = None, program: str = "5") -> Row:
    """A process."""
    made = row(name=name, uid=uid, owner=owner)
    assert made.facts is not None
    made.facts = replace(made.facts, program=program)
    return made


def names(fingerprints: Fingerprints, uid: str) -> list[str]:
    """The programs of a user that are known, the least recently learned first."""
    workloads = [dict(workload) for workload, _ in fingerprints.snapshot()]
    return [workload["process_name"] for workload in workloads if workload.get("uid") == uid]


KNOWN = Fingerprint(weight=9.0)


@pytest.mark.parametrize("chosen", ["name", "program", "unit", "job"])
def test_a_process_that_renames_itself_evicts_only_its_user(chosen: str) -> None:
    """Units and jobs are names of its choice, too; the fingerprint of another tenant, which is the oldest, stays."""
    fingerprints = Fingerprints()
    fingerprints.keep(process("victim", 1), GPM, KNOWN)
    fingerprints.keep(process("victim", 2, POD), GPM, KNOWN)
    for number in range(400):
        fingerprints.keep(process(f"other{number}", 3), GPM, KNOWN)
    for number in range(2000):
        unit = Owner(unit=f"user@6666.service/{number}" if chosen == "unit" else "")
        owner = replace(unit, job=f"slurm/{number}" if chosen == "job" else "")
        name, program = f"x{number}" if chosen == "name" else "x", f"{number:08x}" if chosen == "program" else "5"
        fingerprints.keep(process(name, 6666, owner, program=program), GPM, KNOWN)

    assert len(fingerprints.snapshot()) == MOST_WORKLOADS
    assert names(fingerprints, "1") == ["victim"]
    assert fingerprints.of(process("victim", 2, POD), GPM).weight == KNOWN.weight
    assert names(fingerprints, "3") == [f"other{number}" for number in range(400)]
    assert len(names(fingerprints, "6666")) == 598
    assert len(fingerprints.learned()) == MOST_WORKLOADS
    assert {learned.workload for learned in fingerprints.learned()} == {key for key, _ in fingerprints.snapshot()}


def test_a_container_whose_process_renames_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same among tenants of Kubernetes."""
    monkeypatch.setattr("gpuledger.shares.fingerprint.MOST_WORKLOADS", 20)
    fingerprints, hostile = Fingerprints(), replace(POD, namespace="hostile", image="evil:1")
    fingerprints.keep(process(owner=POD), GPM, KNOWN)
    for number in range(100):
        fingerprints.keep(process(f"x{number}", owner=hostile), GPM, KNOWN)

    assert len(fingerprints.snapshot()) == 20
    assert fingerprints.of(process(owner=POD), GPM).weight == KNOWN.weight
    assert fingerprints.of(process("x99", owner=hostile), GPM).weight == KNOWN.weight
    assert fingerprints.of(process("x80", owner=hostile), GPM) == Fingerprint()


def test_a_new_tenant_gets_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LRU is full of the workloads of another one, which lose their oldest."""
    monkeypatch.setattr("gpuledger.shares.fingerprint.MOST_WORKLOADS", 10)
    fingerprints = Fingerprints()
    for number in range(10):
        fingerprints.keep(process(f"x{number}", 1), GPM, KNOWN)
    fingerprints.keep(process("x0", 1), GPM, KNOWN)
    fingerprints.keep(process("new", 2), GPM, KNOWN)

    assert names(fingerprints, "1") == ["x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x0"]
    assert names(fingerprints, "2") == ["new"]


def test_too_little_is_not_kept() -> None:
    """A process that hardly worked does not overwrite what its workload is known for."""
    fingerprints = Fingerprints()
    fingerprints.keep(process(), GPM, KNOWN)
    fingerprints.keep(process(), GPM, Fingerprint(weight=0.01))
    fingerprints.keep(process("idle"), GPM, Fingerprint())

    assert [fingerprint.weight for _, fingerprint in fingerprints.snapshot()] == [9.0]
    assert fingerprints.revision == 1
