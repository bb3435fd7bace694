"""Which processes have ended, told by the kernel for all of them at once.

A pidfd belongs to one process for good: unlike a pid it is never another's. One look at an epoll of them costs the same
for one process and for a thousand, where reading /proc/PID/stat of each costs 20 ms of CPU a tick for a thousand.
"""

from __future__ import annotations

import os
import resource
import select

SPARE_FDS = 256
"""Left for sockets and files when descriptors are scarce."""


MOST_FDS = 65_536


def raise_limit() -> None:
    """Allow this program as many descriptors as it may allow itself: 1024 is a limit for programs that use select."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FDS if hard == resource.RLIM_INFINITY else min(hard, MOST_FDS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Alive:
    """Watches processes until they end. Where that is not possible it watches nobody, and says so."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fds: dict[int, int] = {}
        self._most = max(0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_FDS)

    def watch(self, pid: int) -> None:
        """Begin to watch; nothing happens when the process is gone or there are too many."""
        if pid in self._fds or len(self._fds) >= self._most:
            return
        try:
            fd = os.pidfd_open(pid)
        except (OSError, OverflowError, AttributeError):  # gone, forbidden, no pid at all, a kernel before 5.3
            return
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError:
            os.close(fd)
        else:
            self._fds[pid] = fd

    def keep(self, pids: set[int]) -> None:
        """Stop watching those that ended, and all others than these."""
        ended = {fd for fd, _ in self._epoll.poll(0, max(1, len(self._fds)))}
        for pid in [pid for pid, fd in self._fds.items() if fd in ended or pid not in pids]:
            os.close(self._fds.pop(pid))  # which takes it out of the epoll too

    def __contains__(self, pid: int) -> bool:
        return pid in self._fds

    def close(self) -> None:
        """Watch nobody."""
        self.keep(set())
        self._epoll.close()
