"""The exporter's own resource usage, read once per tick."""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuledger.model import Health

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
START_TIME_MS = time.time_ns() // 1_000_000


def measure(health: Health) -> Health:
    """`health` with memory, CPU time, file descriptors and threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    resident = virtual = fds = None
    with suppress(OSError, ValueError, IndexError):
        virtual, resident = (int(pages) * PAGE_BYTES for pages in Path("/proc/self/statm").read_text().split()[:2])
        fds = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
    return replace(
        health,
        resident_memory_bytes=resident,
        virtual_memory_bytes=virtual,
        cpu_ms=int((usage.ru_utime + usage.ru_stime) * 1000),
        open_fds=fds,
        max_fds=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        threads=threading.active_count(),
        start_time_ms=START_TIME_MS,
    )
