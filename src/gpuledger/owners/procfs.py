"""What the kernel says about a process, from /proc.

A pid alone identifies nobody: it is reused. (pid, start time in ticks since boot) does, for one boot.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from gpuledger.model import Facts

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_FIELD = 19
"""Of /proc/PID/stat, counted after the command name, which may itself hold spaces and brackets."""


class Procfs:
    """Reads processes and remembers them while they live."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = root
        self._boot_time_s = self._read_boot_time()
        self._known: dict[int, Facts] = {}

    def facts(self, pids: Iterable[int]) -> dict[int, Facts]:
        """Facts by pid; a process that is gone is left out, one with a reused pid is read anew."""
        current = {}
        for pid in pids:
            known = self._known.get(pid)
            try:
                name, start_ticks = self._stat(pid)
                if known is None or known.start_ticks != start_ticks or known.name != name:
                    known = self._read(pid, name, start_ticks)
            except (OSError, ValueError, IndexError):
                continue
            if known is not None:
                current[pid] = known
        self._known = current
        return current

    def _read(self, pid: int, name: str, start_ticks: int) -> Facts | None:
        uid = self._uid(pid)
        cgroup = self._text(f"{pid}/cgroup")
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
        )

    def _stat(self, pid: int) -> tuple[str, int]:
        with open(f"{self._root}/{pid}/stat", "rb") as file:  # noqa: PTH123 - once a process and tick: half the cost
            data = file.read()
        before, _, after = data.rpartition(b")")
        return before.partition(b"(")[2].decode("utf-8", "replace"), int(after.split()[START_FIELD])

    def _uid(self, pid: int) -> int | None:
        # By "\n" alone: a process may call itself "x\fUid:\t0", and splitlines would believe it.
        for line in self._text(f"{pid}/status").split("\n"):
            if line.startswith("Uid:"):
                return int(line.split()[1])
        return None

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


@lru_cache(maxsize=1024)
def _user(uid: int | None) -> str:
    """The name this host's user database has for a uid; none where it has none."""
    try:
        return "" if uid is None else pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
