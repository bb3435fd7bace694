"""Which owner a server belongs to."""

from __future__ import annotations

import pytest

from gpuledger.integrations.tokens.targets import Target, annotated, parse_target
from gpuledger.model import ContainerUse, Device, Facts, Owner, ProcessUse, Resident

GPU = Device(0, "GPU-0")
POD = Owner(container="main", container_id="c1", namespace="ml", pod="vllm-0", pod_uid="u1")


def container(owner: Owner) -> ContainerUse:
    """A container on the GPU."""
    return ContainerUse(GPU, owner, 1, None, None)


def process(pid: int, owner: Owner) -> ProcessUse:
    """A process on the GPU."""
    return ProcessUse(GPU, Resident(pid, "compute"), Facts(pid, 1, 0), owner=owner)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("ml/vllm-0=http://x:1/metrics", {"pod"}),
        ("ml/vllm=http://x:1", set()),
        ("main=http://x:1", {"docker"}),
        ("unit:vllm.service=http://x:1", {"unit"}),
        ("job:slurm/211=http://x:1", {"job"}),
        ("job:211=http://x:1", {"job"}),
        ("pid:14=http://x:1", {"unit"}),
    ],
)
def test_owners(text: str, matches: set[str]) -> None:
    """A server belongs to the pod, container, unit, job or process that the setting names, and to no other.

    A container of a pod is never found by its name alone, which any tenant may choose.
    """
    target = parse_target(text)
    assert target is not None
    containers = {"pod": POD, "docker": Owner(container="main", container_id="c2")}
    processes = {
        "pod process": process(12, POD),
        "job": process(13, Owner(job="slurm/211")),
        "unit": process(14, Owner(unit="vllm.service")),
    }
    found = {name for name, owner in containers.items() if target.has_container(container(owner))}

    assert found | {name for name, use in processes.items() if target.has_process(use)} == matches


@pytest.mark.parametrize(
    "text",
    ["http://x:1", "=http://x:1", "a/b/c=http://x:1", "ml/x=ftp://x", "pid:x=http://x:1", "m=http://u:p@x:1", "x", ""],
)
def test_mistakes(text: str) -> None:
    """Each mistake is refused with a correction."""
    with pytest.raises(ValueError, match=r"; (write|use) "):
        parse_target(text)


def test_annotations() -> None:
    """The pod's address of the API server counts, for that pod only."""
    assert parse_target("annotations") is None
    assert annotated(POD) is None
    target = annotated(Owner(namespace="ml", pod="vllm-0", pod_uid="u1", metrics_url="http://10.0.0.7:8000/metrics"))

    assert target == Target("ml/vllm-0", "http://10.0.0.7:8000/metrics", "u1")
    assert target.has_container(container(POD))
    assert not target.has_container(container(Owner(container_id="c3", namespace="ml", pod="vllm-0", pod_uid="u2")))
