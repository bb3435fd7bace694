"""Looking for processes that may hold GPU memory: on a /proc made for the test, and on the real one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from gpuledger.owners.kernel import cgroup
from gpuledger.owners.kernel.cgroup import CgroupRef
from gpuledger.owners.kernel.procfs import MAPS_CHUNK, Procfs
from gpuledger.owners.kernel.search import (
    SCAN_APART_S,
    SEARCH_APART_S,
    VALID_S,
    Clue,
    RunningContainers,
    Search,
    _tenant,
)
from tests.owners.kernel.fakeproc import Proc
from tests.runtime.clock import Clock

B, C = "b" * 64, "4be1" * 16
DOCKER = f"0::/system.slice/docker-{C}.scope\n"
MAPPED = "7f0000000000-7f0000001000 rw-s 00000000 00:05 612 /dev/nvidia{}\n"


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc."""
    return Proc(tmp_path)


def add(proc: Proc, pid: int, *, maps: str = "", environ: bytes = b"", cgroup: str = "0::/a\n") -> None:
    """A process with a memory map and an environment."""
    proc.add(pid, cgroup=cgroup)
    (proc.root / str(pid) / "maps").write_text(maps)
    (proc.root / str(pid) / "environ").write_bytes(environ)


def clues(
    proc: Proc, parse_cgroup: Callable[[str], CgroupRef] = cgroup.parse
) -> list[tuple[int, tuple[int, ...], str]]:
    """What one search finds: pid, GPUs in its map, and the environment's."""
    looking = Search(Procfs(proc.root), parse_cgroup)
    looking.start()
    looking.wait(10)
    return [(clue.facts.pid, clue.minors, clue.visible) for clue in looking.clues]


def test_maps_that_name_a_gpu(proc: Proc) -> None:
    """In any order, each once; other devices of the driver are no GPUs."""
    add(proc, 7, maps=MAPPED.format(1) + MAPPED.format(0) * 3 + MAPPED.format("-uvm") + MAPPED.format("ctl"))
    add(proc, 8, maps="55d0-55e0 r-xp 00000000 fe:00 1 /usr/bin/python3\n")
    proc.add(9)  # gone while it was looked at: it has no map any more

    assert clues(proc) == [(7, (0, 1), "")]


def test_a_long_map_is_read_in_pieces(proc: Proc) -> None:
    """A line that is cut by the end of a piece is still seen; the last may lack its end."""
    line = "7f00-7f10 r--p 00000000 fe:00 1 /lib/x\n"
    add(proc, 7, maps=line * (MAPS_CHUNK // len(line)) + MAPPED.format(3) + line * 9 + MAPPED.format(4).rstrip())

    assert clues(proc) == [(7, (3, 4), "")]


def test_the_environment_of_a_container(proc: Proc) -> None:
    """Of one process in each container, and only the one variable; outside of containers it says nothing."""
    named = b"PASSWORD=hunter2\0NVIDIA_VISIBLE_DEVICES=0,GPU-x\0"
    add(proc, 7, environ=named, cgroup=DOCKER)
    add(proc, 8, environ=named, cgroup=DOCKER)
    add(proc, 9, environ=named)

    assert clues(proc) == [(7, (), "0,GPU-x")]


def test_hostile_environment(proc: Proc) -> None:
    """Bytes that are no text are not taken for a list of devices."""
    add(proc, 7, environ=b"NVIDIA_VISIBLE_DEVICES=\xff\n\0", cgroup=DOCKER)

    assert clues(proc) == []


def test_not_more_often_than_needed(proc: Proc) -> None:
    """One search in 15 s; what it found counts for a minute, and is the same object all the while."""
    clock = Clock()
    looking = Search(Procfs(proc.root), monotonic=clock)
    add(proc, 7, maps=MAPPED.format(0))
    looking.start()
    looking.wait(10)
    first = looking.clues
    add(proc, 8, maps=MAPPED.format(0))
    clock.now += SEARCH_APART_S - 1
    looking.start()
    looking.wait(10)
    assert looking.clues is first
    clock.now += 1
    looking.start()
    looking.wait(10)
    assert [clue.facts.pid for clue in looking.clues] == [7, 8]
    clock.now += VALID_S + 1
    assert looking.clues == ()


def test_a_search_that_hangs_is_left_alone(proc: Proc) -> None:
    """The kernel may hold a process whose map is read: no second search begins, and no tick waits."""
    clock, going = Clock(), threading.Event()

    class Stuck(Procfs):
        """Its processes cannot be listed."""

        searches = 0

        def pids(self) -> list[int]:
            """Hangs."""
            self.searches += 1
            going.wait(20)
            return []

    procfs = Stuck(proc.root)
    looking = Search(procfs, monotonic=clock)
    for _ in range(3):
        looking.start()
        clock.now += 100
    assert procfs.searches == 1
    going.set()
    looking.wait(10)
    looking.start()
    looking.wait(10)
    assert procfs.searches == 2


def test_a_search_that_fails_finds_nothing(proc: Proc) -> None:
    """A bug in it costs the guess, nothing else."""
    add(proc, 7, maps=MAPPED.format(0))

    def fail(_: str) -> CgroupRef:
        raise RuntimeError("bug")

    assert clues(proc, fail) == []


def test_a_real_process(tmp_path: Path) -> None:
    """One that maps a file of that name is found in the real /proc; this one, which does not, is not."""
    node = tmp_path / "dev" / "nvidia7"
    node.parent.mkdir()
    node.write_bytes(b"\0" * 4096)
    code = f"import mmap; f = open({str(node)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); print('ready', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        looking = Search(Procfs())
        looking.start()
        looking.wait(30)
        found = [clue for clue in looking.clues if clue.minors == (7,)]
        process.kill()
    assert [clue.facts.pid for clue in found] == [process.pid]
    assert isinstance(found[0], Clue)


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (DOCKER, f"0::/system.slice/docker-{C}.scope/a/b\n", True),
        ("0::/user.slice/user@7.service/a.scope\n", "0::/user.slice/user@7.service/x/b.scope\n", True),
        ("0::/user.slice/user@7.service/a.scope\n", "0::/user.slice/user@8.service/a.scope\n", False),
        (DOCKER, "0::/system.slice/ssh.service\n", False),
    ],
)
def test_tenant_of_a_process_that_blocks(first: str, second: str, is_same: bool) -> None:
    """All cgroups that a container or a user can create belong to one tenant, which a search skips as a whole."""
    assert (_tenant(cgroup.parse(first)) == _tenant(cgroup.parse(second))) == is_same


def test_a_container_runs_while_it_has_a_process(tmp_path: Path) -> None:
    """Until a scan has looked for it, it counts as running; so does everything while a scan fails."""
    proc, now = Proc(tmp_path), 100.0
    proc.add(7, cgroup=DOCKER)
    running = RunningContainers(Procfs(tmp_path), monotonic=lambda: now)

    assert running.among(frozenset()) == frozenset()
    assert running.among(frozenset({C, B})) == {C, B}
    running.wait(10)
    assert running.among(frozenset({C, B})) == {C}
    proc.end(7)
    running.wait(10)
    assert running.among(frozenset({C})) == {C}
    now += 100 * SCAN_APART_S
    running.among(frozenset({C}))
    running.wait(10)
    assert running.among(frozenset({C, B})) == {B}


def test_a_container_around_another_is_running(tmp_path: Path) -> None:
    """A container whose only processes are in a container inside it has not ended, nor has the inner one."""
    proc = Proc(tmp_path)
    proc.add(7, cgroup=f"{DOCKER.strip()}/docker/{B}\n")
    running = RunningContainers(Procfs(tmp_path), partial(cgroup.parse, nested=True))

    running.among(frozenset({C, B, "0" * 64}))
    running.wait(10)

    assert running.among(frozenset({C, B, "0" * 64})) == {C, B}
