"""Pods whose authors write what schedulers write: annotations take no part of the GPUs of others."""

from __future__ import annotations

import pytest

from gpuledger.model import Device
from gpuledger.owners.allocations import Allocations, find_allocations
from gpuledger.owners.names import KubeletAllocation, Names, Pod
from gpuledger.owners.providers.fractions import device_shares
from tests.owners.kernel.processes import GPU, IDLE

HAMI, VOLCANO, GROUP = "hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new", "runai-gpu-group"
RESERVATION = "kai-resource-reservation"
MEMORY = dict.fromkeys((GPU.uuid, IDLE.uuid), 80 << 30)
WHOLE = Device(2, "GPU-88888888-2222-4333-8444-555555555555")
OTHER = Device(3, "GPU-99999999-2222-4333-8444-555555555555")
"""Not on this node."""

Pods = dict[tuple[str, str], tuple[dict[str, str], dict[str, str]]]
"""Labels and annotations of pods."""


def found(listed: list[tuple[str, str, str]], pods: Pods) -> Allocations:
    """The allocations, from what the kubelet lists and the API server knows of pods with one container."""
    kubelet = Names(allocations=tuple(KubeletAllocation(ns, pod, "main", "nvidia.com/gpu", i) for ns, pod, i in listed))
    known = {}
    for number, (place, (labels, written)) in enumerate(pods.items()):
        shares, problem = device_shares(labels, written, ["main"])
        known[str(number)] = Pod(str(number), *place, shares=shares, shares_problem=problem)
    return find_allocations((kubelet, Names(pods=known)), (GPU, IDLE, WHOLE), memory_bytes=MEMORY)


def parts(allocations: Allocations) -> dict[tuple[str, int], tuple[str, float | None] | None]:
    """Source and part of each pod and GPU."""
    return {
        (a.owner.pod, a.device.index): (a.entitlement.source, a.entitlement.compute_ratio) if a.entitlement else None
        for a in allocations.to_pods
    }


@pytest.mark.parametrize("name", [HAMI, VOLCANO])
@pytest.mark.parametrize("device", [IDLE.uuid, "all", "1", OTHER.uuid, GPU.uuid])
def test_annotation_without_its_scheduler(name: str, device: str) -> None:
    """A pod with a GPU of its own annotates that of another pod, all, or one that does not exist: both keep theirs."""
    listed = [("evil", "thief", GPU.uuid), ("ml", "victim", IDLE.uuid)]
    allocations = found(listed, {("evil", "thief"): ({}, {name: f"{device},NVIDIA,1,1:;"})})

    assert parts(allocations) == {("thief", 0): ("device", 1.0), ("victim", 1): ("device", 1.0)}
    assert [problem.about for problem in allocations.malformed] == ["pod evil/thief"]


@pytest.mark.parametrize(
    "text",
    [
        f"{OTHER.uuid},NVIDIA,1,1:;",
        f"{GPU.uuid},NVIDIA,1,1:{IDLE.uuid},NVIDIA,1,1:;",
        f"{WHOLE.uuid},NVIDIA,1,1:;",
    ],
)
def test_annotation_with_its_scheduler(text: str) -> None:
    """A pod of HAMi names a GPU that is not there, more GPUs than it has, or one that is no slot: it gets none."""
    listed = [("evil", "thief", f"{GPU.uuid}-1"), ("ml", "victim", f"{IDLE.uuid}-2"), ("ml", "whole", WHOLE.uuid)]
    honest: Pods = {("ml", "victim"): ({}, {HAMI: f"{IDLE.uuid},NVIDIA,2048,30:;"})}
    allocations = found(listed, {("evil", "thief"): ({}, {HAMI: text})} | honest)

    assert parts(allocations) == {("thief", 0): None, ("victim", 1): ("hami", 0.3), ("whole", 2): ("device", 1.0)}
    assert [problem.about for problem in allocations.malformed] == ["pod evil/thief"]


def test_slot_of_another_gpu() -> None:
    """A pod of HAMi names another GPU with slots: it moves there, and the pod that has a part of it keeps that."""
    listed = [("evil", "thief", f"{GPU.uuid}-1"), ("ml", "victim", f"{IDLE.uuid}-2")]
    pods: Pods = {
        ("evil", "thief"): ({}, {HAMI: f"{IDLE.uuid},NVIDIA,1,1:;"}),
        ("ml", "victim"): ({}, {HAMI: f"{IDLE.uuid},NVIDIA,2048,30:;"}),
    }

    assert parts(found(listed, pods)) == {("thief", 1): ("hami", 0.01), ("victim", 1): ("hami", 0.3)}


def test_annotation_without_a_gpu() -> None:
    """A pod without a GPU, or on a node whose kubelet is not read, annotates one: it gets none."""
    thief: Pods = {("evil", "thief"): ({}, {HAMI: f"{IDLE.uuid},NVIDIA,1,100:;"})}

    assert parts(found([("ml", "victim", f"{IDLE.uuid}-1")], thief)) == {("victim", 1): None}
    assert parts(found([], thief)) == {}


def test_label_of_a_group() -> None:
    """A pod takes the label of a group: without a fraction it is no member, with one all members are named."""
    listed = [(RESERVATION, "gpu-reservation", GPU.uuid)]
    pods: Pods = {
        (RESERVATION, "gpu-reservation"): ({GROUP: "g"}, {}),
        ("ml", "victim"): ({GROUP: "g"}, {"gpu-fraction": "0.5"}),
    }
    bare = found(listed, pods | {("evil", "thief"): ({GROUP: "g"}, {})})
    greedy = found(listed, pods | {("evil", "thief"): ({GROUP: "g"}, {"gpu-fraction": "1"})})

    assert parts(bare) == {("victim", 0): ("kai", 0.5)}
    assert [problem.about for problem in bare.malformed] == ["pod evil/thief"]
    assert parts(greedy)["victim", 0] == ("kai", 0.5)
    assert [problem.about for problem in greedy.malformed] == ["pod evil/thief", "pod ml/victim"]
