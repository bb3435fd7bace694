"""Workloads that would fit on one GPU."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.owners import Owner
from gpuledger.tools.idle.pairs import HEADROOM, Workload, find_pairs, queries, workloads
from gpuledger.tools.prometheus.answer import Series

GIB = 1 << 30


def workload(number: int, memory: float, activity: float, model: str = "NVIDIA H200") -> Workload:
    """A container alone on its GPU."""
    return Workload(Owner(container=f"c{number}"), f"GPU-{number}", ("", model), memory, activity, 604_800.0)


def test_large_workloads_first() -> None:
    """60 % goes with 30 %, so that the two of 20 % are left for each other."""
    some = [workload(1, 0.6, 0.1), workload(2, 0.2, 0.1), workload(3, 0.3, 0.1), workload(4, 0.2, 0.1)]

    pairs = find_pairs(some)

    assert [(pair.first.uuid, pair.second.uuid) for pair in pairs] == [("GPU-1", "GPU-3"), ("GPU-2", "GPU-4")]


def test_neither_memory_nor_activity_may_exceed_the_gpu() -> None:
    """Nor do workloads on different models fit together."""
    assert find_pairs([workload(1, 0.5, 0.1), workload(2, 0.5, 0.1)]) == []
    assert find_pairs([workload(1, 0.1, 0.6), workload(2, 0.1, 0.6)]) == []
    assert find_pairs([workload(1, 0.1, 0.1), workload(2, 0.1, 0.1, "NVIDIA L4")]) == []


RATIO = st.floats(0, 1.2)


@given(st.lists(st.tuples(RATIO, RATIO), max_size=12))
def test_every_pair_fits_and_no_two_are_left_that_would(needs: list[tuple[float, float]]) -> None:
    """No workload is in two pairs, and the rest has no pair."""
    some = [workload(number, *need) for number, need in enumerate(needs)]
    pairs = find_pairs(some)
    used = [side.uuid for pair in pairs for side in (pair.first, pair.second)]

    assert len(set(used)) == len(used)
    assert all(pair.memory <= HEADROOM and pair.activity <= 1 for pair in pairs)
    left = [one for one in some if one.uuid not in used]
    assert not any(
        one.memory + two.memory <= HEADROOM and one.activity + two.activity <= 1 for one, two in combinations(left, 2)
    )


def test_only_workloads_alone_on_one_gpu() -> None:
    """Not a container on two GPUs, nor two on one, nor a MIG instance, which has no memory of a GPU."""
    places = [("GPU-0", "a"), ("GPU-1", "b"), ("GPU-1", "c"), ("GPU-2", "d"), ("GPU-3", "d"), ("MIG-4", "e")]
    each = [{"uuid": uuid, "container_id": container, "container": container} for uuid, container in places]
    answers = {
        "memory": [Series(labels, 8 * GIB) for labels in each],
        "activity": [Series(labels, 0.25) for labels in each],
        "observed": [Series(labels, 3600.0) for labels in each],
        "size": [Series({"uuid": f"GPU-{number}"}, 80 * GIB) for number in range(4)],
        "model": [Series({"uuid": f"GPU-{number}", "name": "NVIDIA H200"}, 1.0) for number in range(4)],
    }

    (found,) = workloads(answers)

    assert (found.owner.container, found.memory, found.activity) == ("a", 0.1, 0.25)


def test_a_week_in_steps_of_five_minutes() -> None:
    """2016 points of each series; a short window has a step of 15 s."""
    assert "[168h:5m]" in queries(604_800.0)["memory"]
    assert "[10m:15s]" in queries(600.0)["activity"]
