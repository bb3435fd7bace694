"""Scans of all processes: which may hold GPU memory without being listed by the driver, and which containers still run.

A scan takes tens of milliseconds on a host with a thousand processes, so it runs in the background, and only while its
result is needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuledger.model import Facts
from gpuledger.owners.kernel import cgroup
from gpuledger.owners.kernel.cgroup import CgroupRef
from gpuledger.owners.kernel.procfs import Procfs

log = logging.getLogger(__name__)

SEARCH_APART_S = 15.0
FIRST_WAIT_S = 0.25
VALID_S = 60.0
"""How long clues are used if no new search ends."""
BLOCKED_S = 2.0
"""A search that reads one process for longer is blocked: the map of a process waits for a lock that it can hold."""
MOST_BLOCKED = 8
MOST_PROCESSES = 20_000
MOST_CLUES = 1_000
SCAN_APART_S = 1.0
LARGEST_SHARE = 0.01
"""Largest part of a core that scans for running containers use; the time between two scans follows from it."""


@dataclass(frozen=True, slots=True)
class Clue:
    """A process that may hold GPU memory, with the evidence."""

    facts: Facts
    minors: tuple[int, ...] = ()
    """Minor numbers of the GPUs in its memory map."""
    visible: str = ""
    """Its NVIDIA_VISIBLE_DEVICES; read for one process of each container."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The process that a search reads, and since when."""

    pid: int
    tenant: str
    since: float


class Search:
    """Searches for holders of unlisted memory in a thread, one search at a time and at most every 15 s.

    Of an environment only NVIDIA_VISIBLE_DEVICES is kept. A blocked search is left alone, and the next one skips the
    tenant whose process blocks it.
    """

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
        self._started_at: float | None = None
        self._places: dict[threading.Thread, _Place] = {}
        """Of the running search, and of blocked ones."""
        self._clues: tuple[Clue, ...] = ()
        self._ended_at = 0.0

    @property
    def clues(self) -> tuple[Clue, ...]:
        """Clues of the last search, for a minute. The same object until the next search."""
        if self._clues and self._monotonic() - self._ended_at > VALID_S:
            self._clues = ()
        return self._clues

    def start(self) -> None:
        """Start a search, unless one is running or started less than 15 s ago.

        Waits for a moment, and only for the first search, so that a command of two ticks gets its clues.
        """
        now = self._monotonic()
        if self._thread is not None and self._thread.is_alive():
            place = self._places.get(self._thread)
            if place is None or now - place.since < BLOCKED_S or len(self._places) > MOST_BLOCKED:
                return
            log.debug("search: process %d blocks; its tenant is skipped", place.pid)
        elif self._started_at is not None and now - self._started_at < SEARCH_APART_S:
            return
        is_first, self._started_at = self._started_at is None, now
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()
        if is_first:
            self.wait(FIRST_WAIT_S)

    def wait(self, timeout_s: float) -> None:
        """Wait for the running search, if there is one."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            clues = tuple(self._find())
        except Exception:  # without clues the memory remains unknown; nothing else depends on them
            log.debug("search", exc_info=True)
            clues = ()
        finally:
            self._places.pop(threading.current_thread(), None)
        if self._thread is threading.current_thread():
            self._ended_at = self._monotonic()  # set before the clues, so that a reader does not drop them as expired
            self._clues = clues

    def _find(self) -> Iterator[Clue]:
        containers: set[str] = set()
        parsed: dict[str, CgroupRef] = {}
        count = 0
        thread = threading.current_thread()
        places = tuple(self._places.values())
        blocked = {place.pid for place in places} | {place.tenant for place in places}
        for pid in self._procfs.pids()[:MOST_PROCESSES]:
            if self._thread is not thread:
                return
            path = self._procfs.cgroup(pid)
            ref = parsed[path] = parsed.get(path) or self._parse_cgroup(path)
            tenant = _tenant(ref) or path
            if pid in blocked or tenant in blocked:
                continue
            self._places[thread] = _Place(pid, tenant, self._monotonic())
            minors = self._procfs.mapped_gpus(pid) or ()
            container = ref.container_key
            visible = ""
            if container and container not in containers:
                visible = self._procfs.visible_devices(pid)
                containers.add(container)
            facts = self._procfs.look(pid) if minors or visible else None
            if facts is not None:
                yield Clue(facts, minors, visible)
                count += 1
                if count == MOST_CLUES:
                    return


def _tenant(ref: CgroupRef) -> str:
    """The part of a cgroup that its processes cannot choose: a container, pod, job, unit or the manager of a user."""
    job = "/".join(ref.job) if ref.job else ""
    return ref.container_key or ref.pod_uid or job or (ref.unit or "").partition("/")[0]


class RunningContainers:
    """Which containers that have left their GPUs still have processes; scans in a thread, one scan at a time."""

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
            self._result = (
                container_ids,
                frozenset(level.container_key or "" for text in texts for level in self._parse_cgroup(text).levels()),
            )
        except Exception:  # the last result stays valid, and containers not in it do not age
            log.debug("scan", exc_info=True)
        self._due_s = self._monotonic() + max(SCAN_APART_S, (time.thread_time() - started_s) / LARGEST_SHARE)
