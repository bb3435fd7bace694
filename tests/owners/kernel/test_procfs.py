"""What the kernel says about processes, from a /proc made for the test."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from gpuledger.model import Facts
from gpuledger.owners.kernel import procfs as procfs_module
from gpuledger.owners.kernel.procfs import REREAD_EVERY, TICKS_PER_S, Pidfds, Procfs
from tests.owners.kernel.fakeproc import BOOT_S, Proc
from tests.waiting import wait_until


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc."""
    return Proc(tmp_path)


def test_a_process_is_known_with_all_its_facts(proc: Proc) -> None:
    """Name, uid, cgroup, and its start as a Unix time."""
    proc.add(7, 12345, uid=1001, cgroup="0::/system.slice/ollama.service\n")

    facts = Procfs(proc.root).facts([7])[7]

    assert (facts.pid, facts.start_ticks, facts.name, facts.uid) == (7, 12345, "python3", 1001)
    assert facts.cgroup == "0::/system.slice/ollama.service\n"
    assert facts.start_time_ms == BOOT_S * 1000 + 12345 * 1000 // TICKS_PER_S


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a b", "a b"), (b"(sd-pam)", "(sd-pam)"), (b"a) S 1 (b", "a) S 1 (b"), (b")))", ")))"), (b"", ""),
        (b"x\xff\xfe", "x\ufffd\ufffd"), ("größe".encode(), "größe"), (b"a\nb", "a\ufffdb"), (b"7 (x", "7 (x"),
    ],
)  # fmt: skip
def test_any_name_is_read_whole_and_hides_nothing(name: bytes, shown: str, proc: Proc) -> None:
    """Spaces, brackets, line ends and broken UTF-8 neither change the start time nor the user."""
    proc.add(7, 777, name=name, uid=1234)

    facts = Procfs(proc.root).facts([7])[7]

    assert (facts.name, facts.start_ticks, facts.uid) == (shown, 777, 1234)


@pytest.mark.parametrize("separator", ["\f", "\v", "\r", "\x1c", "\x85", "\u2028"])
def test_a_name_cannot_pretend_to_be_another_user(separator: str, proc: Proc) -> None:
    """The kernel escapes only the line end in /proc/PID/status; other separators do not begin a line."""
    proc.add(7, name=f"x{separator}Uid:\t0".encode(), uid=1234)

    assert Procfs(proc.root).facts([7])[7].uid == 1234


def test_a_process_that_is_gone_is_left_out(proc: Proc) -> None:
    """And comes back when it does."""
    proc.add(7)
    proc.add(8)
    procfs = Procfs(proc.root)
    assert set(procfs.facts([7, 8, 9])) == {7, 8}

    proc.end(7)

    assert set(procfs.facts([7, 8])) == {8}


@pytest.mark.parametrize("missing", ["stat", "status", "cgroup"])
def test_a_process_that_vanishes_while_it_is_read_is_left_out(missing: str, proc: Proc) -> None:
    """At whichever file it happens; the others are not touched by it."""
    proc.add(7)
    proc.add(8)
    (proc.root / "7" / missing).unlink()

    assert set(Procfs(proc.root).facts([7, 8])) == {8}


@pytest.mark.parametrize("content", [b"", b"7", b"7 (x) S 1 2", b"7 (x) S " + b"z " * 30, b"\0" * 100])
def test_a_broken_stat_costs_one_process(content: bytes, proc: Proc) -> None:
    """No exception, whatever stands there."""
    proc.add(7)
    proc.add(8)
    (proc.root / "7" / "stat").write_bytes(content)

    assert set(Procfs(proc.root).facts([7, 8])) == {8}


def test_a_reused_pid_inherits_nothing(proc: Proc) -> None:
    """Between two ticks another process takes the pid, even one of the same name."""
    proc.add(7, 500, uid=1, cgroup="0::/old\n")
    procfs = Procfs(proc.root)
    assert procfs.facts([7])[7].cgroup == "0::/old\n"

    proc.add(7, 900, uid=2, cgroup="0::/new\n")

    facts = procfs.facts([7])[7]
    assert (facts.start_ticks, facts.uid, facts.cgroup) == (900, 2, "0::/new\n")


def test_a_pid_that_changes_hands_in_the_middle_of_a_read_is_left_out(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cgroup of one and the name of another are never joined; the next tick knows the new one."""
    proc.add(7, 500, cgroup="0::/old\n")
    procfs = Procfs(proc.root)
    read = procfs._text

    def changing(name: str) -> str:
        text = read(name)
        if name == "7/cgroup":
            proc.add(7, 900, cgroup="0::/new\n")
        return text

    monkeypatch.setattr(procfs, "_text", changing)
    assert procfs.facts([7]) == {}

    monkeypatch.undo()
    facts = procfs.facts([7])[7]
    assert (facts.start_ticks, facts.cgroup) == (900, "0::/new\n")


def test_a_new_program_in_the_same_process_is_read_anew(proc: Proc) -> None:
    """A shell in a job script becomes python by exec: same pid, same start, another name."""
    proc.add(7, name=b"bash")
    procfs = Procfs(proc.root)
    procfs.facts([7])

    proc.add(7, name=b"python3", cgroup="0::/job\n")

    assert (procfs.facts([7])[7].name, procfs.facts([7])[7].cgroup) == ("python3", "0::/job\n")


def test_a_known_process_costs_one_file(proc: Proc) -> None:
    """Its status and cgroup are read once: they may even be gone."""
    proc.add(7)
    procfs = Procfs(proc.root)
    procfs.look(7, timeout_s=10)
    first = procfs.facts([7])[7]

    (proc.root / "7" / "status").unlink()
    (proc.root / "7" / "cgroup").unlink()

    assert procfs.facts([7])[7] is first


def test_processes_that_are_asked_for_no_more_are_forgotten(proc: Proc) -> None:
    """Else a year of jobs would fill the memory."""
    for pid in range(1, 50):
        proc.add(pid)
    procfs = Procfs(proc.root)
    procfs.facts(range(1, 50))

    procfs.facts([1])

    assert set(procfs._facts) == {1}


@pytest.mark.parametrize("content", [None, "", "cpu 1 2 3\n", "btime\n", "btime soon\n"])
def test_without_a_boot_time_the_clocks_tell_it(content: str | None, proc: Proc) -> None:
    """A start time is never put into 1970."""
    proc.add(7, 0)
    if content is None:
        (proc.root / "stat").unlink()
    else:
        (proc.root / "stat").write_text(content)

    started_s = Procfs(proc.root).facts([7])[7].start_time_ms / 1000

    assert abs(started_s - (time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))) < 2


def test_a_status_without_uid_leaves_it_unknown(proc: Proc) -> None:
    """Absent, not root."""
    proc.add(7)
    (proc.root / "7" / "status").write_text("Name:\tx\n")

    assert Procfs(proc.root).facts([7])[7].uid is None


def test_the_real_proc_agrees_with_what_we_know_of_ourselves() -> None:
    """The fake one is like the kernel's."""
    pid = os.getpid()

    facts = Procfs().facts([pid])[pid]

    assert facts.uid == os.getuid()
    assert facts.name == Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    assert facts.cgroup == Path(f"/proc/{pid}/cgroup").read_text()
    assert 0 <= time.time() - facts.start_time_ms / 1000 < 3600


def test_the_name_of_the_user_comes_later(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick does not wait for it; the facts of a living process get it when it is there."""
    answer = threading.Event()
    monkeypatch.setattr(procfs_module, "_user", lambda uid: (answer.wait(20) and f"user{uid}") or "")
    procfs = Procfs(proc.root)
    proc.add(7, uid=4000)
    assert procfs.facts([7])[7].user == ""

    answer.set()
    procfs.look(7, timeout_s=20)

    assert procfs.facts([7])[7].user == "user4000"


@pytest.fixture
def alive() -> Iterator[Pidfds]:
    """No processes yet."""
    alive = Pidfds()
    yield alive
    alive.keep(set())


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def _fds() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_one_that_ended_is_not_watched_any_more(alive: Pidfds, sleeper: subprocess.Popen[bytes]) -> None:
    """Also before it is waited for: a zombie has ended."""
    alive.watch(sleeper.pid)
    alive.keep({sleeper.pid})
    assert sleeper.pid in alive

    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    alive.keep({sleeper.pid})

    assert sleeper.pid not in alive


def test_nothing_leaks(alive: Pidfds, sleeper: subprocess.Popen[bytes]) -> None:
    """A process that is not wanted any more is not watched; one that does not exist has no descriptor."""
    before = _fds()
    alive.watch(sleeper.pid)
    alive.watch(2**22 + 1)
    assert _fds() == before + 1

    alive.keep(set())

    assert (_fds(), sleeper.pid in alive) == (before, False)


def test_descriptors_are_left_for_others(monkeypatch: pytest.MonkeyPatch, sleeper: subprocess.Popen[bytes]) -> None:
    """With few descriptors no process is watched; each is read in every tick."""
    monkeypatch.setattr(procfs_module, "SPARE_FDS", 10**9)
    alive = Pidfds()

    alive.watch(sleeper.pid)

    assert sleeper.pid not in alive
    alive.keep(set())


def test_facts_cost_no_reading_while_a_process_lives(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are read once, then again after a while; when it has ended and was waited for, it is unknown."""
    procfs = Procfs()
    procfs.look(sleeper.pid, timeout_s=10)
    facts = procfs.facts([sleeper.pid])[sleeper.pid]
    reads = []
    stat = Procfs._stat

    def counted(self: Procfs, pid: int) -> tuple[str, int]:
        reads.append(pid)
        return stat(self, pid)

    monkeypatch.setattr(Procfs, "_stat", counted)

    assert all(procfs.facts([sleeper.pid])[sleeper.pid] is facts for _ in range(REREAD_EVERY))
    assert len(reads) == 1
    sleeper.kill()
    sleeper.wait()
    assert procfs.facts([sleeper.pid]) == {}


def test_zombie_keeps_its_owner(sleeper: subprocess.Popen[bytes]) -> None:
    """The driver may list a killed process until its memory is freed; it is still the same one."""
    procfs = Procfs()
    procfs.look(sleeper.pid, timeout_s=10)
    facts = procfs.facts([sleeper.pid])[sleeper.pid]
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)

    for _ in range(REREAD_EVERY + 1):
        assert procfs.facts([sleeper.pid])[sleeper.pid] is facts


def test_a_mere_process_maps_no_gpu(sleeper: subprocess.Popen[bytes]) -> None:
    """The map of a process without CUDA names no device; one that does not exist has no map."""
    procfs = Procfs()

    assert procfs.mapped_gpus(sleeper.pid) == ()
    assert procfs.mapped_gpus(2**22 + 1) is None
    assert len(procfs.boot_id()) == 36


def test_cgroup_that_the_kernel_does_not_print(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older kernels refuse to print a path of more than 4096 bytes; the other facts of the process remain."""
    proc.add(7)
    read_text = Procfs._text

    def refuse(procfs: Procfs, name: str) -> str:
        if name.endswith("cgroup"):
            raise OSError(errno.ENAMETOOLONG, "File name too long")
        return read_text(procfs, name)

    monkeypatch.setattr(Procfs, "_text", refuse)
    facts = Procfs(proc.root).facts([7])[7]

    assert (facts.uid, facts.cgroup) == (1000, "")


def mps(
    proc: Proc,
    pid: int,
    *,
    uid: int = 0,
    parent: int = 1,
    capabilities: int = 0x1FFFFFFFFFF,
    users: int = 2**32 - 1,
    program: str = "/usr/bin/nvidia-cuda-mps-control",
) -> None:
    """A process with the name of the MPS server."""
    proc.add(pid, name=b"nvidia-cuda-mps", uid=uid)
    status = f"Name:\tnvidia-cuda-mps\nPPid:\t{parent}\nUid:" + f"\t{uid}" * 4 + f"\nCapEff:\t{capabilities:016x}\n"
    (proc.root / str(pid) / "status").write_text(status)
    (proc.root / str(pid) / "uid_map").write_text(f"         0          0 {users:10}\n")
    (proc.root / str(pid) / "exe").symlink_to(program)


def test_mps_server(proc: Proc) -> None:
    """Root's server, a user's server that root's control daemon has started, and servers that only have the name."""
    mps(proc, 2)
    mps(proc, 3, uid=1000, parent=2)
    mps(proc, 4, uid=1000, parent=3)
    mps(proc, 5, capabilities=0xA80425FB)
    mps(proc, 6, users=1)
    proc.add(7, name=b"nvidia-cuda-mps", uid=0)
    proc.add(8, name=b"python3", uid=0)
    mps(proc, 9, program="/usr/bin/sudo")
    mps(proc, 10, uid=1000, parent=9)

    facts = Procfs(proc.root).facts((*range(2, 9), 10))

    assert {pid: facts[pid].mps_server for pid in facts} == {
        2: "root", 3: "root", 4: "user", 5: "user", 6: "user", 7: "user", 8: "", 10: "user",
    }  # fmt: skip


def test_first_thread_that_ended(proc: Proc) -> None:
    """Cgroup, memory map and environment are those of a living thread; on v1 the first thread has the root's cgroup."""
    proc.add(7, cgroup="8:pids:/\n0::/a\n")
    folder = proc.root / "7"
    status = (folder / "status").read_text()
    (folder / "status").write_text(status.replace("Umask:", "State:\tZ (zombie)\nUmask:"))
    (folder / "maps").write_text("")
    thread = folder / "task" / "8"
    thread.mkdir(parents=True)
    (thread / "cgroup").write_text("8:pids:/docker/c\n0::/a\n")
    (thread / "maps").write_text("7f00-7f01 rw-s 00000000 00:05 612 /dev/nvidia3\n")
    (thread / "environ").write_text("NVIDIA_VISIBLE_DEVICES=3\0")
    procfs = Procfs(proc.root)

    assert procfs.facts([7])[7].cgroup == "8:pids:/docker/c\n0::/a\n"
    assert (procfs.mapped_gpus(7), procfs.visible_devices(7)) == ((3,), "3")


# -- the program of a process


def looked_at(pid: int) -> Facts:
    """A process that was just started: the command line is empty until exec has placed it in memory."""
    wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() != b"", 20)
    facts = Procfs().look(pid, timeout_s=20)
    assert facts is not None
    return facts


def program_of(folder: Path, *words: str) -> str:
    """The program of a real Python process with these arguments, in a directory; it waits for its standard input."""
    with subprocess.Popen(
        [sys.executable, *words], cwd=folder, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        facts = looked_at(process.pid)
        process.kill()
    assert re.fullmatch("[0-9a-f]{8}", facts.program)
    return facts.program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two directories with the same two scripts, which are modules, too."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for script in ("train.py", "serve.py"):
            (tmp_path / name / script).write_text("input()")
    return tmp_path / "a"


def test_a_script_is_the_same_program_whatever_its_arguments(folder: Path) -> None:
    """Its own arguments, and options of Python before it: with and without a value."""
    program = program_of(folder, "train.py")

    assert program_of(folder, "train.py", "--lr", "0.1") == program
    assert program_of(folder, "train.py", "serve.py", "-m", "serve") == program
    assert program_of(folder, "-u", "train.py") == program
    assert program_of(folder, "-X", "dev", "train.py") == program
    assert program_of(folder, "-Xdev", "-W", "ignore", "-B", "train.py", "--lr", "0.1") == program


def test_another_program_is_another_one(folder: Path) -> None:
    """Another script, module, code or interpreter, and a relative script in another directory; all differ."""
    other = folder.parent / "b"
    programs = [
        program_of(folder, "train.py"),
        program_of(folder, "serve.py"),
        program_of(other, "train.py"),
        program_of(folder, "-m", "train"),
        program_of(folder, "-m", "serve"),
        program_of(folder, "-c", "input()"),
        program_of(folder, "-c", "input( )"),
        program_of(folder),
        program_of(folder, str(folder / "train.py")),
    ]

    assert len(set(programs)) == len(programs)
    assert program_of(folder, "-u", "-m", "train", "serve") == programs[3]
    assert program_of(folder, "-X", "dev", "-c", "input()", "train.py") == programs[5]
    assert program_of(other, str(folder / "train.py")) == programs[-1]


def test_another_executable_is_another_program(folder: Path) -> None:
    """Whatever name it gives itself."""
    script = str(folder / "train.py")
    copies = [folder / "one", folder / "two"]
    for copy in copies:
        copy.write_bytes(Path("/bin/sleep").read_bytes())
        copy.chmod(0o755)
    programs = set()
    for copy in copies:
        with subprocess.Popen([sys.executable, "60"], executable=copy) as process:
            facts = looked_at(process.pid)
            process.kill()
        programs.add(facts.program)

    assert len(programs) == 2
    assert program_of(folder, script) not in programs


def command(
    proc: Proc, pid: int, words: bytes, *, exe: str | None = "/usr/bin/python3", cwd: str = "/home/a"
) -> Procfs:
    """A process with this command line in a /proc made for the test; without permission to read its executable."""
    proc.add(pid)
    folder = proc.root / str(pid)
    (folder / "cmdline").write_bytes(words)
    for name, target in (("exe", exe), ("cwd", cwd)):
        (folder / name).unlink(missing_ok=True)
        if target is not None:
            (folder / name).symlink_to(target)
    return Procfs(proc.root)


@pytest.mark.parametrize("words", [b"", None], ids=["empty", "missing"])
def test_without_a_command_line_there_is_no_program(words: bytes | None, proc: Proc) -> None:
    """A zombie has none, and a process may have ended; its other facts are known."""
    procfs = command(proc, 7, words or b"")
    if words is None:
        (proc.root / "7" / "cmdline").unlink()

    for _ in range(3):
        facts = procfs.facts([7])[7]
        assert (facts.program, facts.name) == ("", "python3")


def test_a_command_line_that_may_not_be_read(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without permission there is no program, and the other facts are known."""
    procfs = command(proc, 7, b"python3\0train.py\0")
    opened = Procfs._open

    def refuse(procfs: Procfs, name: str) -> FileIO:
        if name.endswith("cmdline"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(procfs, name)

    monkeypatch.setattr(Procfs, "_open", refuse)
    facts = procfs.look(7, timeout_s=20)

    assert facts is not None
    assert (facts.program, facts.name) == ("", "python3")


def test_an_executable_that_may_not_be_read(proc: Proc) -> None:
    """Its name in the command line takes its place."""
    one, same, other = (
        command(proc, pid, words, exe=None).look(pid, timeout_s=20)
        for pid, words in ((7, b"python3\0/a.py\0"), (8, b"python3\0/a.py\0"), (9, b"python4\0/a.py\0"))
    )

    assert one is not None
    assert same is not None
    assert other is not None
    assert one.program == same.program != other.program != ""


@pytest.mark.parametrize("words", [b"\xff\xfe\0\xff.py\0", b"python3", b"\0", b"\0" * 9, b"-\0-m\0", b"x\0" * 20_000])
def test_any_command_line_is_hashed(words: bytes, proc: Proc) -> None:
    """Broken UTF-8, no end, empty words, an option without its value, and more words than are read."""
    facts = command(proc, 7, words).look(7, timeout_s=20)

    assert facts is not None
    assert re.fullmatch("([0-9a-f]{8})?", facts.program)


def test_the_command_line_is_in_no_field(proc: Proc) -> None:
    """A password in an argument, in code, or in the name of a script."""
    words = b"python3\0-c\0password = 'hunter2'\0--token=hunter2\0"
    facts = command(proc, 7, words, exe="/opt/hunter2/python3", cwd="/home/hunter2").look(7, timeout_s=20)

    assert facts is not None
    assert facts.program
    assert "hunter2" not in repr(facts)
    assert "password" not in repr(facts)


def test_a_program_is_hashed_once(proc: Proc) -> None:
    """At the first tick; a script that replaced another one in the same process is another program."""
    procfs = command(proc, 7, b"bash\0/job.sh\0", exe="/bin/bash")
    procfs.look(7, timeout_s=20)
    first = procfs.facts([7])[7]
    (proc.root / "7" / "cmdline").unlink()
    assert first.program
    assert procfs.facts([7])[7] is first

    command(proc, 7, b"python3\0/train.py\0")
    proc.add(7, name=b"python")
    procfs.look(7, timeout_s=20)

    assert procfs.facts([7])[7].program not in ("", first.program)


def test_the_programs_of_many_processes(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in the first tick; the same script has the same hash."""
    monkeypatch.setattr(procfs_module, "CMDLINES_S", 20.0)
    for pid in range(1, 101):
        command(proc, pid, b"python3\0/train%d.py\0" % (pid // 2))

    facts = Procfs(proc.root).facts(range(1, 101))

    assert len({facts[pid].program for pid in facts}) == 51
    assert facts[2].program == facts[3].program != facts[4].program


def test_a_program_that_blocks_comes_later(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick waits for a moment, and not again; the program of another process is known at once."""
    monkeypatch.setattr(procfs_module, "CMDLINES_S", 0.01)
    procfs = command(proc, 7, b"python3\0/a.py\0")
    command(proc, 8, b"python3\0/b.py\0")
    procfs.look(8, timeout_s=20)
    (proc.root / "7" / "cmdline").unlink()
    os.mkfifo(proc.root / "7" / "cmdline")

    first = procfs.facts([7, 8])
    assert (first[7].program, bool(first[8].program)) == ("", True)
    monkeypatch.setattr(procfs_module, "CMDLINES_S", 20.0)
    began = time.monotonic()
    assert procfs.facts([7, 8])[7].program == ""
    assert time.monotonic() - began < 10
    with (proc.root / "7" / "cmdline").open("wb") as pipe:
        pipe.write(b"python3\0/a.py\0")
    procfs.look(7, timeout_s=20)

    assert procfs.facts([7, 8])[7].program not in ("", first[8].program)
    assert procfs.facts([7, 8])[8] is first[8]
