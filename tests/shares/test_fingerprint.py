"""What is learned of a process that is alone, and of its workload."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.ledger.rows import Row
from gpuledger.model import Activity, Facts, Owner, Reading
from gpuledger.shares import fingerprint as module
from gpuledger.shares.fingerprint import (
    LABELS,
    MOST_BEHAVIOURS,
    RELIABLE_S,
    UNITS,
    Alone,
    Fingerprint,
    Fingerprints,
    Means,
    activities,
    relative_clock,
    workload_of,
)
from tests.builders import GPU, row

MATMUL = (0.9, 0.1, 0.9, 0.0, 0.0, 0.0, 0.0, 0.2)
COPY = (0.9, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9)


def reliable(known: Fingerprints, process: Row) -> tuple[Means, ...]:
    """What is known of a process."""
    fingerprint = known.get(process)
    assert fingerprint is not None
    return fingerprint.reliable()


def test_activities_are_parts_of_one() -> None:
    """In the order of their names; what is not told is 0."""
    activity = Activity(sm_pct=50.0, tensor_pct=25.0, dram_pct=100.0, graphics_pct=99.0)

    assert activities(activity, 1.0) == (0.5, 0, 0.25, 0, 0, 0, 0, 1.0)


def test_activities_at_a_lower_clock_are_less() -> None:
    """But for memory, which has a clock of its own."""
    reading = Reading(
        GPU,
        activity=Activity(sm_pct=50.0, dram_pct=100.0),
        clocks_mhz=(("graphics", 1), ("sm", 990)),
        max_clocks_mhz=(("sm", 1980),),
    )

    assert activities(reading.activity, relative_clock(reading)) == (0.25, 0, 0, 0, 0, 0, 0, 1.0)


@pytest.mark.parametrize("activity", [None, Activity(dram_pct=1.0)])
def test_no_activities_without_gpm(activity: Activity | None) -> None:
    """Before Hopper nothing is told; then nothing is made up."""
    assert activities(activity, relative_clock(Reading(GPU))) is None


def test_a_shape_is_that_of_the_time_on_the_engine() -> None:
    """A process that works a third of the time looks like one that works always: only weaker, for as long."""
    busy, rare = Fingerprint(), Fingerprint()
    for _ in range(9):
        busy.learn(Alone(MATMUL, 1.0, 1.0, 600.0))
        rare.learn(Alone(tuple(part / 3 for part in MATMUL), 1.0, 1 / 3, 600 / 3))

    (always,), (thirds,) = busy.reliable(), rare.reliable()
    assert thirds.shape == pytest.approx(always.shape)
    assert thirds.watts == pytest.approx(always.watts) == pytest.approx(600)


def test_short_looks_are_not_used() -> None:
    """Not before it was seen long enough; and the longer, the surer."""
    known = Fingerprint()
    known.learn(Alone(MATMUL, RELIABLE_S / 2, 1.0, 700.0))
    assert known.reliable() == ()

    known.learn(Alone(MATMUL, RELIABLE_S, 1.0, 700.0))
    (before,) = known.reliable()
    known.learn(Alone(MATMUL, 60.0, 60.0, 700.0))

    (after,) = known.reliable()
    assert after.variance < before.variance


def test_another_behaviour_is_kept_apart() -> None:
    """Training, then evaluation: two, each with its own shape and power; the fourth takes the place of the rarest."""
    known = Fingerprint()
    for _ in range(10):
        known.learn(Alone(MATMUL, 1.0, 1.0, 700.0))
    for _ in range(5):
        known.learn(Alone(COPY, 1.0, 1.0, 400.0))

    assert [round(one.watts) for one in known.reliable()] == [700, 400]
    for place in (3, 4):
        known.learn(Alone(tuple(float(i == place) for i in range(len(UNITS))), 1.0, 1.0, 1.0))
    assert len(known.behaviours) == MOST_BEHAVIOURS
    assert [round(one.watts) for one in known.reliable()] == [700, 400]


def test_old_times_count_less() -> None:
    """After an hour at 300 W that it once took 700 is forgotten."""
    known = Fingerprint()
    for watts in [700.0] * 600 + [300.0] * 3600:
        known.learn(Alone(MATMUL, 1.0, 1.0, watts))

    (one,) = known.reliable()
    assert one.watts == pytest.approx(300, abs=10)


def test_a_workload_is_known_again() -> None:
    """A new pod of the same template, another pid; but not another image, and not another user's python3."""
    known = Fingerprints()
    pod = Owner(container="main", container_id="a", pod="x-1", namespace="ml", image="v1", workload_name="x")
    for _ in range(5):
        known.learn(row(owner=pod), Alone(MATMUL, 1.0, 1.0, 700.0))
        known.learn(row(uid=1), Alone(COPY, 1.0, 1.0, 500.0))

    assert known.get(row(8, owner=replace(pod, container_id="b", pod="x-2")))
    assert not known.get(row(8, owner=replace(pod, image="v2")))
    assert known.get(row(8, uid=1))
    assert not known.get(row(8, uid=2))


def test_a_process_goes_before_its_workload() -> None:
    """What it did itself says more than what others of the same name did."""
    known, this = Fingerprints(), row()
    for _ in range(9):
        known.learn(row(8), Alone(COPY, 1.0, 1.0, 500.0))
    for _ in range(5):
        known.learn(this, Alone(MATMUL, 1.0, 1.0, 700.0))

    assert [round(one.watts) for one in reliable(known, this)] == [700]
    assert [round(one.watts) for one in reliable(known, row(9))] == [500, 700]


def test_a_nameless_process_is_no_workload() -> None:
    """Its facts could not be read."""
    assert workload_of(GPU, None, Owner(container="main")) is None


def test_the_labels_of_a_workload_are_in_one_order() -> None:
    """The file of fingerprints accepts no others, so that damaged labels are found."""
    named = replace(GPU, name="H200")
    pod = Owner(container="a", image="b", namespace="c", workload_kind="d", workload_name="e")
    facts = Facts(7, 1, 0, "train", 0)
    kinds = [workload_of(named, facts, pod), workload_of(named, facts, Owner(container="a", unit="b"))]

    names = [[name for name, _ in labels or ()] for labels in kinds]
    assert all(found == [name for name in LABELS if name in found] for found in names)
    assert {name for found in names for name in found} == set(LABELS)


def test_workloads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were alone last stay, in what is published too."""
    monkeypatch.setattr(module, "MOST_WORKLOADS", 2)
    known = Fingerprints()
    for name in ("a", "b", "a", "c"):
        known.learn(row(name=name), Alone(MATMUL, 5.0, 5.0, 3500.0))

    assert [dict(one.workload)["process_name"] for one in known.learned()] == ["a", "c"]
    assert [one.behaviours[0].power_mw for one in known.learned()] == [700_000, 700_000]
    assert not known.get(row(9, name="b"))
