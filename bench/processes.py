"""Start programs, measure them from outside, and always stop them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 20.0


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program in its own session, so that Ctrl-C reaches only the benchmark."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


@contextlib.contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    """Pids of sleeping processes for the fake driver."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            running += [subprocess.Popen(["sleep", "900"], start_new_session=True)]
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


def _stop(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to a program and its descendants, then SIGKILL to the remaining ones."""
    children = descendants(process.pid)
    process.terminate()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 15)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 9)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def descendants(pid: int) -> list[int]:
    """All descendants of a process."""
    descendants: list[int] = []
    pending = [pid]
    while pending:
        for task in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(word) for word in task.read_text().split()]
                descendants += children
                pending += children
    return descendants


def cpu_s(pid: int) -> float:
    """User and system time of a program with all threads and children, including exited ones.

    Uses the CPU clock of the process with nanosecond resolution. /proc/PID/stat has steps of 10 ms, of which an
    exporter at 1 % of a core uses only 15 in 15 s.
    """
    total = 0.0
    for each in [pid, *descendants(pid)]:
        words = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        reaped = (int(words[13]) + int(words[14])) / TICKS_PER_S
        total += time.clock_gettime(~each << 3 | 2) + reaped  # the result of clock_getcpuclockid(3) for a pid
    return total


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """VmRSS (current) or VmHWM (peak) with all children, in MB of 1,000,000 bytes."""
    return sum(_status_kb(each, field) for each in [pid, *descendants(pid)]) * 1024 / 1e6


def _status_kb(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/{pid}/status has no {field}")
