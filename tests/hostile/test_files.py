"""Files that root writes into directories of other users, and what an archive for a bug report tells."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, gpuledger, serving, surroundings
from tests.fakedriver import Gpu, Process, Scenario
from tests.owners.kernel.fakeproc import Proc

EVE = 54321
FAST = "--tick.interval=100ms"
SECRET = "root only\n"

pytestmark = pytest.mark.needs("root")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """One GPU without processes."""
    return surroundings(Scenario([Gpu(0, uuid="GPU-a")]).write(tmp_path / "scenario"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of eve."""
    folder = tmp_path / "eve"
    folder.mkdir()
    os.chown(folder, EVE, EVE)
    return folder


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    """A file of root; nothing may change it."""
    path = tmp_path / "shadow"
    path.write_text(SECRET)
    path.chmod(0o600)
    yield path
    assert path.read_text() == SECRET
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == 0


def link(name: Path, target: Path) -> Path:
    """A link of eve."""
    name.symlink_to(target)
    os.lchown(name, EVE, EVE)
    return name


def commands(path: Path) -> dict[str, list[str]]:
    """Every command that writes a file."""
    return {
        "once": ["once", FAST, "--output", str(path)],
        "record": ["record", FAST, "--duration=200ms", str(path)],
        "doctor": ["doctor", FAST, "--environment=none", "--web.listen-address=127.0.0.1:0", "--bundle", str(path)],
        "journal": ["serve", FAST, "--web.listen-address=127.0.0.1:0", "--journal.path", str(path)],
    }


@pytest.mark.parametrize("command", ["once", "record", "doctor", "journal"])
def test_link_in_place_of_the_file(command: str, env: dict[str, str], folder: Path, foreign: Path) -> None:
    """A user puts a link to a file of root where root writes: the command refuses with one line."""
    path = link(folder / "file", foreign)

    done = gpuledger(*commands(path)[command], env=env)

    assert done.returncode == 2
    last = done.stderr.rstrip().split("\n")[-1]
    assert last.startswith(f"gpuledger: cannot write {path}: {path} is a symbolic link of another user (uid {EVE}); ")


def test_link_in_place_of_a_directory(env: dict[str, str], folder: Path, tmp_path: Path) -> None:
    """A user puts a link to a directory of root on the way: nothing is created there."""
    (tmp_path / "cron.d").mkdir()
    link(folder / "sub", tmp_path / "cron.d")

    done = gpuledger(*commands(folder / "sub" / "job")["once"], env=env)

    assert (done.returncode, list((tmp_path / "cron.d").iterdir())) == (2, [])
    assert f"{folder / 'sub'} is a symbolic link of another user" in done.stderr


def test_links_in_place_of_the_temporary_file(env: dict[str, str], folder: Path, foreign: Path) -> None:
    """A user guesses the name of the temporary file, which was made of the pid: the guess is useless."""
    path = folder / "gpu.prom"
    code = "import os, sys; open('/dev/stdin').read(1); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-c", code, *COMMAND, *commands(path)["once"]]
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE) as process:
        link(folder / f".gpu.prom.{process.pid}", foreign)
        process.communicate(b"x", timeout=60)

    assert process.returncode == 0
    assert "\ngpuledger_up 1\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("exists", [True, False])
def test_link_in_place_of_the_lock(exists: bool, env: dict[str, str], folder: Path, foreign: Path) -> None:
    """A user puts a link where the journal's lock is created: the exporter refuses, and creates no file."""
    target = foreign if exists else foreign.with_name("nologin")
    link(folder / "journal.lock", target)

    done = gpuledger(*commands(folder / "journal")["journal"], env=env)

    assert (done.returncode, target.exists()) == (2, exists)
    assert f"--journal.path: {folder / 'journal.lock'} is a symbolic link; delete the link" in done.stderr


def test_journal_is_private(env: dict[str, str], tmp_path: Path) -> None:
    """Another user opens the journal or takes its lock, which would stop the next start: both are private."""
    path = tmp_path / "journal"
    with serving("serve", FAST, f"--journal.path={path}", env=env) as server:
        server.metrics(r"^gpuledger_journal_size_bytes [1-9]")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("journal*")}
    assert modes == {"journal": 0o600, "journal.lock": 0o600}


def test_lock_of_an_older_version(env: dict[str, str], tmp_path: Path) -> None:
    """A lock file of an older version can be opened by every user: it becomes private at the next start."""
    path, lock = tmp_path / "journal", tmp_path / "journal.lock"
    lock.touch(0o644)
    with serving("serve", FAST, f"--journal.path={path}", env=env) as server:
        server.metrics(r"^gpuledger_journal_size_bytes [1-9]")
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        with lock.open("rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_forged_journal(env: dict[str, str], tmp_path: Path) -> None:
    """A user puts an own journal into a directory like /tmp before the first start: it is not used."""
    path = tmp_path / "journal"
    scenario = Scenario([Gpu(0, uuid="GPU-a", watts=1000.0)])
    with serving("serve", FAST, f"--journal.path={path}", env=surroundings(scenario.write(tmp_path / "s"))) as server:
        server.metrics(r"^gpuledger_journal_size_bytes [1-9]")
        server.stop()
    os.chown(path, EVE, EVE)

    with serving("serve", FAST, f"--journal.path={path}", env=env) as server:
        log = server.stop()[2]

    assert f"cannot resume from journal {path}: belongs to another user (uid {EVE}); totals start from zero" in log


def test_directory_of_another_user_is_no_reason_to_refuse(env: dict[str, str], folder: Path) -> None:
    """The directory of the textfile collector belongs to node_exporter: files there are written, and keep no mode."""
    path = folder / "gpu.prom"
    path.touch(0o666)
    os.chown(path, EVE, EVE)

    assert gpuledger(*commands(path)["once"], env=env).returncode == 0
    status = path.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o644)


SEPARATORS = ["\f", "\v", "\r", "\x1c", "\x85", "\u2028"]


def test_bundle_redacts_names_with_separators(tmp_path: Path) -> None:
    """A user puts separators of lines into the names of processes: the archive has no name in clear text."""
    (tmp_path / "proc").mkdir()
    proc = Proc(tmp_path / "proc")
    for pid, separator in enumerate(SEPARATORS, 71):
        proc.add(pid, name=f"x{separator}payroll".encode(), cgroup="0::/system.slice/payroll.service\n")
    processes = [Process(0, pid) for pid in range(71, 71 + len(SEPARATORS))]
    env = surroundings(Scenario([Gpu(0, uuid="GPU-a")], processes).write(tmp_path / "scenario"))
    path = tmp_path / "bundle.tar.gz"

    gpuledger(*commands(path)["doctor"], f"--path.procfs={proc.root}", env=env)

    with tarfile.open(path) as archive:
        texts = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        for name, file in texts.items():
            assert file is not None
            assert b"payroll" not in file.read(), name
