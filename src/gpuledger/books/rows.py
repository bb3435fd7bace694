"""Who is who: a row for each process and device, from when it is first seen until it is retired."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.books.fingerprint import Fingerprint
from gpuledger.model import NOBODY, Device, Facts, Owner, Reading, Resident, Tick

MPS_SERVER = "nvidia-cuda-mps"
"""How the kernel shortens nvidia-cuda-mps-server."""


@dataclass(slots=True, eq=False)
class Row:
    """One process on one device. (pid, start, device) says which; a pid alone may be another's by now."""

    device: Device
    gpu: str
    """uuid of the whole GPU, also for a process on a MIG instance."""
    pid: int
    start_ticks: int | None
    number: int
    """Counts all rows, so that two processes that cannot be told apart still have an order."""
    resident: Resident
    facts: Facts | None = None
    owner: Owner = NOBODY
    energy_mj: dict[str, int] = field(default_factory=dict)
    busy_ns: int | None = None
    active: bool | None = True
    seen_ns: int = 0
    retired: bool = False
    resumed: bool = False
    """Whether it is only known from a journal, and was not met again yet."""
    fingerprint: Fingerprint | None = None
    share_error: float | None = None
    """Of its share of the energy of the last interval, if that was shared."""

    @property
    def unlisted(self) -> bool:
        """Whether it was only ever seen at work."""
        return self.resident.kind == "unlisted"

    @property
    def is_mps_server(self) -> bool:
        """Whether it works for others, its clients."""
        return self.facts is not None and self.facts.name.startswith(MPS_SERVER)

    def __lt__(self, other: Row) -> bool:
        """The order in which rounding is settled; it does not depend on the driver's order."""
        return self._key() < other._key()

    def _key(self) -> tuple[int, str, int, int]:
        return self.pid, self.device.uuid, -1 if self.start_ticks is None else self.start_ticks, self.number


Present = dict[str, frozenset[Row] | None]
"""By GPU, who is on it; None when the driver does not say."""


class Rows:
    """All rows that are not retired."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Row] = {}
        self._replaced: list[Row] = []
        self._number = 0

    def meet(self, tick: Tick) -> Present:
        """Take in who is there: rows for newcomers, and those not met any more marked so."""
        with_migs = cut_gpus(tick)
        present: dict[str, set[Row] | None] = {}
        told: set[str] = set()
        everybody: set[Row] = set()
        for reading in tick.readings:
            gpu = reading.device.gpu_uuid
            here = present.setdefault(gpu, set())
            has_migs = reading.device.uuid in with_migs
            if not reading.up or (reading.residents is None and not has_migs):  # with MIG the instances' lists count
                present[gpu] = None
                continue
            told.add(reading.device.uuid)
            met = {self._met(tick, reading, gpu, resident) for resident in own_residents(reading, has_migs=has_migs)}
            everybody |= met
            if here is not None:
                here |= met
        for row in self._rows.values():
            if row not in everybody:
                if row.device.uuid in told:
                    row.active = False
                elif row.active:
                    row.active = None
        return {gpu: None if here is None else frozenset(here) for gpu, here in present.items()}

    def _met(self, tick: Tick, reading: Reading, gpu: str, resident: Resident) -> Row:
        pid = resident.pid
        place = (reading.device.uuid, pid)
        facts = tick.facts.get(pid)
        start = facts.start_ticks if facts is not None else None
        row = self._rows.get(place)
        owner = tick.owners.by_pid.get(pid, NOBODY)
        if row is None or _another(row, start) or _moved(row, owner):
            if row is not None:
                row.active = False
                self._replaced.append(row)
            self._number += 1
            row = Row(reading.device, gpu, pid, start, self._number, resident)
            self._rows[place] = row
        row.device, row.resident, row.active, row.seen_ns = reading.device, resident, True, tick.time_ns
        row.resumed = False
        if facts is not None:
            row.start_ticks, row.facts = start, facts
        if row.owner.container_id in ("", owner.container_id):  # a container, once known, is not taken back
            row.owner = owner
        return row

    def glimpse(self, tick: Tick, reading: Reading, pid: int, since_ns: int) -> Row:
        """The row of a process that worked, listed or not: one that came and went between two ticks never is.

        Where the start is known it says whose row it is; else one that was last seen before `since_ns` is another's.
        """
        uuid, facts = reading.device.uuid, tick.facts.get(pid)
        row = self._rows.get((uuid, pid))
        if row is not None and not row.unlisted and self._is_of(row, facts, since_ns):
            return row
        if row is None or facts is not None or not self._is_of(row, facts, since_ns):
            row = self._met(tick, reading, reading.device.gpu_uuid, Resident(pid, "unlisted"))
        row.seen_ns, row.active = tick.time_ns, False if facts is None else None
        return row

    @staticmethod
    def _is_of(row: Row, facts: Facts | None, since_ns: int) -> bool:
        if facts is not None and row.start_ticks is not None:
            return facts.start_ticks == row.start_ticks
        return bool(row.active) or row.seen_ns >= since_ns

    def resume(self, rows: list[Row]) -> None:
        """Go on with these."""
        self._rows = {(row.device.uuid, row.pid): row for row in rows}
        self._number = len(rows)

    def newest(self, uuid: str, pid: int) -> Row | None:
        """The row of a pid on a device, if it was there lately."""
        return self._rows.get((uuid, pid))

    def all(self) -> list[Row]:
        """Every row, those replaced by a reused pid too."""
        return [*self._rows.values(), *self._replaced]

    def take_replaced(self) -> list[Row]:
        """Rows whose pid is another process's now: their series would have the same labels."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def remove(self, row: Row) -> None:
        """Forget a row."""
        del self._rows[row.device.uuid, row.pid]


def cut_gpus(tick: Tick) -> set[str]:
    """The GPUs that are cut into MIG instances."""
    return {reading.device.parent_uuid for reading in tick.readings if reading.device.parent_uuid}


def own_residents(reading: Reading, *, has_migs: bool) -> list[Resident]:
    """Those without a row on a MIG instance of the GPU."""
    return [r for r in reading.residents or () if not (has_migs and r.gpu_instance_id is not None)]


def _another(row: Row, start: int | None) -> bool:
    """Whether this is not the row's process. Without a known start, one that left and came back is taken for new.

    So is one that nobody watched for a while.
    """
    if start is None or row.start_ticks is None:
        return row.active is False or row.resumed
    return row.start_ticks != start


def _moved(row: Row, owner: Owner) -> bool:
    """Whether it is in another container now: what it used before stays with the first."""
    return bool(row.owner.container_id and owner.container_id) and row.owner.container_id != owner.container_id
