"""Processes and containers that are gone: how long their numbers stay, and where their joules go then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpuledger.books.energy import Ledger
from gpuledger.books.rows import Row, Rows
from gpuledger.model import ContainerUse, Device, Labelled, Owner, ProcessUse, Tick

Place = tuple[str, str]
"""A container's id and a device's uuid."""
MOST_KEPT = 1000
"""Exited processes that are kept at a time, the last to exit: a loop of short ones must not fill the memory."""


@dataclass(slots=True)
class Total:
    """What a container used on a device; `energy_mj` and `busy_ns` are those of its retired processes."""

    device: Device
    owner: Owner
    seen_ns: int
    energy_mj: dict[str, int] = field(default_factory=dict)
    busy_ns: int | None = None
    booked_mj: int = 0
    earlier_mj: int = 0
    namesakes_mj: int = 0

    def copied(self) -> Total:
        """One that can be added to; every tick makes one of each, and `replace` takes four times as long."""
        return Total(
            self.device,
            self.owner,
            self.seen_ns,
            dict(self.energy_mj),
            self.busy_ns,
            self.booked_mj,
            self.earlier_mj,
            self.namesakes_mj,
        )

    def gpu(self) -> str:
        """The uuid of the whole GPU."""
        return self.device.gpu_uuid

    def follows(self, other: Total) -> bool:
        """Whether it has the same name in a pod of the same name: some show both as one."""
        mine, theirs = self.owner, other.owner
        return (
            self.device.uuid == other.device.uuid
            and bool(mine.container)
            and (mine.namespace, mine.pod, mine.container) == (theirs.namespace, theirs.pod, theirs.container)
        )


class Retention:
    """Keeps what exited processes used for `keep_ns`, then moves it to the GPU's retired account.

    A container's total keeps it as long as some process of the container is on the device, and `keep_ns` more.
    Of processes that are there or were, at most `most` are shown.
    """

    def __init__(self, keep_ns: int, most: int | None = None) -> None:
        self._keep_ns = keep_ns
        self._most = most
        self._totals: dict[Place, Total] = {}

    @property
    def totals(self) -> dict[Place, Total]:
        """What retired processes of each container used."""
        return self._totals

    def book(self, tick: Tick, rows: Rows, ledgers: dict[str, Ledger]) -> Tick:
        """Retire what is due, and put what is kept into the tick."""
        now_ns = tick.time_ns
        self._containers_seen(rows, now_ns)
        for row in rows.take_replaced():
            self._retire(row, ledgers)
        gone = sorted((row for row in rows.all() if row.active is not True), key=lambda row: (-row.seen_ns, row))
        kept = [row for row in gone if 0 <= now_ns - row.seen_ns < self._keep_ns][:MOST_KEPT]
        for row in {*gone} - {*kept}:
            rows.remove(row)
            self._retire(row, ledgers)
        for place in [p for p, total in self._totals.items() if not 0 <= now_ns - total.seen_ns < self._keep_ns]:
            self._forget(self._totals.pop(place), ledgers)
        return self._shown(tick, rows, kept, ledgers)

    def _containers_seen(self, rows: Rows, now_ns: int) -> None:
        for row in rows.all():
            place = (row.owner.container_id, row.device.uuid)
            if not row.owner.container_id or (row.seen_ns != now_ns and place not in self._totals):
                continue
            total = self._totals.setdefault(place, Total(row.device, row.owner, row.seen_ns))
            if row.seen_ns == now_ns:
                total.device, total.owner, total.seen_ns = row.device, row.owner, now_ns

    def _retire(self, row: Row, ledgers: dict[str, Ledger]) -> None:
        total = self._totals.get((row.owner.container_id, row.device.uuid))
        if total is not None:
            _add(total, row)
        if row.gpu in ledgers:
            ledgers[row.gpu].retired_mj += sum(row.energy_mj.values())
        row.retired = True

    def _forget(self, total: Total, ledgers: dict[str, Ledger]) -> None:
        """What it used stays with a container of the same name that is still there, or is gone."""
        used_mj = sum(total.energy_mj.values())
        heir = next((other for other in self._totals.values() if other.follows(total)), None)
        if heir is None:
            if total.gpu() in ledgers:
                ledgers[total.gpu()].gone_mj += used_mj + total.earlier_mj + total.namesakes_mj
        elif heir.owner.pod_uid == total.owner.pod_uid:
            heir.earlier_mj += used_mj + total.earlier_mj
            heir.namesakes_mj += total.namesakes_mj
        else:
            heir.namesakes_mj += used_mj + total.earlier_mj + total.namesakes_mj

    def _shown(self, tick: Tick, rows: Rows, kept: list[Row], ledgers: dict[str, Ledger]) -> Tick:
        processes = [_with_books(use, rows.newest(use.device.uuid, use.resident.pid)) for use in tick.processes]
        room = len(kept) if self._most is None else max(0, self._most - len(processes))
        processes += [_exited(row) for row in kept[:room]]
        sums = {place: total.copied() for place, total in self._totals.items()}
        for row in rows.all():
            if (total := sums.get((row.owner.container_id, row.device.uuid))) is not None:
                _add(total, row)
                if row.gpu in ledgers:
                    total.booked_mj += ledgers[row.gpu].booked_rows.get(row, 0)
        _tell(sums.values(), ledgers)
        containers = []
        for use in tick.containers:
            total = sums.pop((use.owner.container_id, use.device.uuid), None)
            containers.append(use if total is None else _with_total(use, total))
        containers += [_with_total(ContainerUse(t.device, t.owner, 0, None, None), t) for t in sums.values()]
        return replace(tick, processes=tuple(processes), containers=tuple(containers))


def _add(total: Total, row: Row) -> None:
    for method, mj in row.energy_mj.items():
        total.energy_mj[method] = total.energy_mj.get(method, 0) + mj
    if row.busy_ns is not None:
        total.busy_ns = (total.busy_ns or 0) + row.busy_ns


def _with_total(use: ContainerUse, total: Total) -> ContainerUse:
    # Not by `replace`: it takes four times as long, for every container in every tick.
    return ContainerUse(
        use.device,
        use.owner,
        use.processes,
        use.memory_bytes,
        use.sm_pct,
        _labelled(total.energy_mj),
        total.busy_ns,
        total.booked_mj,
        total.earlier_mj,
        total.namesakes_mj,
        use.inferred_bytes,
    )


def _tell(totals: Iterable[Total], ledgers: dict[str, Ledger]) -> None:
    """Each ledger, what all containers have of it."""
    owned_mj: dict[str, int] = dict.fromkeys(ledgers, 0)
    for total in totals:
        if total.gpu() in ledgers:
            owned_mj[total.gpu()] += sum(total.energy_mj.values()) + total.earlier_mj + total.namesakes_mj
    for gpu, mj in owned_mj.items():
        ledgers[gpu].owned(mj)


def _with_books(use: ProcessUse, row: Row | None) -> ProcessUse:
    if row is None:
        return use
    # Not by `replace` either.
    return ProcessUse(
        use.device,
        use.resident,
        use.facts,
        use.sample,
        use.accounting,
        use.owner,
        energy_mj=_labelled(row.energy_mj),
        busy_ns=row.busy_ns,
        energy_share_error=row.share_error,
    )


def _exited(row: Row) -> ProcessUse:
    """A process with the labels it last had, and of its numbers those that stay."""
    resident = replace(row.resident, memory_bytes=None)
    return ProcessUse(
        device=row.device,
        resident=resident,
        facts=row.facts,
        owner=row.owner,
        active=row.active,
        energy_mj=_labelled(row.energy_mj),
        busy_ns=row.busy_ns,
    )


def _labelled(numbers: dict[str, int]) -> Labelled:
    return tuple(sorted(numbers.items()))
