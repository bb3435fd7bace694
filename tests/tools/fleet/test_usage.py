"""The arithmetic of GPUs in use."""

from __future__ import annotations

import gc
import weakref
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.in_use import RULES
from gpuledger.tools.fleet.usage import CLUSTER, Gpu, GpuHolder, GpuJoin, Key, Usage, summarize
from gpuledger.tools.prometheus.stream import GpuSample, identity

HELD = ("namespace", "pod")
PODS = st.sampled_from(["p", "q", "r"])


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    """Any GPU of a small cluster."""
    names = draw(st.lists(PODS, unique=True, max_size=3))
    holders = [
        GpuHolder((draw(st.sampled_from([None, "", "a", "b"])), pod), None, None,
                       draw(st.booleans()), draw(st.booleans()))
        for pod in names
    ]  # fmt: skip
    return Gpu(
        labels={"node": draw(st.sampled_from(["", "n1", "n2"])), "name": "H200"},
        utilization=draw(st.sampled_from([0.0, 0.0, 0.25, 0.4, 0.8, 1.0])),
        memory=draw(st.none() | st.floats(0, 1)),
        allocated=any(holder.allocated for holder in holders) or draw(st.booleans()),
        resident=1.0 if any(h.resident for h in holders) else draw(st.sampled_from([0.0, 0.5, 1.0])),
        holders=tuple(holders),
    )


clusters = st.lists(gpus(), max_size=12)
rules = st.sampled_from(RULES)
groupings = st.lists(
    st.sampled_from([("pod",), ("namespace",), ("node",), ("model",), ("namespace", "pod")]), unique=True
)


def summed(found: list[Gpu], rule: str, *by: Key) -> list[Usage]:
    """The usages, as the service computes them."""
    return list(summarize(found, rule, by, HELD))


def test_the_classic_example() -> None:
    """80, 40, 0 and 0 gives 60, not 30."""
    (whole,) = summed([Gpu({}, value) for value in (80.0, 40.0, 0.0, 0.0)], "busy")

    assert (whole.utilization, whole.gpus, whole.in_use, whole.idle) == (60.0, 4, 2, 2)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_in_use_is_zero(rule: str) -> None:
    """Utilization and memory are 0, not NaN or absent."""
    (whole,) = summed([Gpu({}, 0.0, 0.0), Gpu({}, 0.0)], rule)

    assert (whole.utilization, whole.memory, whole.in_use, whole.idle) == (0.0, 0.0, 0, 2)


def test_unknown_memory_is_absent() -> None:
    """A value that was not measured is not shown."""
    assert summed([Gpu({}, 0.5)], "busy")[0].memory is None
    assert summed([Gpu({}, 0.5), Gpu({}, 0.5, 0.2)], "busy")[0].memory == 0.2


def test_one_hot_gpu_among_ten_is_hot() -> None:
    """By each rule, idle GPUs count only with a process or an allocation."""
    hot = Gpu({}, 0.9, allocated=True, resident=1.0)
    parked = [Gpu({}, 0.0, allocated=True) for _ in range(8)]
    cluster = [hot, *parked, Gpu({}, 0.0, resident=1.0)]

    assert [round(summed(cluster, rule)[0].utilization, 6) for rule in RULES] == [0.9, 0.1, 0.45]


def test_over_a_time_it_is_busy_seconds_over_in_use_seconds() -> None:
    """A GPU that was in use for half of it weighs half."""
    cluster = [Gpu({}, 0.4, resident=0.5), Gpu({}, 0.2, resident=1.0), Gpu({}, 0.0, resident=0.0)]

    assert isclose(summed(cluster, "resident")[0].utilization, 0.6 / 1.5)


def test_a_shared_gpu_counts_once_with_each_holder_and_once_in_the_cluster() -> None:
    """The GPU is in use for the pod that has a process on it."""
    on_it, waiting = (
        GpuHolder(("a", None), resident=True, allocated=True),
        GpuHolder(("b", None), allocated=True),
    )
    cluster = [Gpu({}, 0.7, 0.1, allocated=True, resident=1.0, holders=(on_it, waiting))]

    whole, a, b = summed(cluster, "resident", ("namespace",))

    assert (whole.by, whole.gpus, whole.allocated) == (CLUSTER, 1, 1)
    assert a == Usage("namespace", ("a",), 1, 1, 1, 0.7, 0.1)
    assert b == Usage("namespace", ("b",), 1, 0, 1, 0.0, 0.0)


def test_a_holder_with_its_own_series_has_its_own_value() -> None:
    """A query with one value per pod gives each pod its own value."""
    holders = (GpuHolder((None, "p"), 0.5, 0.1), GpuHolder((None, "q"), 0.2))

    _, p, q = summed([Gpu({}, 0.5, 0.3, holders=holders)], "busy", ("pod",))

    assert [(one.utilization, one.memory) for one in (p, q)] == [(0.5, 0.1), (0.2, 0.3)]


@pytest.mark.parametrize("label", ["name", "modelName", "model"])
def test_a_model_is_found_under_the_names_of_others(label: str) -> None:
    """Exporters have different labels for the model."""
    assert summed([Gpu({label: "H200"}, 0.5)], "busy", ("model",))[1].labels == ("H200",)


@given(clusters, rules, groupings)
def test_always_true(cluster: list[Gpu], rule: str, by: list[Key]) -> None:
    """In use and idle are all; means lie between the least and the most; groups are of GPUs that there are."""
    usages = summed(cluster, rule, *by)
    whole = usages[0]

    assert (whole.by, whole.gpus) == (CLUSTER, len(cluster))
    assert all("" not in usage.labels for usage in usages)
    assert len({(usage.by, usage.labels) for usage in usages}) == len(usages)
    for usage in usages:
        assert 0 <= usage.in_use <= usage.gpus <= len(cluster)
        assert usage.allocated is not None
        assert 0 <= usage.allocated <= usage.gpus
        assert usage.in_use + usage.idle == usage.gpus
        if rule != "resident":
            assert 0 <= usage.utilization <= 1.0000001
            assert usage.memory is None or usage.memory <= 1.0000001
        if not usage.in_use:
            assert (usage.utilization, usage.memory) == (0.0, 0.0)


@given(clusters, rules, groupings, st.randoms(use_true_random=False))
def test_order_does_not_matter(cluster: list[Gpu], rule: str, by: list[Key], random: object) -> None:
    """Prometheus returns series in any order."""
    shuffled = cluster[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert summed(cluster, rule, *by) == summed(shuffled, rule, *by)


@given(clusters, rules, st.integers(1, 20))
def test_idle_gpus_change_no_mean(cluster: list[Gpu], rule: str, idle: int) -> None:
    """A node that is added and does nothing must not scale anything down."""
    before, after = (summed(found, rule)[0] for found in (cluster, [*cluster, *[Gpu({}, 0.0, 0.0)] * idle]))

    assert (after.utilization, after.memory, after.in_use) == (before.utilization, before.memory, before.in_use)
    assert after.idle == before.idle + idle


@given(clusters, rules)
def test_groups_of_gpus_add_up(cluster: list[Gpu], rule: str) -> None:
    """By a label that every GPU has once, the groups are the cluster."""
    whole, *parts = summed(cluster, rule, ("model",))

    assert sum(part.gpus for part in parts) == whole.gpus
    assert sum(part.in_use for part in parts) == whole.in_use


def series(value: float, **labels: str) -> GpuSample:
    """One series."""
    return identity(labels), labels, value


def join(*wanted: str, **answers: list[GpuSample]) -> list[Gpu]:
    """The GPUs of several answers."""
    made = GpuJoin(wanted or ["namespace", "name"])
    for name, found in answers.items():
        made.add(name, found)
    return list(made.gpus)


def test_a_gpu_scraped_twice_is_one() -> None:
    """The highest of its values counts."""
    (gpu,) = join(utilization=[series(0.5, uuid="a", instance="1"), series(0.7, uuid="a", instance="2")])

    assert gpu.utilization == 0.7


def test_series_without_a_uuid_are_a_gpu_each() -> None:
    """As in `avg(metric > 0)`; the name of the metric is no label of a GPU."""
    assert len(join(utilization=[series(80, gpu="0"), series(40, gpu="1")])) == 2
    assert identity({"gpu": "0", "__name__": "x"}) == identity({"gpu": "0", "__name__": "y"})


def test_instances_of_one_gpu_are_separate() -> None:
    """dcgm-exporter has one UUID for all of them."""
    assert len(join(utilization=[series(1, UUID="a", GPU_I_ID="1"), series(1, UUID="a", GPU_I_ID="2")])) == 2


def test_evidence_adds_to_gpus_and_makes_none() -> None:
    """A GPU without a utilization, such as one that is divided into instances, does not count."""
    (gpu,) = join(
        utilization=[series(0.5, uuid="a")],
        memory=[series(0.1, uuid="a"), series(0.9, uuid="gone")],
        allocated=[series(1, uuid="a", namespace="x"), series(0, uuid="a", namespace="y"), series(1, uuid="gone")],
        resident=[series(1, uuid="a")],
        residents=[series(1, uuid="a", namespace="y")],
        info=[series(1, uuid="a", name="H200"), series(1, uuid="gone", name="B200")],
    )

    assert (gpu.utilization, gpu.memory, gpu.allocated, gpu.resident) == (0.5, 0.1, True, 1)
    assert gpu.labels == {"name": "H200"}
    found = {h.label_values: (h.allocated, h.resident) for h in gpu.holders}
    assert found == {("x",): (True, False), ("y",): (False, True)}


def test_a_gpu_is_identified_by_its_uuid_in_streamed_series() -> None:
    """Grouped by uuid; a series without one is in no group."""
    found = join("uuid", utilization=[("a", {}, 1.0), series(1, uuid="b"), series(1, gpu="0")])

    assert [gpu.labels for gpu in found] == [{"uuid": "a"}, {"uuid": "b"}, {}]


def test_a_join_is_gone_with_its_last_use() -> None:
    """No reference cycle keeps a join, the largest object of a refresh."""
    gc.disable()
    try:
        made = GpuJoin(["namespace"])
        made.add("utilization", [series(1, uuid="a")])
        watched = weakref.ref(made)
        del made
        assert watched() is None
    finally:
        gc.enable()
