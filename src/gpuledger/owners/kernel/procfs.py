"""Processes in /proc.

Pids are reused, so (pid, start time in ticks since boot) identifies a process within one boot. A living process is not
read again at every tick: `Pidfds` reports for all processes at once which of them have ended, whereas reading
/proc/PID/stat of a thousand processes takes 20 ms of CPU time.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import resource
import select
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from zlib import crc32

from gpuledger.model import MPS_OF_ROOT, MPS_OF_USER, Facts, HostUse
from gpuledger.model.plaintext import plain
from gpuledger.runtime.deadline import Deadline
from gpuledger.runtime.threads import Lookups

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_FIELD = 19
"""Index of the start time in /proc/PID/stat after the command name, which may contain spaces and brackets."""
CPU_FIELDS, MEMORY_FIELD = slice(11, 13), 21
"""User and system time in ticks, and resident pages, in the same list."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
REREAD_EVERY = 30
"""Ticks after which a living process is read again, because its name or cgroup may have changed."""
MOST_ENDED = 256
"""Cgroups without a process that are kept. They are not interned: an interned text is never freed in Python 3.12."""
MAPPED_GPU = re.compile(rb"/dev/nvidia(\d+)\b")
MAPS_CHUNK, MAPS_MAX = 1 << 16, 1 << 26
VISIBLE = b"NVIDIA_VISIBLE_DEVICES="
ENVIRON_MAX, VISIBLE_MAX = 1 << 17, 4096
CMDLINE_MAX = 1 << 14
CMDLINES_S = 0.05
"""The most that a tick waits for the command lines of new processes: a process can block reads of its own."""
WITH_VALUE = (b"-X", b"-W")
"""Options of Python that take a value."""
MPS_NAME = "nvidia-cuda-mps"
"""The kernel truncates nvidia-cuda-mps-server and nvidia-cuda-mps-control to 15 characters."""
MPS_CONTROL = "nvidia-cuda-mps-control"
SYS_ADMIN = 1 << 21
ALL_USERS = ["0", "0", "4294967295"]
"""The only line of /proc/PID/uid_map in the host's user namespace."""
SPARE_FDS = 256
"""File descriptors left for sockets and files."""
MOST_FDS = 65_536


class Procfs:
    """Reads processes and caches them while they live."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._boot_time_s = self._read_boot_time()
        self._facts: dict[int, Facts] = {}
        self._living = Pidfds() if root == Path("/proc") else None  # another /proc may have another PID namespace
        self._ticks = 0
        self._users: Lookups[int, str] = Lookups("users")
        self._user_changes = 0
        self._programs: Lookups[tuple[int, int, str], str] = Lookups("programs")
        self._cgroups: dict[str, str] = {}

    def facts(self, pids: Iterable[int]) -> dict[int, Facts]:
        """Facts by pid. A process that has ended is left out; a reused pid has the facts of the new process."""
        wanted = set(pids)
        living: Pidfds | frozenset[int] = frozenset()
        if self._living is not None:
            living = self._living
            living.keep(wanted)
        self._ticks += 1
        user_changes, self._user_changes = self._user_changes, self._users.changes
        current = {}
        for pid in wanted:
            facts = self._facts.get(pid)
            if facts is not None and pid in living and (self._ticks + pid) % REREAD_EVERY:
                current[pid] = facts if user_changes == self._user_changes else self._named(facts)
                continue
            try:
                if self._living is not None:
                    self._living.watch(pid)  # before the read: a process replaced in between will show as ended
                name, start_ticks = self._stat(pid)
                if facts is None or facts.start_ticks != start_ticks or self._has_changed(facts, name):
                    facts = self._read(pid, name, start_ticks)
            except (OSError, ValueError, IndexError):
                continue
            if facts is not None:
                current[pid] = self._named(facts)
        self._facts = current = self._with_programs(current)
        if len(self._cgroups) > MOST_ENDED + len(current):
            self._cgroups = {facts.cgroup: facts.cgroup for facts in current.values()}
        return current

    def look(self, pid: int, *, timeout_s: float = 0.0) -> Facts | None:
        """One process without the cache; None if it has ended. May be called from any thread.

        Waits for the name of its user and for its command line, up to `timeout_s`.
        """
        deadline = Deadline(timeout_s)
        try:
            facts = self._read(pid, *self._stat(pid))
        except (OSError, ValueError, IndexError):
            return None
        if facts is None:
            return None
        return self._named(self._with_program(facts, deadline.remaining_s), deadline.remaining_s)

    def host_use(self, pid: int) -> HostUse | None:
        """CPU time and host memory of a process; None if it has ended or is hidden. Never blocks."""
        try:
            with self._open(f"{pid}/stat") as file:
                fields = file.read().rpartition(b")")[2].split()
            cpu_ns = sum(map(int, fields[CPU_FIELDS])) * 10**9 // TICKS_PER_S
            return HostUse(int(fields[START_FIELD]), cpu_ns, int(fields[MEMORY_FIELD]) * PAGE_BYTES)
        except (OSError, ValueError, IndexError):
            return None

    def pids(self) -> list[int]:
        """All processes."""
        return sorted(int(name) for name in os.listdir(self._root) if name.isdecimal())  # noqa: PTH208 - names

    def cgroup(self, pid: int) -> str:
        """The text of the process's cgroup file; empty if it has ended."""
        try:
            return self._cgroup(pid)
        except OSError:
            return ""

    def boot_id(self) -> str:
        """The id of this boot; with it, (pid, start time) is unique across boots."""
        try:
            return self._text("sys/kernel/random/boot_id").strip()
        except OSError:
            return ""

    def mapped_gpus(self, pid: int) -> tuple[int, ...] | None:
        """Minor numbers of the GPUs in the memory map of a CUDA process; a monitoring process maps none.

        None if the map may not be read. Takes milliseconds for processes with thousands of mappings.
        """
        minors: set[int] = set()
        partial = b""
        try:
            with self._open(f"{self._task(pid)}/maps") as file:
                for _ in range(MAPS_MAX // MAPS_CHUNK):
                    chunk = file.read(MAPS_CHUNK)
                    lines, _, partial = (partial + chunk).rpartition(b"\n") if chunk else (partial, b"", b"")
                    minors.update(int(minor) for minor in MAPPED_GPU.findall(lines))
                    if not chunk:
                        break
        except OSError:
            return None
        return tuple(sorted(minors))

    def visible_devices(self, pid: int) -> str:
        """NVIDIA_VISIBLE_DEVICES in the environment; empty if it is not set or may not be read."""
        try:
            with self._open(f"{self._task(pid)}/environ") as file:
                entries = file.read(ENVIRON_MAX).split(b"\0")
        except OSError:
            return ""
        variable = next((entry for entry in entries if entry.startswith(VISIBLE)), b"")
        text = variable.removeprefix(VISIBLE)[:VISIBLE_MAX].decode("utf-8", "replace")
        return text if text.isprintable() else ""

    def _has_changed(self, facts: Facts, name: str) -> bool:
        """Whether the process has another name or cgroup. A zombie keeps the cgroup it had."""
        if facts.name != name:
            return True
        is_due = (self._ticks + facts.pid) % REREAD_EVERY == 0
        return is_due and self._cgroup(facts.pid) != facts.cgroup and not self._is_zombie(facts.pid)

    def _is_zombie(self, pid: int) -> bool:
        return "\nState:\tZ" in self._text(f"{pid}/status")

    def _read(self, pid: int, name: str, start_ticks: int) -> Facts | None:
        uid, inner_pid = self._status(pid)
        cgroup = self._cgroup(pid)
        cgroup = self._cgroups.setdefault(cgroup, cgroup)  # the processes of a container share it
        if self._stat(pid)[1] != start_ticks:  # the pid was reused between two reads
            return None
        return Facts(
            pid=pid,
            start_ticks=start_ticks,
            start_time_ms=self._boot_time_s * 1000 + start_ticks * 1000 // TICKS_PER_S,
            name=name,
            uid=uid,
            cgroup=cgroup,
            inner_pid=inner_pid,
            mps_server=self._mps_server(pid) if name.startswith(MPS_NAME) else "",
        )

    def _task(self, pid: int) -> str:
        """The directory of a living thread.

        The files of a process are those of its first thread. If that has ended, its memory map is empty, and its cgroup
        on v1 is the root.
        """
        if self._is_zombie(pid):
            tids = (name for name in os.listdir(f"{self._root}/{pid}/task") if name != str(pid))  # noqa: PTH208 - names
            return next((f"{pid}/task/{tid}" for tid in tids), str(pid))
        return str(pid)

    def _cgroup(self, pid: int) -> str:
        """The text of the process's cgroup file; empty if the path is so deep that the kernel does not print it."""
        try:
            text = self._text(f"{pid}/cgroup")
            task = self._task(pid) if ":/\n" in text else str(pid)
            return text if task == str(pid) else self._text(f"{task}/cgroup")
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return ""
            raise

    def _with_programs(self, current: dict[int, Facts]) -> dict[int, Facts]:
        """The processes with their programs, as far as these are known; waits a moment for those of new processes."""
        unknown = [facts for facts in current.values() if not facts.program]
        for facts in unknown:  # all reads are started before one is waited for
            self._with_program(facts)
        deadline = Deadline(CMDLINES_S)
        for facts in reversed(unknown):
            before = self._facts.get(facts.pid)
            is_new = before is None or _program_key(before) != _program_key(facts)
            current[facts.pid] = self._with_program(facts, deadline.remaining_s if is_new else 0.0)
        return current

    def _with_program(self, facts: Facts, timeout_s: float = 0.0) -> Facts:
        """The process with its program, once that is known."""
        program = self._programs.get(_program_key(facts), lambda: self._program(facts), timeout_s=timeout_s)
        return replace(facts, program=program) if program else facts

    def _program(self, facts: Facts) -> str:
        """Hash of the executable and of its script or module; empty if the command line is not readable.

        The read waits for a lock that the process can hold.
        """
        pid = facts.pid
        try:
            with self._open(f"{pid}/cmdline") as file:
                words = file.read(CMDLINE_MAX).split(b"\0")[:-1]
        except OSError:
            return ""
        parts = [self._link(pid, "exe") or (words[0] if words else b""), *script(words[1:])]
        if len(parts) == 2 and not parts[1].startswith(b"/"):
            parts.append(self._link(pid, "cwd"))
        if not words or self._stat(pid)[1] != facts.start_ticks:  # the pid was reused between two reads
            return ""
        return f"{crc32(bytes(1).join(parts)):08x}"

    def _link(self, pid: int, name: str) -> bytes:
        """The target of a link in /proc/PID; empty without permission."""
        try:
            return os.readlink(os.fsencode(f"{self._root}/{pid}/{name}"))  # noqa: PTH115 - bytes of a tenant's name
        except OSError:
            return b""

    def _mps_server(self, pid: int) -> str:
        """Who started a server. It may run as its clients' user if a control daemon of root has started it."""
        try:
            parent = int(self._fields(pid)["PPid"][0])
            if self._is_root(pid) or (self._is_mps_control(parent) and self._is_root(parent)):
                return MPS_OF_ROOT
        except (OSError, ValueError, LookupError):  # ended meanwhile, or the kernel does not report it
            pass
        return MPS_OF_USER

    def _is_mps_control(self, pid: int) -> bool:
        """Whether a process runs the control daemon. Its name proves nothing: that of a link to any setuid program."""
        program = os.readlink(f"{self._root}/{pid}/exe")  # noqa: PTH115 - no Path of a tenant's name
        return os.path.basename(program) == MPS_CONTROL  # noqa: PTH119 - as above

    def _is_root(self, pid: int) -> bool:
        """Whether a process has root's privileges on the host.

        Root in a container lacks the capability, and root in a user namespace lacks the other users.
        """
        fields = self._fields(pid)
        is_privileged = set(fields["Uid"]) == {"0"} and int(fields["CapEff"][0], 16) & SYS_ADMIN
        return bool(is_privileged) and self._text(f"{pid}/uid_map").split() == ALL_USERS

    def _fields(self, pid: int) -> dict[str, list[str]]:
        """The values of /proc/PID/status by name. Only newlines separate lines: a name may contain other breaks."""
        lines = (line.partition(":") for line in self._text(f"{pid}/status").split("\n"))
        return {name: value.split() for name, _, value in lines}

    def _named(self, facts: Facts, timeout_s: float = 0.0) -> Facts:
        """The process with the name of its user, once that is known."""
        uid = facts.uid
        if facts.user or uid is None:
            return facts
        user = self._users.get(uid, lambda: _user(uid), timeout_s=timeout_s)
        return replace(facts, user=user) if user else facts

    def _stat(self, pid: int) -> tuple[str, int]:
        with self._open(f"{pid}/stat") as file:
            return parse_stat(file.read())

    def _status(self, pid: int) -> tuple[int | None, int | None]:
        """The uid, and the pid in the innermost PID namespace if it differs."""
        fields = self._fields(pid)
        uid = int(fields["Uid"][0]) if "Uid" in fields else None
        inner_pid = int(fields["NSpid"][-1]) if "NSpid" in fields else None
        return uid, inner_pid if inner_pid != pid else None

    def _text(self, name: str) -> str:
        with self._open(name) as file:
            return file.read().decode("utf-8", "replace")

    def _open(self, name: str) -> FileIO:
        return FileIO(f"{self._root}/{name}")  # pathlib would intern the pid, and takes twice as long

    def _read_boot_time(self) -> int:
        try:
            for line in self._text("stat").split("\n"):
                if line.startswith("btime "):
                    return int(line.split()[1])
        except (OSError, ValueError, IndexError):
            pass
        return int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))  # some sandboxes have no btime


def parse_stat(data: bytes) -> tuple[str, int]:
    """Command name and start time of a /proc/PID/stat; the name may contain brackets."""
    before, _, after = data.rpartition(b")")
    return plain(before.partition(b"(")[2].decode("utf-8", "replace")), int(after.split()[START_FIELD])


def _program_key(facts: Facts) -> tuple[int, int, str]:
    """What changes if a process runs another program."""
    return facts.pid, facts.start_ticks, facts.name


def script(arguments: Sequence[bytes]) -> Sequence[bytes]:
    """What an interpreter runs: `-m` and a module, `-c` and the code, or the first argument that is no option."""
    for i, argument in enumerate(arguments):
        if argument in (b"-m", b"-c"):
            return arguments[i : i + 2]
        if not argument.startswith(b"-") and (not i or arguments[i - 1] not in WITH_VALUE):
            return [argument]
    return []


def _user(uid: int) -> str:
    try:
        return plain(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return ""


class Pidfds:
    """The set of living processes, watched by pidfd. A process that cannot be watched is not in the set."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fds: dict[int, int] = {}
        self._most = max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FDS)

    def watch(self, pid: int) -> None:
        """Add a process. Does nothing if it has ended or there are too many."""
        if pid in self._fds or len(self._fds) >= self._most:
            return
        try:
            fd = os.pidfd_open(pid)
        except (OSError, OverflowError, AttributeError):  # ended, forbidden, not a pid, a kernel before 5.3
            return
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError:
            os.close(fd)
        else:
            self._fds[pid] = fd

    def keep(self, pids: set[int]) -> None:
        """Remove the processes that have ended, and those not in `pids`."""
        ended = {fd for fd, _ in self._epoll.poll(0, max(1, len(self._fds)))}
        for pid in [pid for pid, fd in self._fds.items() if fd in ended or pid not in pids]:
            os.close(self._fds.pop(pid))  # which also removes it from the epoll

    def __contains__(self, pid: int) -> bool:
        return pid in self._fds


def raise_fd_limit() -> None:
    """Raise this process's limit of file descriptors. The default of 1024 is for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FDS if hard == resource.RLIM_INFINITY else min(hard, MOST_FDS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
