"""The rows of a tick that users see: one for each process and device, one for each container and device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gpuledger.ledger.memory import Inferred, is_same_container
from gpuledger.ledger.retention import OTHERS, Place, Total
from gpuledger.ledger.rows import Row, Rows, own_residents, partitioned_gpus
from gpuledger.model import (
    UNKNOWN_OWNER,
    ContainerUse,
    Device,
    Facts,
    Labelled,
    Owner,
    Percentages,
    ProcessUse,
    Reading,
    Sample,
    Tick,
)
from gpuledger.model.record import dataclass
from gpuledger.shares.activity import activity_by_method, activity_part, divisible, remaining_activity

WINDOW_US = 1_500_000
"""How long a sample is used; the driver sends one about every 0.2 s while the process works."""
IDLE = Sample(pid=0, timestamp_us=0, sm_pct=0, memory_pct=0)
"""The driver measured, and the process did no work."""


class RecentSamples:
    """The newest sample of each process on each device.

    The driver sends each sample once. If ticks are shorter than its sample period, most ticks have no new sample of a
    busy process; the last one is used for WINDOW_US.
    """

    def __init__(self) -> None:
        self._samples: dict[str, dict[int, tuple[Sample, int | None]]] = {}
        """By device and pid, with the start time of the process if known, because pids are reused."""

    def update(self, reading: Reading, facts: Mapping[int, Facts], now_us: int) -> dict[int, Sample] | None:
        """The current samples by pid; None if the device does not report utilization by process."""
        uuid = reading.device.uuid
        previous = self._samples.pop(uuid, {})
        if reading.samples is None:
            return None
        samples = {
            pid: (sample, start)
            for pid, (sample, start) in previous.items()
            # abs: the clock may have been set back
            if (reading.deferred or abs(now_us - sample.timestamp_us) < WINDOW_US)
            and (start is None or _start_ticks(facts, pid) in (None, start))
        }
        samples.update((sample.pid, (sample, _start_ticks(facts, sample.pid))) for sample in reading.samples)
        self._samples[uuid] = samples
        return {pid: sample for pid, (sample, _) in samples.items()}


def _start_ticks(facts: Mapping[int, Facts], pid: int) -> int | None:
    process = facts.get(pid)
    return None if process is None else process.start_ticks


@dataclass(frozen=True, slots=True)
class Uses:
    """The rows of one tick."""

    processes: tuple[ProcessUse, ...]
    containers: tuple[ContainerUse, ...]
    unattributed_activity: Mapping[str, Percentages]
    """The activity of each device that belongs to no process, by uuid."""
    dropped: int
    """Process rows left out since the start."""
    listed: tuple[ProcessUse, ...] = ()
    """Every process that the driver lists, shown or not."""


SHOWN: Mapping[str, Callable[[Owner], bool]] = {
    "all": lambda _: True,
    "containers": lambda owner: bool(owner.container_id),
    "pods": lambda owner: bool(owner.pod_uid or owner.pod),
    "none": lambda _: False,
}
"""Which processes have rows, by their owners."""


class UseBook:
    """Builds the rows of a tick: at most `max_processes` processes, and all containers.

    Processes that `shown`, a key of SHOWN, excludes have no rows, and do not count as dropped.
    """

    def __init__(self, max_processes: int | None = None, shown: str = "all") -> None:
        self._max_processes = max_processes
        self._is_shown = SHOWN[shown]
        self._dropped = 0
        self._recent = RecentSamples()
        self._gone: dict[Place, tuple[Total, ContainerUse]] = {}
        """Containers without processes on their device; built again only if the total is another object."""
        self._exited: dict[Row, tuple[tuple[object, ...], ProcessUse]] = {}
        """Exited processes; built again only if a value changes."""

    def book(
        self,
        tick: Tick,
        rows: Rows,
        *,
        exited: Sequence[Row] = (),
        totals: Mapping[Place, Total] | None = None,
        inferred: Iterable[Inferred] = (),
    ) -> Uses:
        """The rows of the tick, with those of `exited` processes."""
        now_us = tick.time_ns // 1000
        partitioned = partitioned_gpus(tick)
        uses: list[ProcessUse] = []
        unattributed: dict[str, Percentages] = {}
        for reading in tick.readings:
            if not reading.up:
                continue
            has_migs = reading.device.uuid in partitioned
            whole = None if has_migs else divisible(reading)
            on_device = list(self._device_uses(tick, reading, rows, whole, now_us, has_migs=has_migs))
            uses += on_device
            if whole is not None:
                parts = [use.activity.pct for use in on_device if use.activity is not None]
                unattributed[reading.device.uuid] = remaining_activity(whole, parts)
        containers = self._containers(uses, totals or {}, inferred)
        listed = tuple(uses)
        uses = [use for use in uses if self._is_shown(use.owner)]
        exited = [row for row in exited if self._is_shown(row.owner)]
        ended = self._exited_uses(exited)
        processes = tuple(self._most_used(uses, ended))
        self._dropped += len(uses) + len(ended) - len(processes)
        return Uses(
            processes=processes,
            containers=containers,
            unattributed_activity=unattributed,
            dropped=self._dropped,
            listed=listed,
        )

    def _containers(
        self, uses: Iterable[ProcessUse], totals: Mapping[Place, Total], inferred: Iterable[Inferred]
    ) -> tuple[ContainerUse, ...]:
        """Containers with processes, with inferred memory, or with exited processes only."""
        groups: dict[Place, list[ProcessUse]] = {}
        for use in uses:
            if use.owner.container_id:
                groups.setdefault(_shown_place(use, totals), []).append(use)
        members = [(group[0].device, group[0].owner if place[0] else OTHERS, group) for place, group in groups.items()]
        inferred_bytes: dict[int, int] = {}
        for holder in inferred:
            number = _number_of(holder, members)
            if number is None:
                number = len(members)
                members.append((holder.device, holder.owner, []))
            inferred_bytes[number] = holder.memory_bytes
        places = [(owner.container_id, device.uuid) for device, owner, _ in members]
        containers = [
            _container(device, owner, group, totals.get(place), inferred_bytes.get(number))
            for number, (place, (device, owner, group)) in enumerate(zip(places, members, strict=True))
        ]
        shown = set(places)
        known, self._gone = self._gone, {}
        for place, total in totals.items():
            if place not in shown:
                last = known.get(place)
                if last is None or last[0] is not total:
                    last = (total, _container(total.device, total.owner, [], total, None))
                self._gone[place] = last
        return (*containers, *(container for _, container in self._gone.values()))

    def _exited_uses(self, rows: Sequence[Row]) -> list[ProcessUse]:
        known, self._exited = self._exited, {}
        for row in rows:
            values = (row.active, row.busy_ns, row.resident, row.facts, row.owner, *row.energy_mj.items())
            last = known.get(row)
            self._exited[row] = last if last is not None and last[0] == values else (values, _exited(row))
        return [use for _, use in self._exited.values()]

    def _most_used(self, uses: list[ProcessUse], ended: list[ProcessUse]) -> list[ProcessUse]:
        """The processes with the most energy above parked power, then memory, then the lowest pids.

        Memory is free: a thousand idle processes could hide one that works. To hide energy, each must use more of it.
        """
        if self._max_processes is None or len(uses) + len(ended) <= self._max_processes:
            return [*uses, *ended]
        stable = sorted(uses, key=lambda use: (use.resident.pid, use.device.uuid))
        return sorted([*stable, *ended], key=_rank)[: self._max_processes]

    def _device_uses(
        self, tick: Tick, reading: Reading, rows: Rows, whole: Percentages | None, now_us: int, *, has_migs: bool
    ) -> Iterable[ProcessUse]:
        """The processes on a device; `whole` is its activity."""
        samples = self._recent.update(reading, tick.facts, now_us)
        accounts = {account.pid: account for account in reading.accounting}
        for resident in own_residents(reading, has_migs=has_migs):
            pid = resident.pid
            row = rows.get(reading.device.uuid, pid)
            yield ProcessUse(
                device=reading.device,
                resident=resident,
                facts=tick.facts.get(pid),
                sample=None if samples is None else samples.get(pid, IDLE),
                accounting=accounts.get(pid),
                owner=tick.owners.by_pid.get(pid, UNKNOWN_OWNER),
                energy_mj=() if row is None else _labelled(row.energy_mj),
                parked_mj=0 if row is None else row.parked_mj,
                busy_ns=None if row is None else row.busy_ns,
                energy_share_error=None if row is None else row.share_error,
                created_ns=None if row is None else row.created_ns,
                activity=activity_part(whole, None if row is None else row.activity),
            )


def _rank(use: ProcessUse) -> tuple[int, int, int]:
    work_mj = sum([mj for _, mj in use.energy_mj]) - use.parked_mj
    return -work_mj, -(use.busy_ns or 0), -(use.resident.memory_bytes or 0)


def _exited(row: Row) -> ProcessUse:
    """An exited process: its last labels and its totals, without the values of the moment."""
    return ProcessUse(
        device=row.device,
        resident=replace(row.resident, memory_bytes=None),
        facts=row.facts,
        owner=row.owner,
        active=row.active,
        energy_mj=_labelled(row.energy_mj),
        parked_mj=row.parked_mj,
        busy_ns=row.busy_ns,
        created_ns=row.created_ns,
    )


def _shown_place(use: ProcessUse, totals: Mapping[Place, Total]) -> Place:
    """The place of the total that includes a process."""
    place, others = (use.owner.container_id, use.device.uuid), (OTHERS.container_id, use.device.uuid)
    return others if place not in totals and others in totals else place


def _number_of(holder: Inferred, members: Sequence[tuple[Device, Owner, list[ProcessUse]]]) -> int | None:
    for number, (device, owner, _) in enumerate(members):
        if device.uuid == holder.device.uuid and is_same_container(owner, holder.owner):
            return number
    return None


def _container(
    device: Device, owner: Owner, group: Sequence[ProcessUse], total: Total | None, inferred_bytes: int | None
) -> ContainerUse:
    """Sums over the processes, without values that the driver does not report."""
    memory = [use.resident.memory_bytes for use in group if use.resident.memory_bytes is not None]
    samples = [use.sample for use in group if use.sample is not None]
    return ContainerUse(
        device=device,
        owner=owner,
        processes=len(group),
        memory_bytes=sum(memory) if memory else None,
        sm_pct=sum(sample.sm_pct for sample in samples) if samples else None,
        encoder_pct=sum(sample.encoder_pct for sample in samples) if samples else None,
        decoder_pct=sum(sample.decoder_pct for sample in samples) if samples else None,
        activity=activity_by_method(use.activity for use in group),
        energy_mj=() if total is None else _labelled(total.energy_mj),
        busy_ns=None if total is None else total.busy_ns,
        booked_mj=0 if total is None else total.booked_mj,
        parked_mj=0 if total is None else total.parked_mj,
        earlier_mj=0 if total is None else total.earlier_mj,
        namesakes_mj=0 if total is None else total.namesakes_mj,
        inferred_bytes=inferred_bytes,
    )


def _labelled(numbers: Mapping[str, int]) -> Labelled:
    return tuple(sorted(numbers.items()))
