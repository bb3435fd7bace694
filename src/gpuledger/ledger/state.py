"""The state of the books that survives a restart: plain records, which `storage` writes to the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

from gpuledger.ledger.ledger import LedgerState
from gpuledger.model import Device, Facts, Labelled, Owner, Resident

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU; `ledger` is None until the GPU has reported energy or power."""

    uuid: str
    ledger: LedgerState | None = None
    busy_ns: int | None = None
    in_use_ns: int = 0


@dataclass(frozen=True, slots=True)
class RowState:
    """A process on a device."""

    device: Device
    owner: Owner
    start_ticks: int | None
    resident: Resident
    facts: Facts | None = None
    energy_mj: Labelled = ()
    parked_mj: int = 0
    busy_ns: int | None = None
    active: bool | None = True
    seen_ns: int = 0
    gone_ns: int = 0


@dataclass(frozen=True, slots=True)
class TotalState:
    """The retired processes of a container on a device."""

    device: Device
    owner: Owner
    gone_ns: int = 0
    energy_mj: Labelled = ()
    parked_mj: int = 0
    busy_ns: int | None = None
    earlier_mj: int = 0
    namesakes_mj: int = 0


@dataclass(frozen=True, slots=True)
class AllocationState:
    """An allocation of a device."""

    device: Device
    owner: Owner
    started_ns: int
    last_busy_ns: int | None = None
    idle_since_ns: int | None = None
    times_ns: Labelled = ()
    energy_mj: Labelled = ()
    idle_gpu_ns: int = 0
    period_gpu_ns: int = 0
    period_mj: int = 0
    unobserved_ns: int = 0
    missing_ns: int = 0
    away_ns: int = 0
    absent_mj: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """The state of all books after a tick."""

    boot_id: str
    time_ns: int
    """Time of the tick."""
    gpus: tuple[GpuState, ...] = ()
    rows: tuple[RowState, ...] = ()
    totals: tuple[TotalState, ...] = ()
    allocations: tuple[AllocationState, ...] = ()
    monotonic_ns: int | None = None
    """Time of the tick on the clock that is never set."""


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def frozen(kind: Callable[..., T], record: object) -> T:
    """The fields of `record` that `kind` has, with tuples in place of its dictionaries."""
    values = (getattr(record, name) for name in _names(kind))
    return kind(*(tuple(value.items()) if isinstance(value, dict) else value for value in values))


def thawed(state: RowState | TotalState | AllocationState) -> dict[str, Any]:
    """The values of a record that `frozen` made, by field."""
    values = ((name, getattr(state, name)) for name in _names(type(state)))  # type: ignore[arg-type]  # a class is hashable
    return {name: dict(value) if isinstance(value, tuple) else value for name, value in values}
