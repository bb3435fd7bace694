"""The parked part of an owner's energy: what the GPU draws while all its processes wait.

On a shared GPU, the ledger books parked energy by its own method. The energy of a process that is alone contains it:
per booking, parked power x time, or all of the energy if it is less. What does not fit is carried to the next booking,
because the energy counter moves in steps that do not match the ticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.model import Account, ContainerUse

ALONE = ("exclusive", "gap")
"""Methods whose energy contains parked energy."""
CARRY_S = 3
"""Most seconds of parked power that are carried to the next booking."""
NS_PER_S = 1_000_000_000


Place = tuple[str, str, str, str]
"""uuid of the device, container id, pod uid and name of the container."""


@dataclass(slots=True)
class ParkedPart:
    """The parked energy of one process or container on one device, since its first tick."""

    energy_mj: Mapping[str, int]
    """By method, at the last booking."""
    booked_ns: int
    parked_mj: int = 0
    carried_mj: int = field(default=0)

    def add(self, energy_mj: Mapping[str, int], now_ns: int, account: Account | None) -> int:
        """The parked energy after a tick; `account` is that of the GPU."""
        rose = {method: mj - self.energy_mj.get(method, 0) for method, mj in energy_mj.items()}
        if not any(rose.values()):
            return self.parked_mj
        elapsed_ns, self.booked_ns, self.energy_mj = max(0, now_ns - self.booked_ns), now_ns, energy_mj
        if min(rose.values()) < 0:  # the row now sums other containers
            self.carried_mj = 0
            return self.parked_mj
        self.parked_mj += rose.get("parked", 0)
        alone_mj, edge_mj = sum([rose.get(method, 0) for method in ALONE]), rose.get("edge", 0)
        if account is None or account.parked_power_mw is None or not alone_mj + edge_mj:
            return self.parked_mj
        parked_mw = account.parked_power_mw
        above_idle_mw = max(0, parked_mw - (account.idle_power_mw or 0))  # `edge` contains no idle power
        # Parked power x time, for the part of the time that the energy by each method stands for.
        parts = alone_mj * parked_mw + edge_mj * above_idle_mw
        available_mj = self.carried_mj + elapsed_ns * parts // sum(rose.values()) // NS_PER_S
        taken_mj = min(available_mj, alone_mj + edge_mj)
        self.parked_mj += taken_mj
        self.carried_mj = min(available_mj - taken_mj, parked_mw * CARRY_S)
        return self.parked_mj


@dataclass(frozen=True, slots=True)
class ParkedState:
    """The parked energy of a container on a device, as in the journal."""

    uuid: str
    container_id: str
    pod_uid: str
    container: str
    parked_mj: int

    @property
    def key(self) -> Place:
        """The identity of the container on the device."""
        return self.uuid, self.container_id, self.pod_uid, self.container


class ParkedBook:
    """Adds the parked part of their energy to containers."""

    def __init__(self) -> None:
        self._parts: dict[Place, ParkedPart] = {}
        self._resumed: dict[Place, int] = {}
        """Parked energy of a journal, until the container is booked."""
        self._shown: dict[Place, tuple[ContainerUse, ContainerUse]] = {}
        """Each container without and with its parked energy; built again only if one of them changes."""

    def state(self) -> list[ParkedState]:
        """A snapshot for the journal."""
        parked = self._resumed | {key: part.parked_mj for key, part in self._parts.items()}
        return [ParkedState(*key, parked_mj=mj) for key, mj in parked.items() if mj]

    def resume(self, states: Iterable[ParkedState]) -> None:
        """Start with the parked energy of a journal."""
        self._resumed = {state.key: state.parked_mj for state in states}

    def book(
        self, containers: tuple[ContainerUse, ...], accounts: Mapping[str, Account], now_ns: int
    ) -> tuple[ContainerUse, ...]:
        """The containers with their parked energy; a container counts from its first tick."""
        before, self._parts = self._parts, {}
        shown, self._shown = self._shown, {}
        booked = []
        for use in containers:
            owner, energy_mj = use.owner, dict(use.energy_mj)
            key = (use.device.uuid, owner.container_id, owner.pod_uid, owner.container)
            part = before.get(key) or ParkedPart(energy_mj, now_ns, self._resumed.pop(key, 0))
            self._parts[key] = part
            parked_mj = part.add(energy_mj, now_ns, accounts.get(use.device.gpu_uuid))
            last = shown.get(key)
            if last is None or last[0] is not use or last[1].parked_mj != parked_mj:
                last = use, replace(use, parked_mj=parked_mj) if parked_mj else use
            self._shown[key] = last
            booked.append(last[1])
        return tuple(booked)
