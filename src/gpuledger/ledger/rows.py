"""The identity of processes from tick to tick: one row for each process and device until it is retired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from gpuledger.ledger.time import Busy
from gpuledger.model import UNKNOWN_OWNER, Device, Facts, Owner, Reading, Resident, Tick
from gpuledger.model.record import dataclass

Proportions = tuple[float, ...]
"""The share of a process in the time on the compute engine, and in the activity of each unit."""


@dataclass(frozen=True, slots=True)
class ActivityShare:
    """The share of a process in the activity of its device."""

    method: str
    proportions: Proportions
    error: float = 0.0
    """Standard deviation of the proportions."""


@dataclass(eq=False)  # no slots, because fingerprints have weak references to rows
class Row:
    """One process on one device, identified by (pid, start time, device) because the kernel reuses pids.

    Only `Rows` changes a row.
    """

    device: Device
    gpu: str
    """uuid of the physical GPU, also for a process on a MIG instance."""
    pid: int
    start_ticks: int | None
    number: int
    """Sequence number; the last criterion of the order of rows."""
    resident: Resident
    facts: Facts | None = None
    owner: Owner = UNKNOWN_OWNER
    energy_mj: dict[str, int] = field(default_factory=dict)
    """By method."""
    parked_mj: int = 0
    """The parked part of its energy."""
    busy_ns: int | None = None
    active: bool | None = True
    """False once the process has left the device; None while the driver does not list processes."""
    seen_ns: int = 0
    """Unix time; comparable with samples."""
    gone_ns: int = 0
    """How long the process is known to have left the device. Stands still while the driver does not list processes."""
    retired: bool = False
    """Whether the row was removed, and its energy moved to the GPU's retired account."""
    created_ns: int | None = None
    """Unix time at which the process was first listed; None if the row comes from a journal."""
    resumed: bool = False
    """Whether the row comes from a journal and its process has not been listed since."""
    share_error: float | None = None
    """Standard deviation of its energy share in the last interval, if the GPU was shared."""
    activity: ActivityShare | None = None
    """Its share of the activity in the last interval; None if it is not known."""

    @property
    def unlisted(self) -> bool:
        """Whether the process was in no process list so far, only in samples or accounting."""
        return self.resident.kind == "unlisted"

    @property
    def mps_server(self) -> str:
        """`Facts.mps_server`; empty if the process is no server of MPS clients."""
        return "" if self.facts is None else self.facts.mps_server

    @property
    def tenant(self) -> tuple[int | None, str]:
        """The user and the container of the process."""
        return None if self.facts is None else self.facts.uid, self.owner.container_id or self.owner.pod_uid

    def __lt__(self, other: Row) -> bool:
        """The order in which remainders are rounded up; independent of the driver's order."""
        return self.key() < other.key()

    def key(self) -> tuple[int, str, int, int]:
        """The sort key of `__lt__`, for sorting many rows."""
        return self.pid, self.device.uuid, -1 if self.start_ticks is None else self.start_ticks, self.number


Present = dict[str, frozenset[Row] | None]
"""The processes on each GPU, by uuid; None if the driver does not list them."""


@dataclass(slots=True)
class Work:
    """Compute-engine time of the processes on one GPU in one tick."""

    has_samples: bool = False
    """Whether the driver reports utilization by process."""
    busy_ns: dict[Row, int] = field(default_factory=dict)
    unlisted: set[Row] = field(default_factory=set)
    """Processes that worked but are not listed: they came and went between two ticks, or are hidden."""


class ProcessLists:
    """Which process lists a tick contains."""

    def __init__(self, tick: Tick) -> None:
        self.partitioned = partitioned_gpus(tick)
        self._readings = {reading.device.uuid: reading for reading in tick.readings}
        self._has_all_gpus = tick.driver.up and "" not in self._readings
        self._known: dict[str, bool] = {}

    def are_known(self, device: Device) -> bool:
        """Whether it is known which processes are on a device; a device that was removed has none."""
        known = self._known.get(device.uuid)
        if known is None:
            known = self._known[device.uuid] = self._is_known(device)
        return known

    def _is_known(self, device: Device) -> bool:
        reading, gpu = self._readings.get(device.uuid), self._readings.get(device.parent_uuid)
        if reading is not None:  # with MIG, the instances have the lists
            return reading.up and (reading.residents is not None or device.uuid in self.partitioned)
        return gpu.up if gpu is not None else self._has_all_gpus


class Rows:
    """All rows that are not retired, and the only writer of them."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], Row] = {}
        self._number = 0
        self.replaced: list[Row] = []
        """Rows whose pid was reused; retired at once, because the new row has the same labels."""

    def decide_owners(self, tick: Tick) -> Tick:
        """The tick with one owner of each process, for labels and for totals.

        A process stays in its container if the provider that knows the container is lost.
        """
        by_pid = tick.owners.by_pid
        lost = [
            row
            for row in self._rows.values()
            if row.owner.container_id and not by_pid.get(row.pid, UNKNOWN_OWNER).container_id
        ]
        pids = tick.resident_pids() | tick.working_pids() if lost else frozenset()
        kept = {
            row.pid: row.owner
            for row in lost
            if row.pid in pids
            and not _is_other_process(row, facts.start_ticks if (facts := tick.facts.get(row.pid)) else None)
        }
        return replace(tick, owners=replace(tick.owners, by_pid={**by_pid, **kept})) if kept else tick

    def update(self, tick: Tick, lists: ProcessLists, elapsed_ns: int) -> Present:
        """Match the driver's process lists with the rows: add new processes and mark those that left."""
        present: dict[str, set[Row] | None] = {}
        listed_rows: set[Row] = set()
        for reading in tick.readings:
            gpu = reading.device.gpu_uuid
            on_gpu = present.setdefault(gpu, set())
            if not lists.are_known(reading.device):
                present[gpu] = None
                continue
            has_migs = reading.device.uuid in lists.partitioned
            rows = {self._find(tick, reading, resident) for resident in own_residents(reading, has_migs=has_migs)}
            listed_rows |= rows
            if on_gpu is not None:
                on_gpu |= rows
        for row in self._rows.values():
            if row not in listed_rows:
                if lists.are_known(row.device):
                    row.active = False
                    row.gone_ns += elapsed_ns
                elif row.active:
                    row.active = None
        return {gpu: None if rows is None else frozenset(rows) for gpu, rows in present.items()}

    def _find(self, tick: Tick, reading: Reading, resident: Resident) -> Row:
        """The row of a process, updated from the tick; a new one if the pid or its container changed."""
        pid = resident.pid
        place = (reading.device.uuid, pid)
        facts = tick.facts.get(pid)
        start_ticks = facts.start_ticks if facts is not None else None
        owner = tick.owners.by_pid.get(pid, UNKNOWN_OWNER)
        row = self._rows.get(place)
        # Without start times, processes with the same pid and owner have the same labels, and share a row.
        is_same = row is not None and not row.resumed and row.start_ticks is start_ticks is None and row.owner == owner
        is_other = row is None or _is_other_process(row, start_ticks) or _is_other_container(row, owner)
        if row is None or (is_other and not is_same):
            if row is not None:
                row.active = False
                self.replaced.append(row)
            self._number += 1
            row = Row(
                device=reading.device,
                gpu=reading.device.gpu_uuid,
                pid=pid,
                start_ticks=start_ticks,
                number=self._number,
                resident=resident,
                created_ns=tick.time_ns,
            )
            self._rows[place] = row
        row.device, row.resident, row.active, row.seen_ns = reading.device, resident, True, tick.time_ns
        row.resumed, row.gone_ns = False, 0
        if facts is not None:
            row.start_ticks, row.facts = start_ticks, facts
        row.owner = owner
        return row

    def add_work(self, tick: Tick, busy: Mapping[str, Busy | None]) -> dict[str, Work]:
        """Add busy time to the rows; the work of each GPU by row."""
        work: dict[str, Work] = {}
        for reading in tick.readings:
            uuid = reading.device.uuid
            if uuid in busy:
                on_gpu = busy[uuid]
                work[uuid] = Work() if on_gpu is None else self._add_work(tick, reading, on_gpu)
        return work

    def _add_work(self, tick: Tick, reading: Reading, busy: Busy) -> Work:
        uuid = reading.device.uuid
        work = Work(has_samples=True)
        for resident in reading.residents or ():
            row = self._rows.get((uuid, resident.pid))
            if row is not None and row.busy_ns is None:
                row.busy_ns = 0
        by_pid = dict(busy.sampled_ns)
        for pid, busy_ns in busy.ended_ns.items():
            if (uuid, pid) not in self._rows:  # otherwise its samples are booked already
                by_pid.setdefault(pid, busy_ns)
        for pid, busy_ns in by_pid.items():
            row = self._rows.get((uuid, pid))
            if busy_ns:
                row = self._find_working(tick, reading, pid, busy.since_ns)
                work.busy_ns[row] = busy_ns
                if row.unlisted:
                    work.unlisted.add(row)
            if row is not None:
                row.busy_ns = (row.busy_ns or 0) + busy_ns
        return work

    def _find_working(self, tick: Tick, reading: Reading, pid: int, since_ns: int) -> Row:
        """The row of a process that worked. A process that came and went between two ticks is in no list.

        The start time identifies the process. If it is unknown, a row last seen before `since_ns` belongs to an
        earlier process with the same pid.
        """
        facts = tick.facts.get(pid)
        row = self._rows.get((reading.device.uuid, pid))
        is_same = row is not None and _is_same_process(row, facts, since_ns)
        if row is not None and not row.unlisted and is_same:
            return row
        if row is None or facts is not None or not is_same:
            row = self._find(tick, reading, Resident(pid=pid, kind="unlisted"))
        row.seen_ns, row.gone_ns, row.active = tick.time_ns, 0, False if facts is None else None
        return row

    def add_energy(
        self,
        entries: Iterable[tuple[Row, str, int]],
        parked_mj: Mapping[Row, int],
        share_errors: Mapping[Row, float | None],
        activity: Mapping[Row, ActivityShare | None],
    ) -> None:
        """Add the energy entries of a closed interval, and set its share errors and shares of activity."""
        for row, error in share_errors.items():
            row.share_error = error
        for row, share in activity.items():
            row.activity = share
        for row, method, mj in entries:
            row.energy_mj[method] = row.energy_mj.get(method, 0) + mj
        for row, mj in parked_mj.items():
            row.parked_mj += mj

    def remove(self, rows: Iterable[Row]) -> None:
        """Remove retired rows, which include all replaced ones."""
        for row in rows:
            row.retired = True
            if self._rows.get((row.device.uuid, row.pid)) is row:
                del self._rows[row.device.uuid, row.pid]
        self.replaced = []

    def resume(self, rows: list[Row]) -> None:
        """Start with the rows of a journal."""
        self._rows = {(row.device.uuid, row.pid): row for row in rows}
        self._number = len(rows)

    def get(self, uuid: str, pid: int) -> Row | None:
        """The newest row of a pid on a device."""
        return self._rows.get((uuid, pid))

    def current(self) -> list[Row]:
        """The newest row of each pid and device."""
        return list(self._rows.values())

    def all(self) -> list[Row]:
        """Every row, replaced ones included."""
        return [*self._rows.values(), *self.replaced]


def partitioned_gpus(tick: Tick) -> set[str]:
    """Uuids of the GPUs that are partitioned into MIG instances."""
    return {reading.device.parent_uuid for reading in tick.readings if reading.device.parent_uuid}


def own_residents(reading: Reading, *, has_migs: bool) -> list[Resident]:
    """The processes of a device, except those on its MIG instances."""
    return [r for r in reading.residents or () if not (has_migs and r.gpu_instance_id is not None)]


def _is_same_process(row: Row, facts: Facts | None, since_ns: int) -> bool:
    if facts is not None and row.start_ticks is not None:
        return facts.start_ticks == row.start_ticks
    return bool(row.active) or row.seen_ns >= since_ns


def _is_other_process(row: Row, start_ticks: int | None) -> bool:
    """Whether the pid was reused; without a start time, if the process left or the exporter restarted."""
    if start_ticks is None or row.start_ticks is None:
        return row.active is False or row.resumed
    return row.start_ticks != start_ticks


def _is_other_container(row: Row, owner: Owner) -> bool:
    """Whether the process moved to another container; its earlier energy remains with the first one."""
    return bool(row.owner.container_id and owner.container_id) and row.owner.container_id != owner.container_id
