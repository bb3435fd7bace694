"""The numbers for autoscalers that query the exporter directly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import (
    Device,
    Driver,
    Holder,
    Owner,
    Owners,
    Reading,
    Tick,
)
from gpuledger.model.in_use import RULES
from gpuledger.model.problem import Problem
from gpuledger.web.scaling import Selection, count
from tests.web.scaling_node import GPUS, KUBELET, LLM, ask, given_to, node, numbers, on


def test_the_whole_answer() -> None:
    """Every number has its place, for `valueLocation`."""
    assert numbers("?namespace=ml") == {
        "time": 1_700_000_000.0,
        "in_use": "busy",
        "gpus": 2,
        "gpus_in_use": 2,
        "gpus_allocated": 1,
        "busy_gpus": 1.2,
        "utilization_ratio": 0.6,
        "utilization_percent": 60.0,
        "memory_busy_gpus": 0.6,
        "memory_utilization_ratio": 0.3,
        "memory_utilization_percent": 30.0,
    }


def test_memory_that_is_not_reported() -> None:
    """A GPU in use without a value leaves the mean unknown; one that is not in use does not."""
    readings = tuple(replace(reading, memory_utilization_pct=None) for reading in node().readings)

    assert count(replace(node(), readings=readings), Selection())["memory_utilization_ratio"] is None
    assert count(replace(node(), readings=readings), Selection(namespace="nowhere"))["memory_busy_gpus"] == 0


@pytest.mark.parametrize(
    ("what", "gpus", "in_use", "busy"),
    [
        ("", 4, 3, 1.7),
        ("?in_use=resident", 4, 3, 1.7),
        ("?in_use=allocated", 4, 2, 0.8),
        ("?namespace=ml&in_use=allocated", 2, 1, 0.8),
        ("?namespace=web", 2, 1, 0.5),
        ("?namespace=web&in_use=allocated", 2, 1, 0.0),
        ("?namespace=nobody", 0, 0, 0.0),
        ("?pod=llm-7-x", 2, 2, 1.2),
        ("?pod=llm-", 0, 0, 0.0),
        ("?pod=llm-*", 2, 2, 1.2),
        ("?pod=*", 4, 3, 1.7),
        ("?container=main&namespace=web", 2, 1, 0.5),
        ("?workload=llm&in_use=allocated", 2, 1, 0.8),
        ("/namespace=ml/workload=llm/in_use=resident", 2, 2, 1.2),
        ("/namespace=ml/?in_use=resident", 2, 2, 1.2),
    ],
)
def test_selected_owners(what: str, gpus: int, in_use: int, busy: float) -> None:
    """GPUs with a process of a selected owner, or allocated to one; selected in the query or, for KEDA, in the path."""
    found = numbers(what)

    assert (found["gpus"], found["gpus_in_use"], found["busy_gpus"]) == (gpus, in_use, busy)


@pytest.mark.parametrize(
    ("what", "names", "status"),
    [
        ("?workload=llm", (), 503),
        ("?workload=llm", ("podresources",), 503),
        ("?workload=llm", ("kubernetes",), 200),
        ("?namespace=ml", ("docker",), 503),
        ("?pod=llm-*", ("cri",), 200),
        ("?pod=llm-*", ("cri-2",), 200),
        ("?container=main", (), 200),
        ("", (), 200),
    ],
)
def test_names_without_a_provider_are_unknown(what: str, names: tuple[str, ...], status: int) -> None:
    """With a count of 0, an autoscaler would remove busy GPUs; with a provider of the name, 0 is the truth."""
    nameless = tuple(replace(use, owner=Owner(container_id="1")) for use in node().processes)
    providers = tuple(replace(KUBELET, name=name) for name in names)
    answer = ask(f"/api/v1/scaling{what}", replace(node(), processes=nameless, owners=Owners(providers=providers)))

    assert answer.status == status
    assert isinstance(answer.body, bytes)
    assert (b"no provider reports " in answer.body) == (status == 503)


def test_the_workload_of_a_pod_without_a_process() -> None:
    """The workload is known from the containers of the pod."""
    waiting = replace(LLM, pod="llm-7-y")
    tick = replace(node(), processes=(), owners=Owners(
        allocations=(given_to(waiting, GPUS[2]),), holders=(Holder(GPUS[2], waiting, "allocation"),)))  # fmt: skip

    assert numbers("?workload=llm&in_use=allocated", tick)["gpus_in_use"] == 1


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("?selector=a", "unknown parameter 'selector'; use namespace, pod"),
        ("/ml", "unknown parameter 'ml'"),
        ("?namespace=", "parameter namespace has no value"),
        ("?in_use=idle", "unknown rule in_use=idle; use busy, allocated, resident"),
        ("?pod=a&pod=b", "duplicate parameter"),
        ("/pod=a?pod=a", "duplicate parameter"),
    ],
)
def test_invalid_parameters_are_refused(what: str, says: str) -> None:
    """A misspelt filter would count the GPUs of all owners."""
    answer = ask(f"/api/v1/scaling{what}")

    assert (answer.status, says in bytes(answer.body).decode()) == (400, True), answer.body  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tick", "age_s"),
    [(node(), 60.0), (Tick(1, Driver(up=False, problem=Problem("Driver Not Loaded"))), 0.1)],
)
def test_an_unknown_state_is_an_error(tick: Tick, age_s: float) -> None:
    """With a 503, KEDA uses its fallback instead of scaling down."""
    assert ask("/api/v1/scaling", tick, age_s).status == 503


def test_allocations_without_a_provider() -> None:
    """The number is `null`, which KEDA rejects, and in_use=allocated is an error."""
    tick = replace(node(), owners=Owners())

    assert numbers("", tick)["gpus_allocated"] is None
    assert ask("/api/v1/scaling?in_use=allocated", tick).status == 503


@pytest.mark.parametrize("name", ["docker", "docker-2", "podman-3", "hpcdir"])
def test_no_allocation_is_0_while_a_provider_of_allocations_is_up(name: str) -> None:
    """A second daemon of a kind reports allocations too."""
    tick = replace(node(), owners=Owners(providers=(replace(KUBELET, name=name),)))

    assert numbers("?in_use=allocated", tick)["gpus_allocated"] == 0


def test_a_gpu_that_does_not_answer_is_not_counted() -> None:
    """Its utilization is unknown, not 0."""
    tick = replace(node(), readings=(Reading(GPUS[0], up=False), Reading(GPUS[1], utilization_pct=40)))

    assert (numbers("", tick)["gpus"], numbers("", tick)["utilization_percent"]) == (1, 40.0)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.booleans(), st.booleans()), max_size=9), st.sampled_from(RULES)
)  # fmt: skip
def test_sums_of_nodes_give_the_mean_of_the_cluster(gpus: list[tuple[int, bool, bool]], rule: str) -> None:
    """KEDA's formula over two nodes gives the numbers of one node with all their GPUs."""

    def tick(some: list[tuple[int, bool, bool]]) -> Tick:
        devices = [Device(index=n, uuid=f"GPU-{n}") for n in range(len(some))]
        return Tick(
            1,
            Driver(up=True),
            tuple(Reading(d, utilization_pct=percent) for d, (percent, _, _) in zip(devices, some, strict=True)),
            processes=tuple(on(LLM, d) for d, (_, resident, _) in zip(devices, some, strict=True) if resident),
            owners=Owners(
                allocations=tuple(given_to(LLM, d) for d, (_, _, held) in zip(devices, some, strict=True) if held),
                providers=(KUBELET,),
            ),
        )

    wanted = Selection(namespace="ml", in_use=rule)
    whole, *parts = (count(tick(some), wanted) for some in (gpus, gpus[::2], gpus[1::2]))
    busy, in_use = (sum(part[name] or 0 for part in parts) for name in ("busy_gpus", "gpus_in_use"))

    assert whole["utilization_ratio"] == pytest.approx(busy / in_use if in_use else 0.0, abs=1e-6)
