"""What the kernel says about a process, from /proc.

A pid alone identifies nobody: it is reused. (pid, start time in ticks since boot) does, for one boot.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from gpuledger.model import Facts
from gpuledger.owners.alive import Alive

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_FIELD = 19
"""Of /proc/PID/stat, counted after the command name, which may itself hold spaces and brackets."""
LOOK_AGAIN_EVERY = 30
"""Ticks after which a process that lives is read again, each at another tick: it may have been moved or renamed."""
MAPPED_GPU = re.compile(rb"/dev/nvidia(\d+)\b")
MAPS_CHUNK, MAPS_MAX = 1 << 16, 1 << 26
VISIBLE = b"NVIDIA_VISIBLE_DEVICES="
ENVIRON_MAX, VISIBLE_MAX = 1 << 17, 4096


class Procfs:
    """Reads processes and remembers them while they live."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._boot_time_s = self._read_boot_time()
        self._known: dict[int, Facts] = {}
        self._alive = Alive() if root == Path("/proc") else None  # pids of another /proc may be another namespace's
        self._rounds = 0

    def facts(self, pids: Iterable[int]) -> dict[int, Facts]:
        """Facts by pid; a process that is gone is left out, one with a reused pid is read anew."""
        wanted = set(pids)
        alive: Alive | frozenset[int] = frozenset()
        if self._alive is not None:
            alive = self._alive
            alive.keep(wanted)
        self._rounds += 1
        current = {}
        for pid in wanted:
            known = self._known.get(pid)
            if known is not None and pid in alive and (self._rounds + pid) % LOOK_AGAIN_EVERY:
                current[pid] = known
                continue
            try:
                if self._alive is not None:
                    self._alive.watch(pid)  # before it is read: were it replaced in between, it would have ended
                name, start_ticks = self._stat(pid)
                if known is None or known.start_ticks != start_ticks or self._has_changed(known, name):
                    known = self._read(pid, name, start_ticks)
            except (OSError, ValueError, IndexError):
                continue
            if known is not None:
                current[pid] = known
        self._known = current
        return current

    def _has_changed(self, known: Facts, name: str) -> bool:
        """Whether it calls itself something else, or was moved. One that has ended keeps the cgroup it had."""
        if known.name != name:
            return True
        due = (self._rounds + known.pid) % LOOK_AGAIN_EVERY == 0
        return due and self._text(f"{known.pid}/cgroup") != known.cgroup and not self._is_zombie(known.pid)

    def _is_zombie(self, pid: int) -> bool:
        return "\nState:\tZ" in self._text(f"{pid}/status")

    def _read(self, pid: int, name: str, start_ticks: int) -> Facts | None:
        uid, inner_pid = self._status(pid)
        cgroup = sys.intern(self._text(f"{pid}/cgroup"))  # the processes of a container share it
        if self._stat(pid)[1] != start_ticks:  # the pid changed hands between two reads
            return None
        return Facts(
            pid=pid,
            start_ticks=start_ticks,
            start_time_ms=self._boot_time_s * 1000 + start_ticks * 1000 // TICKS_PER_S,
            name=name,
            uid=uid,
            user=_user(uid),
            cgroup=cgroup,
            inner_pid=inner_pid,
        )

    def _stat(self, pid: int) -> tuple[str, int]:
        with open(f"{self._root}/{pid}/stat", "rb") as file:  # noqa: PTH123 - once a process and tick: half the cost
            data = file.read()
        return parse_stat(data)

    def _status(self, pid: int) -> tuple[int | None, int | None]:
        """Its uid, and its pid in the innermost of its namespaces."""
        uid = inner = None
        # By "\n" alone: a process may call itself "x\fUid:\t0", and splitlines would believe it.
        for line in self._text(f"{pid}/status").split("\n"):
            if line.startswith("Uid:"):
                uid = int(line.split()[1])
            elif line.startswith("NSpid:"):
                inner = int(line.split()[-1])
        return uid, inner if inner != pid else None

    def boot_id(self) -> str:
        """Names this boot: with it (pid, start time) identifies a process for all time."""
        try:
            return self._text("sys/kernel/random/boot_id").strip()
        except OSError:
            return ""

    def pids(self) -> list[int]:
        """Everybody."""
        return sorted(int(name) for name in os.listdir(self._root) if name.isdecimal())  # noqa: PTH208 - names

    def cgroup(self, pid: int) -> str:
        """The text of its cgroup file; empty when it is gone."""
        try:
            return self._text(f"{pid}/cgroup")
        except OSError:
            return ""

    def look(self, pid: int) -> Facts | None:
        """One process, whether it was asked for before or not; None when it is gone. From any thread."""
        try:
            return self._read(pid, *self._stat(pid))
        except (OSError, ValueError, IndexError):
            return None

    def mapped_gpus(self, pid: int) -> tuple[int, ...] | None:
        """Minor numbers of the GPUs in its memory map, which a CUDA process has and a mere reader has not.

        None where the map may not be read. Costs milliseconds for processes with thousands of mappings.
        """
        found: set[int] = set()
        rest = b""
        try:
            with (self._root / str(pid) / "maps").open("rb", buffering=0) as file:
                for _ in range(MAPS_MAX // MAPS_CHUNK):
                    chunk = file.read(MAPS_CHUNK)
                    whole, _, rest = (rest + chunk).rpartition(b"\n") if chunk else (rest, b"", b"")
                    found.update(int(minor) for minor in MAPPED_GPU.findall(whole))
                    if not chunk:
                        break
        except OSError:
            return None
        return tuple(sorted(found))

    def visible_devices(self, pid: int) -> str:
        """NVIDIA_VISIBLE_DEVICES in its environment; empty where there is none or it may not be read."""
        try:
            with (self._root / str(pid) / "environ").open("rb") as file:
                entries = file.read(ENVIRON_MAX).split(b"\0")
        except OSError:
            return ""
        found = next((entry for entry in entries if entry.startswith(VISIBLE)), b"")
        text = found.removeprefix(VISIBLE)[:VISIBLE_MAX].decode("utf-8", "replace")
        return text if text.isprintable() else ""

    def _text(self, name: str) -> str:
        return (self._root / name).read_bytes().decode("utf-8", "replace")

    def _read_boot_time(self) -> int:
        try:
            for line in self._text("stat").split("\n"):
                if line.startswith("btime "):
                    return int(line.split()[1])
        except (OSError, ValueError, IndexError):
            pass
        return int(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))  # some sandboxes have no btime


def parse_stat(data: bytes) -> tuple[str, int]:
    """The command name and start time of a /proc/PID/stat; the name may itself hold brackets."""
    before, _, after = data.rpartition(b")")
    return before.partition(b"(")[2].decode("utf-8", "replace"), int(after.split()[START_FIELD])


@lru_cache(maxsize=1024)
def _user(uid: int | None) -> str:
    """The name this host's user database has for a uid; none where it has none."""
    try:
        return "" if uid is None else pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
