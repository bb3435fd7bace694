"""What the kernel lets us see, told from what was probed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.doctor import host
from gpuledger.owners.access import Access

ROOT = Path("/host/proc")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0::/init.scope\n", "version 2"),
        ("12:memory:/\n1:name=systemd:/init.scope\n", "version 1"),
        ("12:memory:/\n0::/init.scope\n", "version 1, with 2 beside it (hybrid)"),
    ],
)
def test_version_of_cgroups(text: str, version: str) -> None:
    """From what pid 1 is in."""
    assert [found.text for found in host.cgroups(text)] == [version]


def test_cgroups_that_cannot_be_read_are_told_once() -> None:
    """By the check of rights, with the place that was looked at."""
    access = Access(host_pid_namespace=True, cgroup=False, maps=True, environ=True)

    assert host.cgroups("") == []
    assert [(found.name, found.level) for found in host.rights(access, ROOT)] == [("proc cgroup", "problem")]
    assert "/host/proc/1/cgroup" in host.rights(access, ROOT)[0].text


def test_nothing_may_be_read() -> None:
    """One line for what is one remedy: an environment needs what maps need."""
    access = Access(host_pid_namespace=False, cgroup=False, maps=False, environ=False)

    assert [found.name for found in host.rights(access, ROOT)] == ["proc cgroup", "proc maps"]
