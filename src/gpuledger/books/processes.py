"""The rows of the process families: residents joined with samples, accounts and facts."""

from __future__ import annotations

from dataclasses import replace

from gpuledger.books.time import RecentSamples
from gpuledger.model import ProcessUse, Reading, Sample, Tick


class ProcessBook:
    """Builds one row for each process and device."""

    def __init__(self) -> None:
        self._recent = RecentSamples()

    def book(self, tick: Tick) -> Tick:
        """The tick with its processes."""
        now_us = tick.time_ns // 1000
        with_migs = {reading.device.parent_uuid for reading in tick.readings if reading.device.parent_uuid}
        uses: list[ProcessUse] = []
        for reading in tick.readings:
            if reading.up:
                uses += self._of_device(tick, reading, now_us, has_migs=reading.device.uuid in with_migs)
        return replace(tick, processes=tuple(uses))

    def _of_device(self, tick: Tick, reading: Reading, now_us: int, *, has_migs: bool) -> list[ProcessUse]:
        recent = self._recent.update(reading, now_us)
        accounts = {account.pid: account for account in reading.accounting}
        uses = []
        for resident in reading.residents or ():
            if has_migs and resident.gpu_instance_id is not None:
                continue  # it has a row on its MIG instance
            pid = resident.pid
            sample = None
            if recent is not None:
                sample = recent.get(pid) or Sample(pid, 0, 0, 0)
            uses.append(ProcessUse(reading.device, resident, tick.facts.get(pid), sample, accounts.get(pid)))
        return uses
