"""Exited processes and containers: how long they are shown, and which account gets their energy afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from gpuledger.ledger.rows import ProcessLists, Row, Rows
from gpuledger.model import Device, Owner

Place = tuple[str, str]
"""Container id and device uuid."""
OTHERS = Owner(container="other", reason="more containers than --container.max")
"""The owner of all containers beyond the limit."""
MOST_EXITED = 1000
"""Limit of exited processes; the first to exit are retired early. Bounds memory when short processes loop."""


@dataclass(slots=True)
class Total:
    """The use of a device by the retired processes of one container, or by all its processes."""

    device: Device
    owner: Owner
    gone_ns: int = 0
    """How long the container is known to have left the device and to have no process."""
    energy_mj: dict[str, int] = field(default_factory=dict)
    """By method."""
    parked_mj: int = 0
    """The parked part of the energy."""
    busy_ns: int | None = None
    booked_mj: int = 0
    """Energy in the last booked interval."""
    earlier_mj: int = 0
    """Energy of earlier containers with this name in the same pod."""
    namesakes_mj: int = 0
    """Energy of containers with this name in earlier pods of the same name."""

    def copy(self) -> Total:
        """A copy, made for every container in every tick; `dataclasses.replace` takes four times as long."""
        return Total(
            device=self.device,
            owner=self.owner,
            gone_ns=self.gone_ns,
            energy_mj=dict(self.energy_mj),
            parked_mj=self.parked_mj,
            busy_ns=self.busy_ns,
            booked_mj=self.booked_mj,
            earlier_mj=self.earlier_mj,
            namesakes_mj=self.namesakes_mj,
        )

    def add(self, use: Row | Total) -> None:
        """Add the use of one process, or of one container without its predecessors."""
        for method, mj in use.energy_mj.items():
            self.energy_mj[method] = self.energy_mj.get(method, 0) + mj
        self.parked_mj += use.parked_mj
        if use.busy_ns is not None:
            self.busy_ns = (self.busy_ns or 0) + use.busy_ns

    def all_mj(self) -> int:
        """The container's energy, with that of its predecessors."""
        return sum(self.energy_mj.values()) + self.earlier_mj + self.namesakes_mj

    def name(self) -> tuple[str, ...] | None:
        """Device, namespace, pod and container; some dialects show containers with the same name as one."""
        owner = self.owner
        return (self.device.uuid, owner.namespace, owner.pod, owner.container) if owner.container else None


@dataclass(frozen=True, slots=True)
class Retired:
    """The rows and energy retired in one tick, and the exited processes that are still shown."""

    rows: tuple[Row, ...]
    exited: tuple[Row, ...]
    """The last to exit first."""
    retired_mj: Counter[str]
    """Energy of `rows`, by GPU."""
    gone_mj: Counter[str]
    """Energy of containers that are no longer shown and have no successor, by GPU."""


class Retention:
    """Keeps processes for `keep_ns` after they left the device, and containers for `keep_ns` after they ended.

    An entry does not age while its state is unknown. Of more than `max_containers`, those that left their device first
    are merged into the container OTHERS of the device.
    """

    def __init__(self, keep_ns: int, max_containers: int | None = None) -> None:
        self._keep_ns = keep_ns
        self._max_containers = max_containers
        self._totals: dict[Place, Total] = {}
        """The retired processes of each container; the last to be on its device is the last."""
        self._others: dict[str, Total] = {}
        """The containers that were merged, by device."""
        self._merged: set[Place] = set()
        """Containers whose processes count for OTHERS; until all of these are retired."""
        self._sums: dict[Place, Total] = {}
        """The retired and current processes of each container, as in the last tick."""
        self._changed: set[Place] = set()
        """Places whose sums are outdated."""
        self._booked: list[Row] = []
        """Processes with energy in the last booked interval of their GPU."""

    def state(self) -> list[Total]:
        """The totals of retired processes, for the journal."""
        return [*self._totals.values(), *self._others.values()]

    def resume(self, totals: Iterable[Total], rows: Iterable[Row]) -> None:
        """Start with the totals and processes of a journal."""
        for total in totals:
            if total.owner.container_id:
                self._totals[total.owner.container_id, total.device.uuid] = total
            else:
                self._others[total.device.uuid] = total
        self._merged = {place for row in rows if (place := _place(row)) is not None and place not in self._totals}
        self._changed = {*self._totals, *((OTHERS.container_id, uuid) for uuid in self._others)}

    def retire(self, rows: Rows, lists: ProcessLists, running: frozenset[str], elapsed_ns: int) -> Retired:
        """Retire the processes and containers whose retention has ended; `running` containers have not ended."""
        self._age(lists, running, elapsed_ns)
        evicted = self._admit(rows.all())
        gone = [row for row in rows.current() if row.active is not True]
        gone.sort(key=lambda row: (row.gone_ns, row.key()))
        exited = [row for row in gone if row.gone_ns < self._keep_ns and _place(row) not in evicted][:MOST_EXITED]
        shown = set(exited)
        retired = [*rows.replaced, *(row for row in gone if row not in shown)]
        retired_mj: Counter[str] = Counter()
        for row in retired:
            retired_mj[row.gpu] += sum(row.energy_mj.values())
            if (place := self._shown_place(row)) is not None:
                self._change(place).add(row)
        if self._merged:
            left = set(retired)
            self._merged &= {_place(row) for row in rows.all() if row not in left}
        gone_mj = self._remove(evicted)
        return Retired(rows=tuple(retired), exited=tuple(exited), retired_mj=retired_mj, gone_mj=gone_mj)

    def totals(self, rows: Iterable[Row], booked_mj: Mapping[Row, int]) -> dict[Place, Total]:
        """The use of each container, by retired and current processes. An unchanged total is the same object."""
        places = [(self._shown_place(row), row) for row in rows]
        changed = self._changed | {place for place, row in places if place is not None and not row.gone_ns}
        changed.update(place for row in (*self._booked, *booked_mj) if (place := self._shown_place(row)) is not None)
        for place in changed:
            if (total := self._total(place)) is not None:
                self._sums[place] = total.copy()
            else:
                self._sums.pop(place, None)
        for place, row in places:
            if place in changed:
                total = self._sums[place]
                total.add(row)
                total.booked_mj += booked_mj.get(row, 0)
        self._booked, self._changed = list(booked_mj), set()
        return self._sums

    def _shown_place(self, row: Row) -> Place | None:
        """The place of the total that includes a process; None if there is none."""
        place = _place(row)
        if place in self._totals:
            return place
        return (OTHERS.container_id, row.device.uuid) if place in self._merged else None

    def _total(self, place: Place) -> Total | None:
        return self._totals.get(place) if place[0] else self._others.get(place[1])

    def _change(self, place: Place) -> Total:
        """The total of a place, to be changed."""
        self._changed.add(place)
        return self._totals[place] if place[0] else self._others[place[1]]

    def _others_of(self, device: Device) -> Place:
        """The place of OTHERS on a device."""
        self._others.setdefault(device.uuid, Total(device=device, owner=OTHERS))
        return OTHERS.container_id, device.uuid

    def _age(self, lists: ProcessLists, running: frozenset[str], elapsed_ns: int) -> None:
        for (container_id, _), total in self._totals.items():
            if container_id in running:
                total.gone_ns = 0
            elif lists.are_known(total.device):
                total.gone_ns += elapsed_ns

    def _admit(self, rows: Iterable[Row]) -> set[Place]:
        """Update the containers with processes, and add new ones; returns those that have to make room.

        If all containers have processes, new ones are merged.
        """
        present: dict[Place, Row] = {}
        for row in rows:
            place = _place(row)
            if place is not None and not row.gone_ns and place not in self._merged:
                present[place] = row
        new = {place: row for place, row in present.items() if place not in self._totals}
        for place, row in present.items():
            if (total := self._totals.pop(place, None)) is not None:
                total.device, total.owner, total.gone_ns = row.device, row.owner, 0
                self._totals[place] = total
        excess = 0 if self._max_containers is None else max(0, len(self._totals) + len(new) - self._max_containers)
        evicted = set(islice((place for place in self._totals if place not in present), excess))
        for number, (place, row) in enumerate(reversed(new.items())):
            if number < excess - len(evicted):
                self._merged.add(place)
                self._others_of(row.device)
            else:
                self._totals[place] = Total(device=row.device, owner=row.owner)
        return evicted

    def _remove(self, evicted: set[Place]) -> Counter[str]:
        """Remove the evicted and ended containers; the energy of those that ended without a successor, by GPU."""
        ended = [place for place, total in self._totals.items() if total.gone_ns >= self._keep_ns or place in evicted]
        totals = [(place in evicted, self._totals.pop(place)) for place in ended]
        self._changed.update(ended)
        successors = {total.name(): place for place, total in self._totals.items()} if totals else {}
        gone_mj: Counter[str] = Counter()
        for is_evicted, total in totals:
            name = total.name()
            if name is not None and name in successors:
                self._pass_on(total, self._change(successors[name]))
            elif is_evicted:
                others = self._change(self._others_of(total.device))
                others.add(total)
                others.earlier_mj += total.earlier_mj
                others.namesakes_mj += total.namesakes_mj
            else:
                gone_mj[total.device.gpu_uuid] += total.all_mj()
        return gone_mj

    def _pass_on(self, total: Total, successor: Total) -> None:
        """Add a container's energy to a shown container of the same name."""
        if successor.owner.pod_uid == total.owner.pod_uid:
            successor.earlier_mj += sum(total.energy_mj.values()) + total.earlier_mj
            successor.namesakes_mj += total.namesakes_mj
        else:
            successor.namesakes_mj += total.all_mj()


def _place(row: Row) -> Place | None:
    """The place of a process; None if it is in no container."""
    container_id = row.owner.container_id
    return (container_id, row.device.uuid) if container_id else None


def energy_by_gpu(totals: Iterable[Total]) -> Counter[str]:
    """The energy of all shown containers on each GPU."""
    energy_mj: Counter[str] = Counter()
    for total in totals:
        energy_mj[total.device.gpu_uuid] += total.all_mj()
    return energy_mj
