"""Exited processes and containers: how long they are shown, and which account gets their energy afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuledger.books.rows import ProcessLists, Row, Rows
from gpuledger.model import Device, Owner

Place = tuple[str, str]
"""Container id and device uuid."""
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
            busy_ns=self.busy_ns,
            booked_mj=self.booked_mj,
            earlier_mj=self.earlier_mj,
            namesakes_mj=self.namesakes_mj,
        )

    def add(self, row: Row) -> None:
        """Add the use of one process."""
        for method, mj in row.energy_mj.items():
            self.energy_mj[method] = self.energy_mj.get(method, 0) + mj
        if row.busy_ns is not None:
            self.busy_ns = (self.busy_ns or 0) + row.busy_ns

    def all_mj(self) -> int:
        """The container's energy, with that of its predecessors."""
        return sum(self.energy_mj.values()) + self.earlier_mj + self.namesakes_mj

    def has_name_of(self, other: Total) -> bool:
        """Whether namespace, pod and container have the same names; some dialects show both as one."""
        own, others = self.owner, other.owner
        return (
            self.device.uuid == other.device.uuid
            and bool(own.container)
            and (own.namespace, own.pod, own.container) == (others.namespace, others.pod, others.container)
        )


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

    An entry does not age while its state is unknown.
    """

    def __init__(self, keep_ns: int) -> None:
        self._keep_ns = keep_ns
        self._totals: dict[Place, Total] = {}

    def state(self) -> list[Total]:
        """The totals of retired processes, for the journal."""
        return list(self._totals.values())

    def resume(self, totals: Iterable[Total]) -> None:
        """Start with the totals of a journal."""
        self._totals = {(total.owner.container_id, total.device.uuid): total for total in totals}

    def retire(self, rows: Rows, lists: ProcessLists, running: frozenset[str], elapsed_ns: int) -> Retired:
        """Retire the processes and containers whose retention has ended; `running` containers have not ended."""
        self._update_containers(rows.all(), lists, running, elapsed_ns)
        gone = sorted((row for row in rows.current() if row.active is not True), key=lambda row: (row.gone_ns, row))
        exited = [row for row in gone if row.gone_ns < self._keep_ns][:MOST_EXITED]
        shown = set(exited)
        retired = [*rows.replaced, *(row for row in gone if row not in shown)]
        retired_mj: Counter[str] = Counter()
        for row in retired:
            retired_mj[row.gpu] += sum(row.energy_mj.values())
            if (total := self._totals.get((row.owner.container_id, row.device.uuid))) is not None:
                total.add(row)
        gone_mj: Counter[str] = Counter()
        for place in [place for place, total in self._totals.items() if total.gone_ns >= self._keep_ns]:
            total = self._totals.pop(place)
            gone_mj[total.device.gpu_uuid] += self._pass_on(total)
        return Retired(rows=tuple(retired), exited=tuple(exited), retired_mj=retired_mj, gone_mj=gone_mj)

    def totals(self, rows: Iterable[Row], booked_mj: Mapping[Row, int]) -> dict[Place, Total]:
        """The use of each container, by retired and current processes."""
        totals = {place: total.copy() for place, total in self._totals.items()}
        for row in rows:
            if (total := totals.get((row.owner.container_id, row.device.uuid))) is not None:
                total.add(row)
                total.booked_mj += booked_mj.get(row, 0)
        return totals

    def _update_containers(
        self, rows: Iterable[Row], lists: ProcessLists, running: frozenset[str], elapsed_ns: int
    ) -> None:
        for total in self._totals.values():
            if total.owner.container_id in running:
                total.gone_ns = 0
            elif lists.are_known(total.device):
                total.gone_ns += elapsed_ns
        for row in rows:
            if not row.gone_ns and row.owner.container_id:
                place = (row.owner.container_id, row.device.uuid)
                total = self._totals.setdefault(place, Total(device=row.device, owner=row.owner))
                total.device, total.owner, total.gone_ns = row.device, row.owner, 0

    def _pass_on(self, total: Total) -> int:
        """Add a container's energy to a shown container of the same name; returns it if there is none."""
        successor = next((other for other in self._totals.values() if other.has_name_of(total)), None)
        if successor is None:
            return total.all_mj()
        if successor.owner.pod_uid == total.owner.pod_uid:
            successor.earlier_mj += sum(total.energy_mj.values()) + total.earlier_mj
            successor.namesakes_mj += total.namesakes_mj
        else:
            successor.namesakes_mj += total.all_mj()
        return 0


def energy_by_gpu(totals: Iterable[Total]) -> Counter[str]:
    """The energy of all shown containers on each GPU."""
    energy_mj: Counter[str] = Counter()
    for total in totals:
        energy_mj[total.device.gpu_uuid] += total.all_mj()
    return energy_mj
