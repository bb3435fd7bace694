"""Workload fingerprints as bytes: what is written is read again, and damage never becomes a number."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from math import exp, isfinite
from random import Random

import pytest

from gpuledger.errors import JournalError
from gpuledger.model import Owner
from gpuledger.shares.fingerprint import (
    INHERITED_S,
    LEARN_S,
    NOISE,
    Fingerprint,
    Fingerprints,
    Workload,
    population_of,
)
from gpuledger.shares.units import GPM, LEAST_POWER, UNITS, WITHOUT_GPM, Population
from gpuledger.storage import fingerprints as module
from gpuledger.storage.fingerprints import WorkloadState, decode, encode, pack, unpack
from tests.builders import row

MATMUL, MATMUL_POWER = (0.9, 0.1, 0.9, 0.0, 0.0, 0.0, 0.2), 0.85
COPY, COPY_POWER = (0.9, 0.8, 0.0, 0.0, 0.0, 0.0, 0.9), 0.5
POD = Owner(container="main", namespace="ml", image="train:v1", workload_kind="Job", workload_name="train")


def learn(
    fingerprint: Fingerprint,
    activity: tuple[float, ...],
    power: float,
    seconds: int,
    *,
    duty: float = 1.0,
    population: Population = GPM,
) -> Fingerprint:
    """Add seconds of a program that is alone and works for a part of them; its activity varies."""
    for second in range(seconds):
        observed = population.deviations([unit * (1 + (second % 3 - 1) / 50) for unit in activity], power, 1.0)
        fingerprint.fade(exp(-1 / LEARN_S))
        squares = [(y - mean) ** 2 for y, mean in zip(observed, fingerprint.phi(), strict=True)]
        fingerprint.learn(duty, [duty * y for y in observed], 1.0, is_alone=True)
        fingerprint.seconds += duty**2
        fingerprint.deviations = [old + new * duty**2 for old, new in zip(fingerprint.deviations, squares, strict=True)]
        fingerprint.work_alone(duty, 1.0)
    return fingerprint


@pytest.fixture
def known() -> Fingerprints:
    """A pod, a program of the host, and a program on a GPU without GPM."""
    fingerprints = Fingerprints()
    fingerprints.keep(row(owner=POD), GPM, learn(Fingerprint(), MATMUL, MATMUL_POWER, 200, duty=0.8))
    fingerprints.keep(row(name="copy"), GPM, learn(Fingerprint(), COPY, COPY_POWER, 5, duty=0.5))
    older = (1.0, 0.0, 0.6, 0.0, 0.0, 0.0, 0.3)
    fingerprints.keep(row(name="v100"), WITHOUT_GPM, learn(Fingerprint(), older, 0.7, 40, population=WITHOUT_GPM))
    return fingerprints


def restored(data: bytes) -> Fingerprints:
    """The fingerprints after a restart."""
    fingerprints = Fingerprints()
    fingerprints.restore(unpack(decode(data)))
    return fingerprints


def programs(fingerprints: Fingerprints) -> list[str]:
    """The names of the programs in the order of the LRU."""
    return [dict(workload)["process_name"] for workload, _ in fingerprints.snapshot()]


def test_round_trip(known: Fingerprints) -> None:
    """All sums, to the six digits that are stored, in the order of the LRU; a second round trip changes nothing."""
    states = pack(known.snapshot())

    assert list(decode(encode(states))) == states
    assert [dict(state.workload)["process_name"] for state in states] == ["python3", "copy", "v100"]
    for (before, old), (after, new) in zip(known.snapshot(), unpack(states), strict=True):
        assert after == before
        for name in ("weight", "alone_s", "seconds", "duty_s", "duty2_s", "deviations"):
            assert getattr(new, name) == pytest.approx(getattr(old, name), rel=2e-5), name
        assert new.moments == pytest.approx(old.moments, rel=2e-5, abs=5e-5 * old.weight)
        assert new.cap() == pytest.approx(old.cap(), rel=2e-5)
    assert pack(unpack(states)) == states


def test_readable_numbers(known: Fingerprints) -> None:
    """Seconds, the part of the time on the engine, the power of the program and the activity of its units."""
    pod, _, older = pack(known.snapshot())

    assert (pod.duty, pod.power_ratio) == pytest.approx((0.8, MATMUL_POWER), rel=0.01)
    assert pod.activity == pytest.approx(dict(zip(UNITS, MATMUL, strict=True)), abs=0.01)
    assert pod.seconds == pod.alone_seconds == pytest.approx(0.8**2 * LEARN_S * (1 - exp(-200 / LEARN_S)), rel=0.01)
    assert set(pod.spread) == {*UNITS, "power"}
    assert dict(older.workload)["signals"] == "power"
    assert (older.activity["tensor"], older.power_ratio) == pytest.approx((0.6, 0.7), rel=0.01)


@pytest.mark.parametrize("population", [GPM, WITHOUT_GPM])
def test_impossible_means_are_bounded(population: Population) -> None:
    """Programs that were never alone can have sums of a negative activity, or of one above 1: the file has neither."""
    labels: Workload = (("process_name", "a"), *((("signals", "power"),) if population is WITHOUT_GPM else ()))
    for size in (-1000.0, 1000.0):
        (state,) = pack([(labels, Fingerprint(weight=1.0, moments=[*[size] * len(UNITS), 0.0]))])
        ((_, fingerprint),) = unpack([state])

        assert all(0 <= unit <= 1 for unit in state.activity.values())
        assert state.power_ratio >= LEAST_POWER
        limits = zip(population.lowest, fingerprint.phi(), population.highest, strict=True)
        assert all(low - 1e-4 <= unit <= high + 1e-4 for low, unit, high in limits)


def test_a_process_inherits_a_minute(known: Fingerprints) -> None:
    """It has the means of its workload; a minute of other observations has the same weight."""
    after = restored(encode(pack(known.snapshot())))
    pod, copy = (fingerprint for _, fingerprint in known.snapshot()[:2])
    inherited = after.of(row(pid=8, owner=POD), GPM)

    assert pod.weight > INHERITED_S > copy.weight
    assert inherited.weight == pytest.approx(INHERITED_S)
    assert after.of(row(pid=9, name="copy"), GPM).weight == pytest.approx(copy.weight, rel=1e-5)
    assert after.of(row(pid=9, name="other"), GPM) == Fingerprint()
    assert after.of(row(pid=8, owner=POD), WITHOUT_GPM) == Fingerprint()
    assert inherited.phi() == pytest.approx(pod.phi(), rel=2e-3, abs=1e-3)
    assert inherited.cap() == pytest.approx(pod.cap(), rel=1e-5)
    spreads = [[deviation / known.seconds for deviation in known.deviations] for known in (inherited, pod)]
    assert spreads[0] == pytest.approx(spreads[1], rel=1e-4)
    learn(inherited, COPY, COPY_POWER, 70)
    power = GPM.power(inherited.phi())
    assert abs(power - COPY_POWER) < abs(power - MATMUL_POWER)
    assert after.snapshot()[0][1].weight == pytest.approx(pod.weight, rel=1e-5)


def test_restored_workloads_are_published_and_bounded(known: Fingerprints, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API shows them at once; nothing was learned yet; the user with most workloads loses the oldest."""
    data = encode(pack(known.snapshot()))
    fingerprints = restored(data)

    assert [learned.workload for learned in fingerprints.learned()] == [labels for labels, _ in known.snapshot()]
    assert fingerprints.learned() == known.learned()
    assert fingerprints.revision == 0
    monkeypatch.setattr("gpuledger.shares.fingerprint.MOST_WORKLOADS", 2)
    assert programs(restored(data)) == ["python3", "v100"]


def test_a_restored_workload_that_is_learned_again_is_the_last(known: Fingerprints) -> None:
    """The file has the order of the LRU, also after a restart."""
    fingerprints = restored(encode(pack(known.snapshot())))
    fingerprints.keep(row(pid=8, owner=POD), GPM, learn(Fingerprint(), MATMUL, MATMUL_POWER, 60))

    assert programs(restored(encode(pack(fingerprints.snapshot())))) == ["copy", "v100", "python3"]
    assert fingerprints.revision == 1


def test_a_snapshot_does_not_change(known: Fingerprints) -> None:
    """Observations after the snapshot are not in it."""
    snapshot = known.snapshot()
    states = pack(snapshot)
    process = known.of(row(name="copy"), GPM)

    known.keep(row(name="copy"), GPM, learn(process, MATMUL, MATMUL_POWER, 5))
    learn(process, MATMUL, MATMUL_POWER, 100)

    assert pack(snapshot) == states
    assert pack(known.snapshot()) != states
    assert known.snapshot()[-1][1].weight < 15


def test_it_contains_labels_and_numbers_only(known: Fingerprints) -> None:
    """No pid, no command line, no id of a container or pod."""
    workloads = json.loads(unpacked(encode(pack(known.snapshot()))))["workloads"]

    assert [workload["workload"] for workload in workloads] == [
        {
            "process_name": "python3",
            "program": "python3",
            "container": "main",
            "image": "train:v1",
            "namespace": "ml",
            "workload_kind": "Job",
            "workload_name": "train",
        },
        {"process_name": "copy", "program": "copy", "uid": "0"},
        {"process_name": "v100", "program": "v100", "uid": "0", "signals": "power"},
    ]
    assert {key for workload in workloads for key in workload} == {
        "workload", "seconds", "alone_seconds", "spread_seconds", "duty_seconds", "duty", "power_ratio", "activity",
        "spread",
    }  # fmt: skip


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 10.0])
def test_hours_alone_can_be_stored(interval_s: float) -> None:
    """Whatever --tick.interval is, no sum with exponential decay exceeds the limits of the file."""
    fingerprint = Fingerprint()
    for _ in range(round(10 * LEARN_S / interval_s)):
        fingerprint.fade(exp(-interval_s / LEARN_S))
        fingerprint.learn(1.0, GPM.deviations(MATMUL, MATMUL_POWER, 1.0), interval_s, is_alone=True)
        fingerprint.seconds = fingerprint.weight
        fingerprint.work_alone(1.0, interval_s)
    states = pack([((("process_name", "a"),), fingerprint)])

    assert states[0].duty_seconds >= LEARN_S
    assert list(decode(encode(states))) == states


def unpacked(data: bytes) -> str:
    """The text of a file."""
    return zlib.decompress(data, wbits=31).decode()


def packed(text: str) -> bytes:
    """A file with a correct checksum."""
    packer = zlib.compressobj(wbits=31)
    return packer.compress(text.encode()) + packer.flush()


WORKLOAD = {
    "workload": {"process_name": "a"},
    "seconds": 9.0,
    "alone_seconds": 8.0,
    "spread_seconds": 7.0,
    "duty_seconds": 6.0,
    "duty": 0.5,
    "power_ratio": 0.75,
    "activity": {"sm": 0.8},
    "spread": {"sm": 0.1, "power": 0.05},
}


def changed(**fields: object) -> Mapping[str, object]:
    """A file whose only workload has other fields; None removes a field."""
    return {"workloads": [{name: value for name, value in {**WORKLOAD, **fields}.items() if value is not None}]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"gpuledger": "journal"}, "not a file of gpuledger fingerprints"),
        ({"version": 1}, "format version 1, but this gpuledger reads version 2"),
        ({"version": 3}, "format version 3, but this gpuledger reads version 2"),
        ({"more": 1}, "damaged: State has no field 'more'"),
        ({"workloads": 1}, "damaged: workloads is not a list"),
        ({"workloads": [WORKLOAD, WORKLOAD]}, "damaged: a workload occurs twice"),
        ({"workloads": [WORKLOAD] * 1001}, "damaged: 1001 workloads, but the limit is 1000"),
        ({"workloads": [1]}, "damaged: a WorkloadState is not an object"),
        (changed(seconds=None), "damaged: WorkloadState lacks 'seconds'"),
        (changed(more=1), "damaged: WorkloadState has no field 'more'"),
        (changed(workload={}), "damaged: a workload without labels"),
        (changed(workload=[["uid", "0"]]), "damaged: workload is not an object"),
        (changed(workload={"pid": "0"}), "damaged: unknown label 'pid'"),
        (changed(workload={"uid": 0}), "damaged: uid is not of type str"),
        (changed(workload={"uid": ""}), "damaged: label uid does not have 1 to 512 characters"),
        (changed(workload={"uid": "0" * 513}), "damaged: label uid does not have 1 to 512 characters"),
        (changed(workload={"uid": "0", "signals": "heat"}), "damaged: unknown signals 'heat'"),
        (changed(seconds="9"), "damaged: seconds is not of type float"),
        (changed(seconds=-1), "damaged: seconds is -1, but must be from 0 to 330"),
        (changed(seconds=331), "damaged: seconds is 331, but must be from 0 to 330"),
        (changed(alone_seconds=-1), "damaged: alone_seconds is -1, but must be from 0 to 330"),
        (changed(spread_seconds=-1), "damaged: spread_seconds is -1, but must be from 0 to 330"),
        (changed(duty_seconds=-1), "damaged: duty_seconds is -1, but must be from 0 to 330"),
        (changed(duty=1.5), "damaged: duty is 1.5, but must be from 0 to 1"),
        (changed(power_ratio=2.5), "damaged: power_ratio is 2.5, but must be from 0 to 1.5"),
        (changed(power_ratio=-0.5), "damaged: power_ratio is -0.5, but must be from 0 to 1.5"),
        (changed(power_ratio=1e300), "damaged: power_ratio is larger than any counter"),
        (changed(activity={"sm": -1}), "damaged: activity of sm is -1, but must be from 0 to 1"),
        (changed(activity={"sm": 1.1}), "damaged: activity of sm is 1.1, but must be from 0 to 1"),
        (changed(activity={"power": 1}), "damaged: unknown unit 'power'"),
        (changed(activity={"ray_tracing": 1}), "damaged: unknown unit 'ray_tracing'"),
        (changed(spread={"sm": 6}), "damaged: spread of sm is 6, but must be from 0 to 5"),
        (changed(spread={"power": -1}), "damaged: spread of power is -1, but must be from 0 to 5"),
        (changed(spread={"ray_tracing": 1}), "damaged: unknown unit 'ray_tracing'"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_named(fields: Mapping[str, object], reason: str) -> None:
    """Not a file of fingerprints, one of another version, or values that no workload has."""
    with pytest.raises(JournalError) as caught:
        decode(file_of({"workloads": [], **fields}))

    assert str(caught.value) == reason


def file_of(fields: Mapping[str, object]) -> bytes:
    """A file with these fields."""
    return packed(json.dumps({"gpuledger": "fingerprints", "version": 2, **fields}))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["seconds", "duty", "power_ratio"])
def test_numbers_are_finite(field: str, number: str) -> None:
    """Python's JSON parser accepts them; a file with them is damaged."""
    text = json.dumps({"gpuledger": "fingerprints", "version": 2, **changed(**{field: 12345})})

    with pytest.raises(JournalError, match="damaged"):
        decode(packed(text.replace("12345", number)))


def test_a_unit_that_is_not_listed_has_no_activity() -> None:
    """A file of another version, which does not know the unit."""
    ((_, fingerprint),) = unpack(decode(file_of(changed())))

    assert GPM.activity(fingerprint.phi()) == pytest.approx([0.8 if unit == "sm" else 0.0 for unit in UNITS])
    assert [unit for unit, deviation in zip(UNITS, fingerprint.deviations, strict=False) if deviation] == ["sm"]


def test_the_order_of_labels_does_not_matter() -> None:
    """The key has the order of LABELS, so a workload is found again."""
    (state,) = decode(file_of(changed(workload={"uid": "0", "process_name": "a", "gpu_model": "H200"})))

    assert state.key == (("gpu_model", "H200"), ("process_name", "a"), ("uid", "0"))


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
        for labels, fingerprint in fingerprints.snapshot():
            population = population_of(labels)
            assert all(isfinite(number) for number in numbers(fingerprint, population))
            learn(fingerprint, MATMUL, MATMUL_POWER, 1, population=population)
            assert all(isfinite(number) for number in numbers(fingerprint, population))
        states = pack(fingerprints.snapshot())
        assert pack(restored(encode(states)).snapshot()) == states
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


def numbers(fingerprint: Fingerprint, population: Population) -> list[float]:
    """All numbers that the model uses."""
    phi = fingerprint.phi()
    variances = fingerprint.variance(phi, NOISE**2), fingerprint.usual_variance()
    return [*phi, population.power(phi), fingerprint.cap(), fingerprint.weight, *variances[0], *variances[1]]


def state(name: str, **sums: float) -> WorkloadState:
    """A workload."""
    return pack([((("process_name", name),), Fingerprint(**{"weight": 9.0, **sums}))])[0]  # type: ignore[arg-type]


def names(data: bytes) -> list[str]:
    """The programs in a file."""
    return [workload.workload["process_name"] for workload in decode(data)]


def test_the_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently learned workloads are left out; a larger file is not unpacked."""
    states = [state(str(number) * 300) for number in range(9)]
    data = encode(states)
    monkeypatch.setattr(module, "LARGEST_BYTES", 2500)

    assert [name[0] for name in names(encode(states))] == ["6", "7", "8"]
    with pytest.raises(JournalError, match="unpacks to more than 0 MiB"):
        decode(data)


def test_the_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently learned workloads are left out."""
    monkeypatch.setattr(module, "MOST_WORKLOADS", 2)

    assert names(encode([state("a"), state("b"), state("c")])) == ["b", "c"]


def test_a_thousand_workloads_fit() -> None:
    """The limit of the size is not reached with long names."""
    states = pack(
        ((("gpu_model", "NVIDIA H200"), ("process_name", str(number)), ("image", "registry/" * 20)), Fingerprint(9.0))
        for number in range(1000)
    )

    assert len(decode(encode(states))) == 1000


def test_what_could_not_be_read_is_not_written() -> None:
    """One workload with a label that is too long, or an impossible number, does not cost the others."""
    impossible = state("c", weight=1000.0), state("d", duty_s=1.0, duty2_s=2.0)

    assert names(encode([state("a"), state("b" * 600), *impossible, state("e")])) == ["a", "e"]
