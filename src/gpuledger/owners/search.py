"""The search for processes that may hold GPU memory without being listed by the driver.

It takes tens of milliseconds on a host with a thousand processes, so it runs in the background, only while used memory
exceeds the memory of listed processes, and at most every 15 s. Of an environment only NVIDIA_VISIBLE_DEVICES is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuledger.model import Facts
from gpuledger.owners import cgroup
from gpuledger.owners.cgroup import CgroupRef
from gpuledger.owners.procfs import Procfs

log = logging.getLogger(__name__)

APART_S = 15.0
FIRST_WAIT_S = 0.25
VALID_S = 60.0
"""How long clues are used if no new search ends; a search may hang in the memory map of a blocked process."""
MOST_PROCESSES = 20_000
MOST_CLUES = 1_000


@dataclass(frozen=True, slots=True)
class Clue:
    """A process that may hold GPU memory, with the evidence."""

    facts: Facts
    minors: tuple[int, ...] = ()
    """Minor numbers of the GPUs in its memory map."""
    visible: str = ""
    """Its NVIDIA_VISIBLE_DEVICES; read for one process of each container."""


class Search:
    """Searches in a thread, one search at a time."""

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
        is_recent = self._started_at is not None and now - self._started_at < APART_S
        if is_recent or (self._thread is not None and self._thread.is_alive()):
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
        self._ended_at = self._monotonic()  # set before the clues, so that a reader does not drop them as expired
        self._clues = clues

    def _find(self) -> Iterator[Clue]:
        containers: set[tuple[str | None, int | None]] = set()
        parsed: dict[str, CgroupRef] = {}
        count = 0
        for pid in self._procfs.pids()[:MOST_PROCESSES]:
            minors = self._procfs.mapped_gpus(pid) or ()
            text = self._procfs.cgroup(pid)
            ref = parsed[text] = parsed.get(text) or self._parse_cgroup(text)
            container = (ref.container_id, ref.claimed_by)
            visible = ""
            if ref.container_id and container not in containers:
                visible = self._procfs.visible_devices(pid)
                containers.add(container)
            facts = self._procfs.look(pid) if minors or visible else None
            if facts is not None:
                yield Clue(facts, minors, visible)
                count += 1
                if count == MOST_CLUES:
                    return
