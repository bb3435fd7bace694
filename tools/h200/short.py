"""Twenty CUDA processes of about one second each: `python short.py CGROUP`. Imports PyTorch once."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch

PROCESSES, WORK_S, APART_S = 20, 0.6, 1.0


def work(cgroup: Path) -> None:
    """Multiply matrices for a moment."""
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + WORK_S
    while time.monotonic() < end:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()


def main() -> int:
    """Run the processes one after another, some of them overlapping."""
    cgroup = Path(sys.argv[1])
    cgroup.mkdir(parents=True, exist_ok=True)
    pids = []
    for _ in range(PROCESSES):
        pid = os.fork()  # before CUDA is initialized, because it does not survive a fork
        if not pid:
            work(cgroup)
            os._exit(0)
        pids.append(pid)
        time.sleep(APART_S)
    return int(any(os.waitpid(pid, 0)[1] for pid in pids))


if __name__ == "__main__":
    sys.exit(main())
