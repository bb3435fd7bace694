"""A colour for each owner, which it keeps while the exporter runs."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping

from gpuledger.model import Tick

COLOURS = 8
"""The page and `top` have a palette each."""
REMEMBERED = 1024
"""Absent owners; the one that was absent for the longest time is forgotten first."""


def first_choice(owner: str) -> int:
    """The colour of an owner while no other one has it."""
    return zlib.crc32(owner.encode("utf-8", "replace")) % COLOURS


def owners_of(tick: Tick) -> set[str]:
    """The display names of the rows of a tick."""
    owners = {process.owner.display_name for process in tick.processes}
    owners |= {container.owner.display_name for container in tick.containers}
    return owners | {allocation.owner.display_name for allocation in tick.allocations if allocation.state}


class Colours:
    """Chosen when an owner is first seen: the colour that the fewest owners have, of this tick and then of all.

    `add` is called by one thread, and everything else by any.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}  # the owners seen last come last
        self.now: Mapping[str, int] = {}
        """The owners of the last tick."""

    def add(self, tick: Tick) -> None:
        """Choose for the new owners of a tick, in the order of their names."""
        owners = owners_of(tick)
        if owners == self.now.keys():
            return
        absent = {owner: colour for owner, colour in self._known.items() if owner not in owners}
        now = {owner: self._known[owner] for owner in sorted(owners) if owner in self._known}
        here, ever = Counter(now.values()), Counter(self._known.values())
        for owner in sorted(owners - now.keys()):
            order = [(first_choice(owner) + step) % COLOURS for step in range(COLOURS)]
            now[owner] = min(order, key=lambda colour: (here[colour], ever[colour]))
            here[now[owner]] += 1
            ever[now[owner]] += 1
        forgotten = max(0, len(absent) - REMEMBERED)
        self._known = dict(list(absent.items())[forgotten:]) | now
        self.now = now

    def of(self, owner: str) -> int:
        """The colour of an owner, present or not."""
        return self._known.get(owner, first_choice(owner))
