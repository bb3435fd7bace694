"""The rows of the process families: residents joined with samples, accounts, facts and owners."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.books.containers import containers
from gpuledger.books.rows import cut_gpus, own_residents
from gpuledger.books.time import RecentSamples
from gpuledger.model import NOBODY, ProcessUse, Reading, Sample, Tick

IDLE = Sample(pid=0, timestamp_us=0, sm_pct=0, memory_pct=0)
"""The driver measured, and saw no work."""


class ProcessBook:
    """Builds one row for each process and device, at most `most` of them; containers are summed over all.

    With `shown` off there are none of these rows, and none count as dropped.
    """

    def __init__(self, most: int | None = None, *, shown: bool = True) -> None:
        self._most = most
        self._shown = shown
        self._dropped = 0
        self._recent = RecentSamples()

    def book(self, tick: Tick) -> Tick:
        """The tick with its processes."""
        now_us = tick.time_ns // 1000
        with_migs = cut_gpus(tick)
        uses: list[ProcessUse] = []
        for reading in tick.readings:
            if reading.up:
                uses += self._of_device(tick, reading, now_us, has_migs=reading.device.uuid in with_migs)
        shown = self._largest(uses) if self._shown else []
        self._dropped += len(uses) - len(shown) if self._shown else 0
        return replace(tick, processes=tuple(shown), dropped_processes=self._dropped, containers=containers(uses))

    def _largest(self, uses: list[ProcessUse]) -> list[ProcessUse]:
        """Those that hold most memory; the pid decides between equals, so that the choice is the same every tick."""
        if self._most is None or len(uses) <= self._most:
            return uses
        order = sorted(uses, key=lambda use: (-(use.resident.memory_bytes or 0), use.resident.pid, use.device.uuid))
        return order[: self._most]

    def _of_device(self, tick: Tick, reading: Reading, now_us: int, *, has_migs: bool) -> list[ProcessUse]:
        recent = self._recent.update(reading, tick.facts, now_us)
        accounts = {account.pid: account for account in reading.accounting}
        uses = []
        for resident in own_residents(reading, has_migs=has_migs):
            pid = resident.pid
            sample = None
            if recent is not None:
                sample = recent.get(pid, IDLE)
            owner = tick.owners.by_pid.get(pid, NOBODY)
            uses.append(ProcessUse(reading.device, resident, tick.facts.get(pid), sample, accounts.get(pid), owner))
        return uses
