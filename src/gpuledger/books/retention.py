"""Processes and containers that are gone: how long their numbers stay, and where their joules go then."""

from __future__ import annotations

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


class Retention:
    """Keeps what exited processes used for `keep_ns`, then moves it to the GPU's retired account.

    A container's total keeps it as long as some process of the container is on the device, and `keep_ns` more.
    Of processes that are there or were, at most `most` are shown.
    """

    def __init__(self, keep_ns: int, most: int | None = None) -> None:
        self._keep_ns = keep_ns
        self._most = most
        self._totals: dict[Place, Total] = {}

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
            del self._totals[place]
        return self._shown(tick, rows, kept)

    def _containers_seen(self, rows: Rows, now_ns: int) -> None:
        for row in rows.all():
            place = (row.owner.container_id, row.device.uuid)
            if not row.owner.container_id or (row.active is not True and place not in self._totals):
                continue
            total = self._totals.setdefault(place, Total(row.device, row.owner, row.seen_ns))
            if row.active is True:
                total.device, total.owner, total.seen_ns = row.device, row.owner, now_ns

    def _retire(self, row: Row, ledgers: dict[str, Ledger]) -> None:
        total = self._totals.get((row.owner.container_id, row.device.uuid))
        if total is not None:
            _add(total, row)
        if row.gpu in ledgers:
            ledgers[row.gpu].retired_mj += sum(row.energy_mj.values())
        row.retired = True

    def _shown(self, tick: Tick, rows: Rows, kept: list[Row]) -> Tick:
        processes = [_with_books(use, rows.newest(use.device.uuid, use.resident.pid)) for use in tick.processes]
        room = len(kept) if self._most is None else max(0, self._most - len(processes))
        processes += [_exited(row) for row in kept[:room]]
        sums = {place: replace(total, energy_mj=dict(total.energy_mj)) for place, total in self._totals.items()}
        for row in rows.all():
            if (total := sums.get((row.owner.container_id, row.device.uuid))) is not None:
                _add(total, row)
        containers = []
        for use in tick.containers:
            total = sums.pop((use.owner.container_id, use.device.uuid), None)
            if total is not None:
                use = replace(use, energy_mj=_labelled(total.energy_mj), busy_ns=total.busy_ns)  # noqa: PLW2901
            containers.append(use)
        containers += [
            ContainerUse(total.device, total.owner, 0, None, None, _labelled(total.energy_mj), total.busy_ns)
            for total in sums.values()
        ]
        return replace(tick, processes=tuple(processes), containers=tuple(containers))


def _add(total: Total, row: Row) -> None:
    for method, mj in row.energy_mj.items():
        total.energy_mj[method] = total.energy_mj.get(method, 0) + mj
    if row.busy_ns is not None:
        total.busy_ns = (total.busy_ns or 0) + row.busy_ns


def _with_books(use: ProcessUse, row: Row | None) -> ProcessUse:
    if row is None:
        return use
    # Not by `replace`: it takes four times as long, for every process in every tick.
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
