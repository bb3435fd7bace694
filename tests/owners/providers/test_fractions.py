"""What schedulers of fractions write on pods, and what a pod's author may write instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.owners.names import DeviceShare
from gpuledger.owners.providers.fractions import device_shares

UUID = "GPU-11111111-2222-4333-8444-555555555555"
OTHER = "GPU-99999999-2222-4333-8444-555555555555"
MIB = 1 << 20
HAMI, VOLCANO = "hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new"
ONE_GROUP = {"runai-gpu-group": "g1"}

Shares = tuple[DeviceShare, ...]


def of_kai(group: str, compute: float | None, memory_bytes: int | None = None, container: str = "main") -> DeviceShare:
    """A part of the GPU that a reservation pod holds."""
    return DeviceShare(container, group=group, source="kai", compute=compute, memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, ()),
        ({}, {"gpu-fraction": "0.5"}, ()),  # not scheduled yet
        (ONE_GROUP, {"gpu-fraction": "0.5"}, (of_kai("g1", 0.5),)),
        (ONE_GROUP, {"gpu-fraction": "0.3333333333333333"}, (of_kai("g1", 1 / 3),)),
        (ONE_GROUP, {"gpu-fraction": "1"}, (of_kai("g1", 1.0),)),
        (ONE_GROUP, {"gpu-memory": "2000"}, (of_kai("g1", None, 2000 * MIB),)),
        (ONE_GROUP, {}, (DeviceShare("main", group="g1"),)),
        (
            ONE_GROUP,
            {"gpu-fraction": ".25", "gpu-fraction-container-name": "side"},
            (of_kai("g1", 0.25, None, "side"),),
        ),
        (
            {"runai-gpu-group/g1": "g1", "runai-gpu-group/g2": "g2", "app": "x"},
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
            (of_kai("g1", 0.5), of_kai("g2", 0.5)),
        ),
        ({}, {HAMI: f"{UUID},NVIDIA,3000,30:;"}, (DeviceShare("main", UUID, "", "hami", 0.3, 3000 * MIB),)),
        ({}, {HAMI: f"{UUID}[1-0],NVIDIA,3000,30:;"}, (DeviceShare("main", UUID, "", "hami", 0.3, 3000 * MIB),)),
        ({}, {HAMI: f",,0,0:;{UUID},NVIDIA,3000,30:;"}, (DeviceShare("side", UUID, "", "hami", 0.3, 3000 * MIB),)),
        ({}, {HAMI: f"{UUID},NVIDIA,3000,0:;"}, (DeviceShare("main", UUID, "", "hami", None, 3000 * MIB),)),
        (
            {},
            {HAMI: f";{UUID},NVIDIA,3000,30:{OTHER},NVIDIA,1000,10:;"},
            (
                DeviceShare("side", UUID, "", "hami", 0.3, 3000 * MIB),
                DeviceShare("side", OTHER, "", "hami", 0.1, 1000 * MIB),
            ),
        ),
        ({}, {VOLCANO: f"{UUID},NVIDIA,8000,50:;"}, (DeviceShare("main", UUID, "", "volcano", 0.5, 8000 * MIB),)),
    ],
)
def test_parts_of_gpus(labels: dict[str, str], annotations: dict[str, str], expected: Shares) -> None:
    """As KAI Scheduler, Run:ai, HAMi and Volcano document them."""
    assert device_shares(labels, annotations, ["main", "side"]) == (expected, "")


@pytest.mark.parametrize(
    ("labels", "annotations", "shares", "problem"),
    [
        (ONE_GROUP, {"gpu-fraction": "1.5"}, 1, "has gpu-fraction '1.5', which is no number above 0 and at most 1"),
        (ONE_GROUP, {"gpu-fraction": "-0.5"}, 1, "has gpu-fraction '-0.5', which is no number above 0 and at most 1"),
        (ONE_GROUP, {"gpu-fraction": "0"}, 1, "has gpu-fraction '0', which is no number above 0 and at most 1"),
        (ONE_GROUP, {"gpu-fraction": "nan"}, 1, "has gpu-fraction 'nan', which is no number above 0 and at most 1"),
        (ONE_GROUP, {"gpu-memory": "1e3"}, 1, "has gpu-memory with '1e3' instead of a number"),
        (ONE_GROUP, {"gpu-fraction": "0.5", "gpu-memory": "9"}, 1, "has both annotations, gpu-fraction and gpu-memory"),
        (
            ONE_GROUP,
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"},
            1,
            "has gpu-fraction-num-devices '2', but 1 labels runai-gpu-group",
        ),
        (ONE_GROUP, {HAMI: f"{UUID},NVIDIA,1,1:;"}, 0, "has annotations of several schedulers: kai, hami"),
        ({}, {HAMI: "x", VOLCANO: "y"}, 0, "has annotations of several schedulers: hami, volcano"),
        ({}, {HAMI: f"{UUID},NVIDIA,1:;"}, 0, f"has {HAMI} with '{UUID},NVIDIA,1' instead of uuid,type,MiB,percent"),
        ({}, {HAMI: "GPU-1,NVIDIA,1,1:;"}, 0, f"has {HAMI} with 'GPU-1,NVIDIA,1,1' instead of uuid,type,MiB,percent"),
        ({}, {HAMI: "all,NVIDIA,1,1:;"}, 0, f"has {HAMI} with 'all,NVIDIA,1,1' instead of uuid,type,MiB,percent"),
        ({}, {HAMI: "0,NVIDIA,1,1:;"}, 0, f"has {HAMI} with '0,NVIDIA,1,1' instead of uuid,type,MiB,percent"),
        ({}, {HAMI: f"{UUID},NVIDIA,-1,1:;"}, 0, f"has {HAMI} with '-1' instead of a number"),
        ({}, {HAMI: f"{UUID},NVIDIA,1,101:;"}, 0, f"has {HAMI} with 101 percent"),
        ({}, {HAMI: ";;;x"}, 0, f"has {HAMI} for 4 containers instead of 2"),
    ],
)
def test_malformed(labels: dict[str, str], annotations: dict[str, str], shares: int, problem: str) -> None:
    """Nothing is guessed: a group is still one, its size is unknown; of HAMi, the kubelet's list counts."""
    found, why = device_shares(labels, annotations, ["main", "side"])

    assert why == problem
    assert len(found) == shares
    assert all(not share.source for share in found)


TEXTS = st.text("0123456789.,:;-/ GPUabe", max_size=60) | st.text(max_size=20)


@given(
    labels=st.dictionaries(st.sampled_from(["runai-gpu-group", "runai-gpu-group/x"]), TEXTS),
    annotations=st.dictionaries(st.sampled_from(["gpu-fraction", "gpu-memory", HAMI, VOLCANO]), TEXTS),
    containers=st.lists(st.text(max_size=5), max_size=3),
)
def test_any_text(labels: dict[str, str], annotations: dict[str, str], containers: list[str]) -> None:
    """A part is above 0 and at most 1, memory is not negative, and problems are one printable line."""
    shares, problem = device_shares(labels, annotations, containers)

    assert problem.isprintable()
    assert len(problem) < 300
    assert all(share.compute is None or 0 < share.compute <= 1 for share in shares)
    assert all(share.memory_bytes is None or share.memory_bytes >= 0 for share in shares)
