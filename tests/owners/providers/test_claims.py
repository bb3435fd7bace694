"""What claims consume of shared devices, as the API server reports it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuledger.errors import ProviderError
from gpuledger.owners.names import DeviceShare
from gpuledger.owners.providers.claims import Claims, capacities, quantity

GIB = 1 << 30


def allocated(**consumed: str) -> dict[str, Any]:
    """A claim of one device."""
    result = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "consumedCapacity": consumed}
    return {"status": {"allocation": {"devices": {"results": [result]}}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10Gi", 10 * GIB), ("512Mi", 512 << 20), ("2G", 2 * 10**9), ("4096", 4096), ("", None), ("-1", None),
     ("1.5Gi", None), ("1e9", None), ("99999999999999999999", None), ("1GiB", None)],
)  # fmt: skip
def test_quantities(text: str, expected: int | None) -> None:
    """Whole numbers with a suffix; no other text is guessed."""
    assert quantity(text) == expected


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({}, None),
        ({"status": {"allocation": "x"}}, None),
        (allocated(), {}),
        (allocated(memory="x", cores="101"), {}),
        (
            allocated(memory="10Gi", cores="30"),
            {("ml", "c", "gpu-0"): DeviceShare("", source="dra", compute=0.3, memory_bytes=10 * GIB)},
        ),
        (
            allocated(memory="10Gi"),
            {("ml", "c", "gpu-0"): DeviceShare("", source="dra", compute=None, memory_bytes=10 * GIB)},
        ),
    ],
)
def test_capacities(claim: dict[str, Any], expected: object) -> None:
    """Memory and percent of cores; a claim that is not allocated yet is read again."""
    assert capacities("ml", "c", claim) == expected


def test_a_claim_is_read_until_it_is_allocated() -> None:
    """Then its devices do not change. A claim of no pod is forgotten."""
    answers, paths = [{}, allocated(memory="1Gi"), allocated(memory="2Gi")], []

    def read(path: str) -> bytes:
        paths.append(path)
        return json.dumps(answers[len(paths) - 1]).encode()

    claims, key = Claims(read), ("ml", "c", "gpu-0")
    assert claims.of([("ml", "c")]) == {}
    assert claims.of([("ml", "c")])[key].memory_bytes == GIB
    assert claims.of([("ml", "c")])[key].memory_bytes == GIB
    assert claims.of([]) == {}
    assert claims.of([("ml", "c")])[key].memory_bytes == 2 * GIB
    assert set(paths) == {"/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/c"}


def test_without_the_right_to_read_claims() -> None:
    """Pods are known without it; the server gets one request for all of them."""
    count = 0

    def read(_: str) -> bytes:
        nonlocal count
        count += 1
        raise ProviderError("refused (403)", kind="auth")

    assert Claims(read).of([("ml", "a"), ("ml", "b")]) == {}
    assert count == 1
