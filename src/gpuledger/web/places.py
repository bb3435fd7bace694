"""Which clients have a thread, and which ones lose it when there is no other.

A place is kept for each of the first clients that were served, such as Prometheus and the kubelet, up to a quarter of
the places. When no thread is free, a client evicts a client of the group with the most threads: one that does not
complete its request or does not read its response, unless its place is kept. If none can be evicted, it waits. Clients
of the group with the fewest threads come first.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable
from time import monotonic

from gpuledger.web.connection import SLOW_S, Connection

_ENDING = 4  # threads of evicted clients
_REGULAR_S = 300.0  # a client that is served less often loses the place that is kept for it


class Places:
    """The connections that have a thread. All methods but the last two take the lock."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.changed = threading.Condition()  # its lock can be taken twice
        """Guards the connections and their states."""
        self.taken: set[Connection] = set()
        self._ending: set[Connection] = set()
        self.regulars: dict[str, float] = {}
        """Addresses for which a place is kept, and when they were last served."""
        self.evicted = 0

    def in_order(self, ready: Iterable[Connection]) -> list[Connection]:
        """Clients that wait for a thread, the first one first."""
        with self.changed:
            counts, kept = Counter(connection.group for connection in self.taken), self._kept()
        return sorted(ready, key=lambda c: (c.address not in kept, counts[c.group]))

    def admit(self, connection: Connection) -> bool:
        """Whether the client may have a thread, after evicting another client if needed."""
        with self.changed:
            free = self._most - len(self.taken) - len(self._kept() - {connection.address})
            if free <= 0 and not self.evict(connection.group, monotonic()):
                return False
            connection.waiting_since = monotonic()
            self.taken.add(connection)
            return True

    def leave(self, connection: Connection) -> bool:
        """The thread of the client ends; False if the client was evicted."""
        with self.changed:
            self.taken.discard(connection)
            self._ending.discard(connection)
            if connection.succeeded:
                self._keep_place(connection.address, monotonic())
            self.changed.notify_all()
            return not connection.evicted

    def evict(self, group: str, now: float) -> bool:
        """Evict a client for another one of this group, if possible."""
        kept = {connection.address: connection for connection in self.taken if connection.address in self.regulars}
        victim = choose_victim(self.taken, group, now, kept.values()) if len(self._ending) < _ENDING else None
        if victim is None:
            return False
        victim.cut()
        self.taken.discard(victim)
        self._ending.add(victim)
        self.evicted += 1
        return True

    def _kept(self) -> set[str]:
        """Addresses with a place that they do not use now."""
        return self.regulars.keys() - {connection.address for connection in self.taken}

    def _keep_place(self, address: str, now: float) -> None:
        """Keep a place for a client that was served, if there is one left."""
        if address not in self.regulars and len(self.regulars) >= self._most // 4:
            oldest = min(self.regulars, key=self.regulars.__getitem__, default="")
            if self.regulars.get(oldest, now) > now - _REGULAR_S:
                return
            del self.regulars[oldest]
        self.regulars[address] = now


def choose_victim(
    connections: Collection[Connection], group: str, now: float, kept: Collection[Connection] = ()
) -> Connection | None:
    """The connection to evict for a client of this group: one of the group with the most connections.

    A group with fewer connections than the client's loses none. A group with at least two more may lose one at any
    time, other groups only one that is slow. `kept` connections stay.
    """
    counts = Counter(connection.group for connection in connections)
    keys: dict[Connection, tuple[int, int, float]] = {}
    for connection in connections:
        count = counts[connection.group]
        key = connection.eviction_key(now, 0.0 if count > counts[group] + 1 else SLOW_S)
        if key is not None and count >= counts[group] and connection not in kept:
            keys[connection] = -count, *key
    return min(keys, key=keys.__getitem__, default=None)
