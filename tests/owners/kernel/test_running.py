"""Containers with processes, on a /proc made for the test."""

from __future__ import annotations

from pathlib import Path

from gpuledger.owners.kernel.procfs import Procfs
from gpuledger.owners.kernel.running import APART_S, RunningContainers
from tests.owners.kernel.fakeproc import Proc

A, B = "a" * 64, "b" * 64
DOCKER = "0::/system.slice/docker-{}.scope\n"


def test_a_container_runs_while_it_has_a_process(tmp_path: Path) -> None:
    """Until a scan has looked for it, it counts as running; so does everything while a scan fails."""
    proc, now = Proc(tmp_path), 100.0
    proc.add(7, cgroup=DOCKER.format(A))
    running = RunningContainers(Procfs(tmp_path), monotonic=lambda: now)

    assert running.among(frozenset()) == frozenset()
    assert running.among(frozenset({A, B})) == {A, B}
    running.wait(10)
    assert running.among(frozenset({A, B})) == {A}
    proc.end(7)
    running.wait(10)
    assert running.among(frozenset({A})) == {A}
    now += 100 * APART_S
    running.among(frozenset({A}))
    running.wait(10)
    assert running.among(frozenset({A, B})) == {B}
