"""Tenants of one host: processes of any user, with any name, in real cgroups of any name."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.cli.running import Running, serving, surroundings
from tests.components import program
from tests.fakedriver import Gpu, Process, Scenario
from tests.waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")
ATTACKER, VICTIM = 54321, 54323
"""Users that own nothing else here."""
UUID = "GPU-00000000-0000-4000-8000-000000000000"


@contextmanager
def cgroup(path: str, owned: str = "", uid: int = 0) -> Iterator[Path]:
    """A cgroup; the directory `owned`, a part of the path, is delegated to a user, and that user creates the rest."""
    hierarchy = CGROUPS if (CGROUPS / "cgroup.procs").exists() else CGROUPS / "pids"
    folder, created = hierarchy, []
    is_delegated = False
    for name in path.strip("/").split("/"):
        folder /= name
        if not folder.exists():
            folder.mkdir()
            created.append(folder)
            if is_delegated or name == owned:
                is_delegated = True
                os.chown(folder, uid, uid)
    try:
        yield folder
    finally:
        for directory in reversed(created):
            with suppress(OSError):  # another test's container is in it
                directory.rmdir()


@contextmanager
def nested(folder: Path, name: str, levels: int) -> Iterator[int]:
    """So many cgroups in each other: a descriptor of the innermost one's cgroup.procs, whose path may be too long."""
    with ExitStack() as stack:
        directory = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, directory)
        for _ in range(levels):
            os.mkdir(name, dir_fd=directory)
            stack.callback(os.rmdir, name, dir_fd=directory)
            directory = os.open(name, os.O_RDONLY, dir_fd=directory)
            stack.callback(os.close, directory)
        procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=directory)
        stack.callback(os.close, procs)
        yield procs


@contextmanager
def process(folder: Path | None = None, *, uid: int = 0, name: str = "train", prefix: tuple[str, ...] = (),
            environment: Mapping[str, str] | None = None) -> Iterator[int]:  # fmt: skip
    """A sleeping process with this name in this cgroup; `prefix` starts a command that takes the program's path."""
    with tempfile.TemporaryDirectory(prefix="tenant-") as text:
        place = Path(text)
        place.chmod(0o711)
        copy = place / name
        shutil.copy(program("sleep"), copy)
        if uid:
            prefix = (program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *prefix)
        with subprocess.Popen([*prefix, str(copy), "600"], env=dict(environment or {})) as started:
            comm = Path(f"/proc/{started.pid}/comm")
            wait_until(lambda: comm.read_text().strip() == name[:15])  # the last program of the command runs
            try:
                if folder is not None:
                    (folder / "cgroup.procs").write_text(str(started.pid))
                yield started.pid
            finally:
                started.kill()


@contextmanager
def exporter(*words: str, **sm: int) -> Iterator[Running]:
    """The exporter on one GPU of 400 W, with these processes and their SM utilization: `p1234=80`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile-")))
        processes = [Process(gpu=0, pid=int(pid[1:]), sm=percent) for pid, percent in sm.items()]
        scenario = Scenario(gpus=[Gpu(index=0, uuid=UUID, watts=400.0, util=90)], processes=processes)
        environment = surroundings(scenario.write(folder / "scenario"))
        yield stack.enter_context(serving("serve", "--tick.interval=200ms", *words, env=environment))
