"""What people call an owner."""

from __future__ import annotations

import pytest

from gpuledger.model import Device, Facts, Owner, ProcessUse, Resident
from gpuledger.view.who import who, whose

LONG = "4be1" * 16


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Owner(namespace="ml", pod="train-0", container="main", container_id=LONG), "ml/train-0/main"),
        (Owner(namespace="ml", pod="train-0", container_id=LONG), "ml/train-0/4be14be14be1"),
        (Owner(container="triton", container_id=LONG), "triton"),
        (Owner(container_id=LONG), "4be14be14be1"),
        (Owner(pod_uid="7f2c"), "7f2c"),
        (Owner(job="slurm/211", unit="slurmstepd.scope"), "slurm/211"),
        (Owner(unit="ollama.service"), "ollama.service"),
        (Owner(), ""),
    ],
)
def test_the_best_name_there_is(owner: Owner, name: str) -> None:
    """Pod and container, container, job, service; the start of an id where there is no name."""
    assert who(owner) == name


def test_a_process_without_an_owner_is_its_own() -> None:
    """By its name, else by its pid."""
    use = ProcessUse(Device(0, "GPU-0"), Resident(7, "compute"))
    named = ProcessUse(Device(0, "GPU-0"), Resident(7, "compute"), Facts(7, 1, 0, "python3"))

    assert (whose(use), whose(named)) == ("pid 7", "python3")
