"""Workload fingerprints as bytes: what is written is read again, and damage never becomes a number."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from math import isfinite
from random import Random

import pytest

from gpuledger.errors import JournalError
from gpuledger.model import Owner
from gpuledger.shares.fingerprint import RESTORED_S, UNIT_NAMES, Alone, Behaviour, Fingerprint, Fingerprints, Workload
from gpuledger.storage import fingerprints as module
from gpuledger.storage.fingerprints import WorkloadState, decode, encode, pack, unpack
from tests.builders import row

MATMUL = (0.9, 0.1, 0.9, 0.0, 0.0, 0.0, 0.0, 0.2)
COPY = (0.9, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9)
POD = Owner(container="main", namespace="ml", image="train:v1", workload_kind="Job", workload_name="train")


@pytest.fixture
def known() -> Fingerprints:
    """A pod with two behaviours, and a program of the host."""
    fingerprints = Fingerprints()
    for second in range(200):
        fingerprints.learn(row(owner=POD), Alone(MATMUL, 1.0, 0.7 + second % 3 / 10, 570.0, 0.9))
    for _ in range(5):
        fingerprints.learn(row(owner=POD), Alone(COPY, 1.0, 1.0, 400.0))
        fingerprints.learn(row(name="copy"), Alone(COPY, 1.0, 0.5, 200.0))
    return fingerprints


def restored(data: bytes) -> Fingerprints:
    """The fingerprints after a restart."""
    fingerprints = Fingerprints()
    fingerprints.restore(unpack(decode(data)))
    return fingerprints


def test_round_trip(known: Fingerprints) -> None:
    """Every number of every behaviour, in the order of the LRU."""
    states = pack(known.snapshot())

    assert list(decode(encode(states))) == states
    assert unpack(states) == known.snapshot()
    assert [dict(state.labels)["process_name"] for state in states] == ["python3", "copy"]


def test_restored_behaviours_weigh_a_minute(known: Fingerprints) -> None:
    """The means are the same; a minute of other observations has the same weight."""
    before, after = known.get(row(owner=POD)), restored(encode(pack(known.snapshot()))).get(row(owner=POD))

    assert before is not None
    assert after is not None
    assert [behaviour.seconds > RESTORED_S for behaviour in before.behaviours] == [True, False]
    assert [behaviour.seconds for behaviour in after.behaviours] == [RESTORED_S, before.behaviours[1].seconds]
    assert after.peak == before.peak
    for old, new in zip(before.behaviours, after.behaviours, strict=True):
        assert new.means().shape == pytest.approx(old.means().shape)
        assert new.means().watts == pytest.approx(old.means().watts)
        assert (new.means().clock, new.spread) == pytest.approx((old.means().clock, old.spread))
    for _ in range(60):
        after.learn(Alone(MATMUL, 1.0, 1.0, 300.0))
    watts = before.behaviours[0].means().watts
    assert after.behaviours[0].means().watts < (watts + 300) / 2


def test_restored_workloads_are_published_and_bounded(known: Fingerprints, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API shows them at once; nothing was learned yet; the LRU evicts the oldest."""
    data = encode(pack(known.snapshot()))
    fingerprints = restored(data)

    assert [learned.workload for learned in fingerprints.learned()] == [labels for labels, _ in known.snapshot()]
    assert fingerprints.revision == 0
    monkeypatch.setattr("gpuledger.shares.fingerprint.MOST_WORKLOADS", 1)
    assert [dict(labels)["process_name"] for labels, _ in restored(data).snapshot()] == ["copy"]


def test_a_snapshot_does_not_change(known: Fingerprints) -> None:
    """Observations after the snapshot are not in it."""
    snapshot = known.snapshot()
    states = pack(snapshot)

    known.learn(row(name="copy"), Alone(MATMUL, 5.0, 5.0, 3000.0))

    assert pack(snapshot) == states
    assert pack(known.snapshot()) != states


def test_it_contains_labels_and_numbers_only(known: Fingerprints) -> None:
    """No pid, no command line, no id of a container or pod."""
    workloads = json.loads(unpacked(encode(pack(known.snapshot()))))["workloads"]

    assert [dict(workload["labels"]) for workload in workloads] == [
        {
            "process_name": "python3",
            "container": "main",
            "image": "train:v1",
            "namespace": "ml",
            "workload_kind": "Job",
            "workload_name": "train",
        },
        {"process_name": "copy", "uid": "0"},
    ]
    assert {key for workload in workloads for key in workload} == {"labels", "peak", "behaviours"}


def unpacked(data: bytes) -> str:
    """The text of a file."""
    return zlib.decompress(data, wbits=31).decode()


def packed(text: str) -> bytes:
    """A file with a correct checksum."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text.encode()) + packer.flush()


WORKLOAD = {
    "labels": [["process_name", "a"]],
    "peak": 1.0,
    "behaviours": [
        {"seconds": 9.0, "engine_s": 9.0, "joules": 99, "clock_s": 9.0, "spread": 0.0, "activity_s": [["sm", 8.0]]}
    ],
}


def changed(behaviour: Mapping[str, object] | None = None, **fields: object) -> Mapping[str, object]:
    """A file whose only workload, or its behaviour, has other fields."""
    behaviours = [{**WORKLOAD["behaviours"][0], **(behaviour or {})}]  # type: ignore[index]
    return {"workloads": [{**WORKLOAD, "behaviours": behaviours, **fields}]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gpuledger": "journal"}, "not a file of gpuledger fingerprints"),
        ({"version": 2}, "format version 2, but this gpuledger reads version 1"),
        ({"more": 1}, "damaged: State has no field 'more'"),
        ({"workloads": 1}, "damaged: workloads is not a list"),
        ({"workloads": [WORKLOAD, WORKLOAD]}, "damaged: a workload occurs twice"),
        ({"workloads": [WORKLOAD] * 1001}, "damaged: 1001 workloads, but the limit is 1000"),
        (changed(peak=1.5), "damaged: peak is 1.5, but must be from 0 to 1"),
        (changed(peak="1"), "damaged: peak is not of type float"),
        (changed(labels=[]), "damaged: the labels are missing, in another order, or occur twice"),
        (changed(labels=[["uid", "0"], ["process_name", "a"]]),
         "damaged: the labels are missing, in another order, or occur twice"),
        (changed(labels=[["uid", "0"], ["uid", "0"]]),
         "damaged: the labels are missing, in another order, or occur twice"),
        (changed(labels=[["pid", "0"]]), "damaged: unknown label 'pid'"),
        (changed(labels=[["uid", ""]]), "damaged: label uid does not have 1 to 512 characters"),
        (changed(labels=[["uid", "0" * 513]]), "damaged: label uid does not have 1 to 512 characters"),
        (changed(behaviours=[]), "damaged: 0 behaviours, but a workload has 1 to 3"),
        (changed({"seconds": 0}), "damaged: seconds is 0, but must be from 1e-06 to 1e+06"),
        (changed({"engine_s": 0}), "damaged: time on the engine is 0, but must be from 1e-06 to 1e+06"),
        (changed({"joules": -1.0}), "damaged: power is -0.111111, but must be from 0 to 1e+06"),
        (changed({"joules": 1e300}), "damaged: joules is larger than any counter"),
        (changed({"clock_s": 0}), "damaged: clock is 0, but must be from 0.001 to 10"),
        (changed({"spread": 2}), "damaged: spread is 2, but must be from 0 to 1"),
        (changed({"activity_s": [["sm", -1]]}), "damaged: activity of sm is -0.111111, but must be from 0 to 10000"),
        (changed({"activity_s": [["sm", 1], ["sm", 1]]}), "damaged: a unit occurs twice"),
        (changed({"activity_s": [["ray_tracing", 1]]}), "damaged: unknown unit 'ray_tracing'"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_named(fields: Mapping[str, object], reason: str) -> None:
    """Not a file of fingerprints, a newer one, or values that no workload has."""
    with pytest.raises(JournalError) as caught:
        decode(packed(json.dumps({"gpuledger": "fingerprints", "version": 1, "workloads": [], **fields})))

    assert str(caught.value) == reason


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(number: str) -> None:
    """Python's JSON parser accepts them; a file with them is damaged."""
    text = json.dumps({"gpuledger": "fingerprints", "version": 1, **changed({"joules": 12345})})

    with pytest.raises(JournalError, match="damaged"):
        decode(packed(text.replace("12345", number)))


def test_a_unit_that_is_not_listed_has_no_activity() -> None:
    """A file of an older version, which did not know the unit."""
    ((_, fingerprint),) = unpack(decode(packed(json.dumps({"gpuledger": "fingerprints", "version": 1, **changed()}))))

    assert fingerprint.behaviours[0].activity_s == [8.0 if unit == "sm" else 0.0 for unit in UNIT_NAMES]


def test_damaged_bytes(known: Fingerprints) -> None:
    """Random bit flips and truncations of the file, and of the text in it: refused, or usable fingerprints."""
    random = Random(1)
    data = encode(pack(known.snapshot()))
    refused = 0
    for _ in range(600):
        damaged = (
            damage(random, data) if random.random() < 0.3 else packed_bytes(damage(random, unpacked(data).encode()))
        )
        try:
            fingerprints = restored(damaged)
        except JournalError:
            refused += 1
            continue
        for _, fingerprint in fingerprints.snapshot():
            assert all(isfinite(number) for number in numbers(fingerprint))
            fingerprint.learn(Alone(MATMUL, 1.0, 1.0, 570.0))
            assert all(isfinite(number) for number in numbers(fingerprint))
        assert restored(encode(pack(fingerprints.snapshot()))).snapshot() == fingerprints.snapshot()
    assert 300 < refused < 600


def damage(random: Random, data: bytes) -> bytes:
    """Some bytes changed, or the end cut off."""
    if random.random() < 0.2:
        return data[: random.randrange(len(data))]
    made = bytearray(data)
    for _ in range(random.randint(1, 3)):
        made[random.randrange(len(made))] ^= 1 << random.randrange(8)
    return bytes(made)


def packed_bytes(text: bytes) -> bytes:
    """A file with a correct checksum, of any bytes."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text) + packer.flush()


def numbers(fingerprint: Fingerprint) -> list[float]:
    """All numbers that the books use."""
    return [fingerprint.peak, fingerprint.demand()] + [
        number
        for means in map(Behaviour.means, fingerprint.behaviours)
        for number in (*means.shape, means.watts, means.clock, means.variance)
    ]


def state(name: str, behaviour: Behaviour | None = None) -> WorkloadState:
    """A workload."""
    labels: Workload = (("process_name", name),)
    fingerprint = Fingerprint([behaviour or Behaviour(9.0, 9.0, 99.0, 9.0)], 1.0)
    return pack([(labels, fingerprint)])[0]


def names(data: bytes) -> list[str]:
    """The programs in a file."""
    return [workload.labels[0][1] for workload in decode(data)]


def test_the_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently learned workloads are left out; a larger file is not unpacked."""
    states = [state(str(number) * 300) for number in range(9)]
    data = encode(states)
    monkeypatch.setattr(module, "LARGEST_BYTES", 2000)

    assert [name[0] for name in names(encode(states))] == ["6", "7", "8"]
    with pytest.raises(JournalError, match="unpacks to more than 0 MiB"):
        decode(data)


def test_what_could_not_be_read_is_not_written() -> None:
    """One workload with a label that is too long, or an impossible number, does not cost the others."""
    impossible = Behaviour(9.0, 1e-9, 99.0, 9.0)

    assert names(encode([state("a"), state("b" * 600), state("c", impossible), state("d")])) == ["a", "d"]
