"""Which containers that have left their GPUs still have processes.

The cgroups of all processes are read in the background, only while such a container is exposed: it takes tens of
milliseconds on a host with a thousand processes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gpuledger.owners.kernel import cgroup
from gpuledger.owners.kernel.cgroup import CgroupRef
from gpuledger.owners.kernel.procfs import Procfs

log = logging.getLogger(__name__)

APART_S = 1.0
LARGEST_SHARE = 0.01
"""Of one core; the time between two scans follows from it."""


class RunningContainers:
    """Scans in a thread, one scan at a time."""

    def __init__(
        self,
        procfs: Procfs,
        parse_cgroup: Callable[[str], CgroupRef] = cgroup.parse,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._procfs = procfs
        self._parse_cgroup = parse_cgroup
        self._monotonic = monotonic
        self._thread: threading.Thread | None = None
        self._due_s = monotonic()
        self._result: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
        """The containers that the last scan looked for, and those that have processes."""

    def among(self, container_ids: frozenset[str]) -> frozenset[str]:
        """The containers that have processes, or that no scan has looked for yet; starts a scan if one is due."""
        checked, running = self._result  # before a scan starts, which may end at once
        is_scanning = self._thread is not None and self._thread.is_alive()
        if container_ids and not is_scanning and self._monotonic() >= self._due_s:
            self._thread = threading.Thread(target=self._scan, args=(container_ids,), name="running", daemon=True)
            self._thread.start()
        return (container_ids - checked) | (container_ids & running)

    def wait(self, timeout_s: float) -> None:
        """Wait for the running scan, if there is one."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _scan(self, container_ids: frozenset[str]) -> None:
        started_s = time.thread_time()
        try:
            texts = {self._procfs.cgroup(pid) for pid in self._procfs.pids()}
            self._result = container_ids, frozenset(self._parse_cgroup(text).container_key or "" for text in texts)
        except Exception:  # the last result stays valid, and containers not in it do not age
            log.debug("scan", exc_info=True)
        self._due_s = self._monotonic() + max(APART_S, (time.thread_time() - started_s) / LARGEST_SHARE)
