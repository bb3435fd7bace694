"""Looking through all processes for those that may hold GPU memory, for the case that the driver does not list them.

Costs tens of milliseconds on a host with a thousand processes, so it is done in the background, only while there is
memory nobody is listed with, and not more often than every 15 s. Of an environment only NVIDIA_VISIBLE_DEVICES is kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuledger.model import Facts
from gpuledger.owners import cgroup
from gpuledger.owners.procfs import Procfs

log = logging.getLogger(__name__)

APART_S = 15.0
KEPT_S = 60.0
"""How long what was found counts. A search that hangs (in the map of a process that the kernel holds) finds no more."""
MOST_PROCESSES = 20_000
MOST_CLUES = 1_000


@dataclass(frozen=True, slots=True)
class Clue:
    """A process that may hold GPU memory."""

    facts: Facts
    minors: tuple[int, ...] = ()
    """Of the GPUs in its memory map."""
    visible: str = ""
    """Its NVIDIA_VISIBLE_DEVICES; read of one process in each container."""


class Search:
    """Searches in a thread of its own, one search at a time."""

    def __init__(self, procfs: Procfs, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._procfs = procfs
        self._monotonic = monotonic
        self._thread: threading.Thread | None = None
        self._started_at: float | None = None
        self._found: tuple[Clue, ...] = ()
        self._found_at = 0.0

    @property
    def found(self) -> tuple[Clue, ...]:
        """What the last search found; nothing when that is too long ago. The same object until the next search."""
        if self._found and self._monotonic() - self._found_at > KEPT_S:
            self._found = ()
        return self._found

    def look(self) -> None:
        """Begin to search, unless that was done lately or still is. Never waits."""
        now = self._monotonic()
        recent = self._started_at is not None and now - self._started_at < APART_S
        if recent or (self._thread is not None and self._thread.is_alive()):
            return
        self._started_at = now
        self._thread = threading.Thread(target=self._run, name="search", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """For the search that runs, if one does."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            found = tuple(self._clues())
        except Exception:  # without clues memory stays unknown; nothing else depends on them
            log.debug("search", exc_info=True)
            found = ()
        self._found_at = self._monotonic()  # first: who looks in between must not take it for old
        self._found = found

    def _clues(self) -> Iterator[Clue]:
        asked: set[str] = set()
        clues = 0
        for pid in self._procfs.pids()[:MOST_PROCESSES]:
            minors = self._procfs.mapped_gpus(pid) or ()
            container = cgroup.parse(self._procfs.cgroup(pid)).container_id
            visible = ""
            if container and container not in asked:
                visible = self._procfs.visible_devices(pid)
                asked.add(container)
            facts = self._procfs.look(pid) if minors or visible else None
            if facts is not None:
                yield Clue(facts, minors, visible)
                clues += 1
                if clues == MOST_CLUES:
                    return
