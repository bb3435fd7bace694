"""What is read from Docker's JSON, right or wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.owners.providers.dockerjson import Inspected, read_container, read_inspected, read_list

A = "a" * 64


def ids_of(answer: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The devices that were given, and those that only the environment names."""
    inspected = read_inspected(answer)
    return inspected.device_ids, inspected.visible_ids


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({}, ()),
        ({"DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]}]}, ("all",)),
        ({"DeviceRequests": [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu", "nvidia"]]}]}, ("0", "1")),
        ({"DeviceRequests": [{"DeviceIDs": ["0", "GPU-x"], "Capabilities": [["gpu"]]}]}, ("0", "GPU-x")),
        ({"DeviceRequests": [{"Count": 10**12, "Capabilities": [["gpu"]]}]}, tuple(map(str, range(128)))),
        ({"DeviceRequests": [{"Count": True, "Capabilities": [["gpu"]]}]}, ()),
        ({"DeviceRequests": [{"Count": 0, "Capabilities": [["gpu"]]}]}, ()),
        ({"DeviceRequests": [{"Count": -1, "Capabilities": [["tpu"]]}]}, ()),
        ({"DeviceRequests": [{"Driver": "amd", "Count": -1, "Capabilities": [["gpu"]]}]}, ()),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, ("nvidia.com/gpu=all",)),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=0", "nvidia.com/gds=all"]}]}, ()),
        ({"DeviceRequests": [{"Driver": "nvidia.cdi", "Count": -1, "Capabilities": [["gpu"]]}]}, ("all",)),
        ({"DeviceRequests": [{"Driver": "nvidia.runtime-hook", "Count": 1, "Capabilities": [["gpu"]]}]}, ("0",)),
        ({"Devices": [{"PathOnHost": "/dev/nvidia2"}, {"PathOnHost": "/dev/nvidiactl"}]}, ("nvidia2",)),
        ({"Devices": [{"PathOnHost": "nvidia.com/gpu=1"}, {"PathOnHost": "/dev/fuse"}, 7]}, ("nvidia.com/gpu=1",)),
    ],
)
def test_devices_that_were_asked_for(host: dict[str, Any], expected: tuple[str, ...]) -> None:
    """Requests and device nodes, of NVIDIA only, as they were asked for."""
    assert read_inspected({"HostConfig": host}).device_ids == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (["NVIDIA_VISIBLE_DEVICES=all"], ("all",)),
        (["NVIDIA_VISIBLE_DEVICES=0,GPU-x", "A=b"], ("0", "GPU-x")),
        (["NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1"], ("1",)),
        (["NVIDIA_VISIBLE_DEVICES=none"], ()),
        (["NVIDIA_VISIBLE_DEVICES=void"], ()),
        (["NVIDIA_VISIBLE_DEVICES=", "CUDA_VERSION=9"], ()),
        (["CUDA_VERSION=9"], ("all",)),
        (["CUDA_VERSION=9", "NVIDIA_REQUIRE_CUDA=cuda>=9"], ()),
        ([], ()),
    ],
)
def test_devices_by_the_environment(environment: list[str], expected: tuple[str, ...]) -> None:
    """It counts for NVIDIA's runtime alone: CUDA images carry `all` wherever they run."""
    found = {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": environment}}
    assert ids_of(found) == ((), expected)
    assert read_inspected(found | {"HostConfig": {"Runtime": "runc"}}).visible_ids == ()
    asked = found | {"HostConfig": {"Runtime": "nvidia", "DeviceRequests": [{"Count": 1, "Capabilities": [["gpu"]]}]}}
    assert ids_of(asked) == (("0",), ()), "a request replaces it"


def test_what_counts_before_the_environment() -> None:
    """Annotations, then mounts, as NVIDIA's runtime reads them."""
    mounts = [
        {"Destination": f"/var/run/nvidia-container-devices/{name}"} for name in ("cdi/nvidia.com/gpu/1", "GPU-x")
    ]
    found: dict[str, Any] = {
        "HostConfig": {
            "Runtime": "nvidia",
            "Annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0,amd.com/gpu=1", "b": "c"},
        },
        "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]},
        "Mounts": [*mounts, {"Destination": "/data"}],
    }
    assert ids_of(found) == (("nvidia.com/gpu=0",), ())
    del found["HostConfig"]["Annotations"]
    assert read_inspected(found).device_ids == ("nvidia.com/gpu=1", "GPU-x")


def test_names_and_images_that_moved() -> None:
    """The container's own name, not that of a link; the image's name, not its id."""
    entry = {"Names": ["/other/alias", "/db"], "Image": "sha256:1234"}
    found = read_container(A, entry, Inspected("postgres:16"))
    assert (found.name, found.image) == ("db", "postgres:16")
    assert read_container(A, entry, Inspected("")).image == "sha256:1234"


KEYS = st.sampled_from(
    ["HostConfig", "Config", "Mounts", "DeviceRequests", "Devices", "Driver", "Count", "DeviceIDs", "Capabilities",
     "PathOnHost", "Runtime", "Env", "Annotations", "Destination", "Image", "Id", "Names", "Labels",
     "com.docker.compose.project", "io.kubernetes.pod.name"]
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(
    ["nvidia", "gpu", A, "/dev/nvidia0", "nvidia.com/gpu=0", "NVIDIA_VISIBLE_DEVICES=\ud800,\n", "\udfff" * 600]
)  # fmt: skip
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS | st.text(), inner), max_leaves=40)


@given(ANYTHING)
def test_any_json_about_a_container(anything: Any) -> None:
    """Nothing raises, and every text is fit for a label."""
    host = {"HostConfig": anything, "Config": anything, "Mounts": anything}
    for found in (
        anything,
        host,
        {"HostConfig": {"Runtime": "nvidia", "DeviceRequests": anything, "Devices": anything}},
    ):
        inspected = read_inspected(found)
        for text in (*inspected.device_ids, *inspected.visible_ids, inspected.image):
            assert text.isprintable()
    entries = read_list([anything, {"Id": A, "Names": anything, "Labels": anything, "Image": anything}, anything])
    for i, entry in entries.items():
        container = read_container(i, entry, Inspected(""))
        texts = [container.name, container.image, container.pod, *(value for _, value in container.labels)]
        assert all(text.isprintable() and len(text) <= 512 for text in texts)
