"""Which GPU a device id means, whoever wrote the id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model import Device
from gpuledger.owners.kernel.devices import DeviceIndex, DeviceRef, parse

VECTORS = json.loads((Path(__file__).parent / "vectors" / "device_ids.json").read_text())["device_ids"]

HEX = "589eca37-678c-87d1-df84-37094ad015c0"
GPU, OTHER = f"GPU-{HEX}", "GPU-be839661-c0f5-7452-284b-b875666df60c"
MIG = "MIG-2ce7a541-c516-5dbc-a76e-26cc100d9b55"
MIGS = [MIG, "MIG-00000000-0000-0000-0000-000000000001", "MIG-00000000-0000-0000-0000-000000000002"]
DRA_MIG = {"profile": "1g12gb", "gi_profile": 19, "placement": 4}
DRA_MEDIA = {"profile": "1g12gb-me", "gi_profile": 20, "placement": 0}
CLAIM = "5f0c1c2e-7a41-4be0-9a54-0b8f8d0e1c11"

# Minors run against the indexes, as they do where the driver numbers GPUs in another order than PCI.
INVENTORY = [
    Device(index=0, uuid=GPU, minor=1),
    Device(index=1, uuid=OTHER, minor=0),
    Device(1, MIGS[0], parent_uuid=OTHER, gpu_instance_id=3, compute_instance_id=0, mig_profile="1g.12gb"),
    Device(1, MIGS[1], parent_uuid=OTHER, gpu_instance_id=5, compute_instance_id=0, mig_profile="2g.24gb"),
    Device(1, MIGS[2], parent_uuid=OTHER, gpu_instance_id=5, compute_instance_id=1, mig_profile="2g.24gb"),
]
INDEX = DeviceIndex(INVENTORY)


def said(device_id: str) -> dict[str, Any]:
    """What the id states, without what it does not."""
    facts: dict[str, Any] = json.loads(json.dumps(parse(device_id).to_dict()))
    return {key: value for key, value in facts.items() if value is not None and key not in ("raw", "extra")}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: str(v["id"]))
def test_vectors(vector: dict[str, Any]) -> None:
    """Each form that a device plugin, CDI or DRA writes states what its source says."""
    facts = parse(vector["id"]).to_dict()
    assert {key: facts[key] for key in vector["expect"]} == vector["expect"]
    assert facts["raw"] == vector["id"]


@pytest.mark.parametrize(
    ("device_id", "expect"),
    [
        (GPU.upper(), {"kind": "gpu-uuid", "uuid": GPU}),
        (f"{GPU}::", {"kind": "gpu-uuid", "uuid": GPU}),
        (f"{HEX}::", {"kind": "gpu-uuid", "uuid": GPU}),
        (f"{HEX}::2", {"kind": "gpu-uuid", "uuid": GPU, "replica": "2"}),
        (GPU[:-12] + "000000000123", {"kind": "gpu-uuid", "uuid": GPU[:-12] + "000000000123"}),  # digits, but no slot
        (f"{MIG}::7", {"kind": "mig-uuid", "uuid": MIG, "replica": "7"}),
        (f"MIG-{GPU}/3/1", {"kind": "mig-legacy", "uuid": GPU, "gi": 3, "ci": 1}),
        ("nvidia12/gi3/vgpu0", {"kind": "gke", "minor": 12, "gi": 3, "replica": "0"}),
        ("gpu-0-mig-1g12gb-19-4", {"kind": "dra-mig", "minor": 0} | DRA_MIG),
        ("gpu-3-mig-1g12gb-me-20-0", {"kind": "dra-mig", "minor": 3} | DRA_MEDIA),
        ("nvidia.com/gpu=mig1:0", {"kind": "cdi:mig-index", "index": 1, "mig_index": 0}),
        ("nvidia.com/gpu=1:0", {"kind": "cdi:mig-index", "index": 1, "mig_index": 0}),
        (f"nvidia.com/gpu={MIG}", {"kind": "cdi:mig-uuid", "uuid": MIG}),
        (f"k8s.device-plugin.nvidia.com/gpu={GPU}", {"kind": "cdi:gpu-uuid", "uuid": GPU}),
        ("management.nvidia.com/gpu=all", {"kind": "cdi:all"}),
        ("k8s.gpu.nvidia.com/device=gpu-7", {"kind": "cdi:dra-gpu", "minor": 7}),
        (f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-0", {"kind": "cdi-claim:dra-gpu", "minor": 0, "claim": CLAIM}),
        (f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-vfio-1", {"kind": "cdi-claim:dra-vfio", "index": 1, "claim": CLAIM}),
        (
            f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-0-mig-1g12gb-19-4",
            {"kind": "cdi-claim:dra-mig", "minor": 0, "claim": CLAIM} | DRA_MIG,
        ),
        (f"k8s.gpu.nvidia.com/claim={CLAIM}", {"kind": "unknown", "claim": CLAIM}),
    ],
)
def test_forms_beyond_the_vectors(device_id: str, expect: dict[str, Any]) -> None:
    """The other spellings of the same sources, each with all that it states and nothing else."""
    assert said(device_id) == expect


@pytest.mark.parametrize(
    "device_id",
    [
        "", " ", "device0::1", "none", "void", HEX, f"{GPU}-", f"{GPU}-1-2", f"{GPU}::x", f"{GPU}x", GPU[:-1], "gpu0",
        "nvidia", "nvidia0/", "nvidia0/vgpu1/gi1", "-1", "0:", "0:0:0", "٣", "all\n", "0000:3b:00.0", f"MIG-{MIG}-3",
        "nvidia.com/gds=all", "nvidia.com/imex-channel=0", "nvidia.com/gpu=", "amd.com/gpu=0", "evil-nvidia.com/gpu=0",
        "k8s.gpu.nvidia.com/gpu", "k8s.compute-domain.nvidia.com/device=channel-0", "9" * 5000,
        "gpu-0-mig-" + "1-" * 200,
    ],
)  # fmt: skip
def test_unknown_forms_are_kept_raw(device_id: str) -> None:
    """An id of an unknown form is not interpreted and resolves to no device."""
    assert parse(device_id) == DeviceRef(device_id)
    assert INDEX.resolve(parse(device_id)) == ()


@pytest.mark.parametrize(
    ("device_id", "uuids"),
    [
        (GPU, [GPU]),
        (GPU.upper(), [GPU]),
        (f"{GPU}::3", [GPU]),
        (f"{GPU}-10", [GPU]),
        (MIG, [MIG]),
        (f"{MIG.lower()}::7", [MIG]),
        ("GPU-00000000-0000-0000-0000-000000000000", []),
        # The minor is /dev/nvidiaN, the index is the driver's order.
        ("nvidia0", [OTHER]),
        ("nvidia1/vgpu2", [GPU]),
        ("gpu-0", [OTHER]),
        (f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-1", [GPU]),
        ("0", [GPU]),
        ("nvidia.com/gpu=gpu1", [OTHER]),
        ("7", []),
        ("nvidia7", []),
        # Instances by what cuts them: one GPU instance may hold several compute instances.
        (f"MIG-{OTHER}/3/0", [MIGS[0]]),
        (f"MIG-{OTHER}/5/1", [MIGS[2]]),
        (f"MIG-{OTHER}/9/0", []),
        ("nvidia0/gi3", [MIGS[0]]),
        ("nvidia0/gi5/vgpu0", MIGS[1:]),
        ("nvidia1/gi3", []),
        ("1:0", [MIGS[0]]),
        ("nvidia.com/gpu=mig1:2", [MIGS[2]]),
        ("1:3", []),
        ("0:0", []),
        # DRA names a profile and a place; the place is not in the inventory.
        ("gpu-0-mig-1g12gb-19-4", [MIGS[0]]),
        ("gpu-0-mig-2g24gb-14-0", []),
        ("gpu-0-mig-3g48gb-9-0", []),
        ("all", [GPU, OTHER]),
        ("runtime.nvidia.com/gpu=all", [GPU, OTHER]),
        ("gpu-vfio-0", []),
    ],
)
def test_resolve(device_id: str, uuids: list[str]) -> None:
    """An id leads to the device that it means on this node, or to none."""
    assert INDEX.resolve(parse(device_id)) == tuple(uuids)


def test_extra_profile_letters() -> None:
    """DRA cannot write the dot and the plus of `1g.12gb+me` into a device name."""
    mig = Device(0, MIG, parent_uuid=GPU, gpu_instance_id=1, compute_instance_id=0, mig_profile="1g.12gb+me")
    index = DeviceIndex([Device(index=0, uuid=GPU, minor=0), mig])
    assert index.resolve(parse("gpu-0-mig-1g12gb-me-20-0")) == (MIG,)


def test_unknown_minor_matches_nothing() -> None:
    """A GPU whose minor the driver does not tell is not taken for one that an id names."""
    index = DeviceIndex([Device(index=0, uuid=GPU, minor=None)])
    assert index.resolve(parse("nvidia0")) == ()
    assert index.resolve(parse("all")) == (GPU,)
    assert DeviceIndex([]).resolve(parse("all")) == ()


pieces = st.sampled_from(
    [GPU, OTHER, MIG, HEX, CLAIM, "GPU-", "MIG-", "::", ":", "/", "-", "=", "0", "12", "nvidia", "gi", "vgpu", "gpu",
     "mig", "vfio", "all", "nvidia.com/gpu=", "k8s.gpu.nvidia.com/claim=", "k8s.gpu.nvidia.com/device=", "1g12gb", "\n"]
)  # fmt: skip


@given(st.text() | st.lists(pieces | st.text(max_size=2), max_size=12).map("".join))
def test_any_text_is_parsed_and_resolved(device_id: str) -> None:
    """Total: no id raises, what it says is fit for JSON, and only devices of the inventory come back."""
    ref = parse(device_id)
    assert ref.raw == device_id
    assert ref.uuid is None or ref.uuid[:4] in ("GPU-", "MIG-")
    json.dumps(ref.to_dict())
    assert set(INDEX.resolve(ref)) <= {device.uuid for device in INVENTORY}
