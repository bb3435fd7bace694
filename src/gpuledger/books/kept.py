"""What the books keep over a restart: enough to go on as if they had never been closed."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model import Device, Facts, Labelled, Owner, Resident


@dataclass(frozen=True, slots=True)
class KeptMeter:
    """How far a GPU's energy was read."""

    source: str = ""
    at_ns: int = 0
    counter_mj: int = 0
    booked_mj: int = 0
    power_mw: int | None = None
    limit_mw: int | None = None
    mw_ns: int = 0
    checked_counter_mj: int = 0
    checked_mw_ns: int = 0


@dataclass(frozen=True, slots=True)
class KeptLedger:
    """The accounts of a GPU."""

    meter: KeptMeter
    since_ns: int
    """Since when its energy is not booked yet."""
    open_mj: int = 0
    """That energy, up to the meter's last reading."""
    alone: int | None = None
    """The row of the one process that was there all that time."""
    energy_mj: int = 0
    idle_mj: int = 0
    retired_mj: int = 0
    gone_mj: int = 0
    unowned_mj: int = 0
    unattributed_mj: Labelled = ()
    idle_power_mw: int | None = None
    parked_power_mw: int | None = None


@dataclass(frozen=True, slots=True)
class KeptGpu:
    """A GPU; without a ledger as long as it told neither energy nor power."""

    uuid: str
    ledger: KeptLedger | None = None
    busy_ns: int | None = None
    in_use_ns: int = 0


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A process on a device; devices and owners by their numbers in the state."""

    device: int
    owner: int
    start_ticks: int | None
    resident: Resident
    facts: Facts | None = None
    """Without the cgroup, which is read again if the process lives."""
    energy_mj: Labelled = ()
    busy_ns: int | None = None
    active: bool | None = True
    seen_ns: int = 0


@dataclass(frozen=True, slots=True)
class KeptTotal:
    """What retired processes of a container used on a device, and containers of its name before it."""

    device: int
    owner: int
    seen_ns: int
    energy_mj: Labelled = ()
    busy_ns: int | None = None
    earlier_mj: int = 0
    namesakes_mj: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """All books after a tick."""

    boot_id: str
    time_ns: int
    """Of the tick."""
    devices: tuple[Device, ...] = ()
    owners: tuple[Owner, ...] = ()
    gpus: tuple[KeptGpu, ...] = ()
    rows: tuple[KeptRow, ...] = ()
    totals: tuple[KeptTotal, ...] = ()
