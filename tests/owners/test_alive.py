"""Processes of this host: known as long as they live, and not a moment longer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuledger.owners import alive as module
from gpuledger.owners.alive import Alive
from gpuledger.owners.procfs import LOOK_AGAIN_EVERY, Procfs


@pytest.fixture
def alive() -> Iterator[Alive]:
    """Watches nobody yet."""
    alive = Alive()
    yield alive
    alive.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def _fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_one_that_ended_is_not_watched_any_more(alive: Alive, sleeper: subprocess.Popen[bytes]) -> None:
    """Also before it is waited for: a zombie has ended."""
    alive.watch(sleeper.pid)
    alive.keep({sleeper.pid})
    assert sleeper.pid in alive

    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    alive.keep({sleeper.pid})

    assert sleeper.pid not in alive


def test_nothing_leaks(alive: Alive, sleeper: subprocess.Popen[bytes]) -> None:
    """One nobody asks for is let go, with its descriptor; one that does not exist never had one."""
    before = _fds()
    alive.watch(sleeper.pid)
    alive.watch(2**22 + 1)
    assert _fds() == before + 1

    alive.keep(set())

    assert (_fds(), sleeper.pid in alive) == (before, False)


def test_descriptors_are_left_for_others(monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]) -> None:
    """With few descriptors nobody is watched; the processes are then read one by one."""
    monkeypatch.setattr(module, "SPARE_FDS", 10**9)
    alive = Alive()

    alive.watch(sleeper.pid)

    assert sleeper.pid not in alive
    alive.close()


def test_facts_cost_no_reading_while_a_process_lives(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are read once, then again after a while; when it has ended and was waited for, it is unknown."""
    procfs = Procfs()
    facts = procfs.facts([sleeper.pid])[sleeper.pid]
    reads = []
    stat = Procfs._stat

    def counted(self: Procfs, pid: int) -> tuple[str, int]:
        reads.append(pid)
        return stat(self, pid)

    monkeypatch.setattr(Procfs, "_stat", counted)

    assert all(procfs.facts([sleeper.pid])[sleeper.pid] is facts for _ in range(LOOK_AGAIN_EVERY))
    assert len(reads) == 1
    sleeper.kill()
    sleeper.wait()
    assert procfs.facts([sleeper.pid]) == {}


def test_zombie_keeps_its_owner(sleeper: subprocess.Popen[bytes]) -> None:
    """The driver may list a killed process until its memory is freed; it is still the same one."""
    procfs = Procfs()
    facts = procfs.facts([sleeper.pid])[sleeper.pid]
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)

    for _ in range(LOOK_AGAIN_EVERY + 1):
        assert procfs.facts([sleeper.pid])[sleeper.pid] is facts


def test_a_mere_process_maps_no_gpu(sleeper: subprocess.Popen[bytes]) -> None:
    """The map of a process without CUDA names no device; one that does not exist has no map."""
    procfs = Procfs()

    assert procfs.mapped_gpus(sleeper.pid) == ()
    assert procfs.mapped_gpus(2**22 + 1) is None
    assert len(procfs.boot_id()) == 36
