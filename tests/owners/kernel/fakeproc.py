"""A directory that looks like /proc."""

from __future__ import annotations

import shutil
from pathlib import Path

BOOT_S = 1_700_000_000


class Proc:
    """A folder that looks like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "stat").write_text(f"cpu 1 2 3\nbtime {BOOT_S}\nprocesses 5\n")

    def add(
        self, pid: int, start_ticks: int = 500, *, name: bytes = b"python3", uid: int = 1000, cgroup: str = "0::/a\n"
    ) -> None:
        """Let a process live, in place of one with its pid."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        before = b" ".join(b"%d" % n for n in range(1, 19))  # fields 4 to 21
        (folder / "stat").write_bytes(b"%d (%s) S %s %d 0 0\n" % (pid, name, before, start_ticks))
        (folder / "status").write_bytes(b"Name:\t%s\nUmask:\t0022\nUid:\t%d\t0\t0\t0\nGid:\t0\n" % (name, uid))
        (folder / "cgroup").write_text(cgroup)

    def end(self, pid: int) -> None:
        """Let it go."""
        shutil.rmtree(self.root / str(pid))
