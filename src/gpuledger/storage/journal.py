"""The journal: the state of the books as bytes, so that totals continue after a restart.

A journal is valid only within one boot: afterwards the driver counts from 0 again, and pids belong to other processes.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuledger.allocations.allocations import Entry
from gpuledger.allocations.claims import claim_key
from gpuledger.errors import JournalError
from gpuledger.ledger.ledger import LedgerState
from gpuledger.ledger.parked import ParkedState
from gpuledger.ledger.retention import Total
from gpuledger.ledger.rows import Row
from gpuledger.ledger.time import GpuTime
from gpuledger.model import BUSY, IDLE_REASONS, UNKNOWN_STATE, Device, Facts, Labelled, Owner, Resident
from gpuledger.storage.codec import parse, plain, record

VERSION = 3
LARGEST_BYTES = 1 << 24
"""Limit of the unpacked size, for writing and reading. A process takes about 300 bytes."""
STATES = frozenset({BUSY, *IDLE_REASONS, UNKNOWN_STATE})
GZIP = 31
"""zlib's number for gzip format with a checksum."""
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
    """A process on a device; `device` and `owner` are indexes into the lists of the state."""

    device: int
    owner: int
    start_ticks: int | None
    resident: Resident
    facts: Facts | None = None
    """Without the cgroup, which is read again if the process still runs."""
    energy_mj: Labelled = ()
    busy_ns: int | None = None
    active: bool | None = True
    seen_ns: int = 0
    gone_ns: int = 0


@dataclass(frozen=True, slots=True)
class TotalState:
    """The retired processes of a container on a device; `device` and `owner` are indexes."""

    device: int
    owner: int
    gone_ns: int = 0
    energy_mj: Labelled = ()
    busy_ns: int | None = None
    earlier_mj: int = 0
    namesakes_mj: int = 0


@dataclass(frozen=True, slots=True)
class AllocationState:
    """An allocation of a device; `device` and `owner` are indexes."""

    device: int
    owner: int
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
    """The state of the books after a tick. Older journals lack the last two fields."""

    boot_id: str
    time_ns: int
    """Time of the tick."""
    devices: tuple[Device, ...] = ()
    owners: tuple[Owner, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    rows: tuple[RowState, ...] = ()
    totals: tuple[TotalState, ...] = ()
    allocations: tuple[AllocationState, ...] = ()
    parked: tuple[ParkedState, ...] = ()
    monotonic_ns: int | None = None
    """Time of the tick on the clock that is never set."""


class _Index(Generic[T]):
    """Numbers for devices and owners, so that each is written once."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def of(self, item: T) -> int:
        return self._numbers.setdefault(item, len(self._numbers))

    def items(self) -> tuple[T, ...]:
        return tuple(self._numbers)


def pack(
    boot_id: str,
    time_ns: int,
    *,
    rows: Iterable[Row],
    totals: Iterable[Total],
    times: Mapping[str, GpuTime],
    ledgers: Mapping[str, LedgerState],
    allocations: Iterable[Entry] = (),
    parked: Iterable[ParkedState] = (),
    monotonic_ns: int | None = None,
) -> State:
    """The state of all books."""
    devices, owners = _Index[Device](), _Index[Owner]()
    row_states = [
        RowState(
            device=devices.of(row.device),
            owner=owners.of(row.owner),
            start_ticks=row.start_ticks,
            resident=row.resident,
            facts=row.facts,
            energy_mj=tuple(row.energy_mj.items()),
            busy_ns=row.busy_ns,
            active=row.active,
            seen_ns=row.seen_ns,
            gone_ns=row.gone_ns,
        )
        for row in rows
    ]
    total_states = [
        TotalState(
            device=devices.of(total.device),
            owner=owners.of(total.owner),
            gone_ns=total.gone_ns,
            energy_mj=tuple(total.energy_mj.items()),
            busy_ns=total.busy_ns,
            earlier_mj=total.earlier_mj,
            namesakes_mj=total.namesakes_mj,
        )
        for total in totals
    ]
    allocation_states = [
        AllocationState(
            device=devices.of(entry.device),
            owner=owners.of(entry.owner),
            started_ns=entry.started_ns,
            last_busy_ns=entry.last_busy_ns,
            idle_since_ns=entry.idle_since_ns,
            times_ns=tuple(entry.times_ns.items()),
            energy_mj=tuple(entry.energy_mj.items()),
            idle_gpu_ns=entry.idle_gpu_ns,
            period_gpu_ns=entry.period_gpu_ns,
            period_mj=entry.period_mj,
            unobserved_ns=entry.unobserved_ns,
            missing_ns=entry.missing_ns,
            away_ns=entry.away_ns,
            absent_mj=entry.absent_mj,
        )
        for entry in allocations
    ]
    gpus = [
        GpuState(uuid=uuid, ledger=ledgers.get(uuid), busy_ns=time.busy_ns, in_use_ns=time.in_use_ns)
        for uuid, time in times.items()
    ]
    return State(
        boot_id=boot_id,
        time_ns=time_ns,
        devices=devices.items(),
        owners=owners.items(),
        gpus=tuple(gpus),
        rows=tuple(row_states),
        totals=tuple(total_states),
        allocations=tuple(allocation_states),
        parked=tuple(parked),
        monotonic_ns=monotonic_ns,
    )


def unpack_rows(state: State, now_ns: int) -> list[Row]:
    """The rows. `seen_ns` moves by the time in which the exporter did not run, so that no sample seems to be newer."""
    pause_ns = now_ns - state.time_ns
    return [
        Row(
            device=state.devices[saved.device],
            gpu=state.devices[saved.device].gpu_uuid,
            pid=saved.resident.pid,
            start_ticks=saved.start_ticks,
            number=number,
            resident=saved.resident,
            facts=saved.facts,
            owner=state.owners[saved.owner],
            energy_mj=dict(saved.energy_mj),
            busy_ns=saved.busy_ns,
            active=False if saved.active is False else None,
            seen_ns=saved.seen_ns + pause_ns,
            gone_ns=saved.gone_ns,
            resumed=True,
        )
        for number, saved in enumerate(state.rows, start=1)
    ]


def unpack_totals(state: State) -> list[Total]:
    """The totals of containers."""
    return [
        Total(
            device=state.devices[saved.device],
            owner=state.owners[saved.owner],
            gone_ns=saved.gone_ns,
            energy_mj=dict(saved.energy_mj),
            busy_ns=saved.busy_ns,
            earlier_mj=saved.earlier_mj,
            namesakes_mj=saved.namesakes_mj,
        )
        for saved in state.totals
    ]


def unpack_allocations(state: State) -> list[Entry]:
    """The allocations."""
    return [
        Entry(
            device=state.devices[saved.device],
            owner=state.owners[saved.owner],
            started_ns=saved.started_ns,
            last_busy_ns=saved.last_busy_ns,
            idle_since_ns=saved.idle_since_ns,
            times_ns=dict(saved.times_ns),
            energy_mj=dict(saved.energy_mj),
            idle_gpu_ns=saved.idle_gpu_ns,
            period_gpu_ns=saved.period_gpu_ns,
            period_mj=saved.period_mj,
            unobserved_ns=saved.unobserved_ns,
            missing_ns=saved.missing_ns,
            away_ns=saved.away_ns,
            absent_mj=saved.absent_mj,
        )
        for saved in state.allocations
    ]


def encode(state: State) -> bytes:
    """The bytes of a journal; JournalError if they exceed the limit."""
    data = plain(state, "rows")
    data["rows"] = [_plain_row(row) for row in state.rows]
    text = json.dumps({"gpuledger": "journal", "version": VERSION, **data}, separators=(",", ":")).encode()
    if len(text) > LARGEST_BYTES:
        raise JournalError(
            f"{len(text) >> 20} MiB unpacked, but the limit is {LARGEST_BYTES >> 20} MiB",
            "lower --metric-retention",
            "too_large",
        )
    return zipped(text)


def zipped(text: bytes) -> bytes:
    """The text in gzip format."""
    packer = zlib.compressobj(1, wbits=GZIP)
    return packer.compress(text) + packer.flush()


def _plain_row(row: RowState) -> dict[str, Any]:
    data = plain(row, "facts")
    if row.facts is not None:
        data["facts"] = plain(row.facts, "cgroup")
    return data


def decode(data: bytes) -> State:
    """The state in a journal; JournalError if it cannot be used."""
    try:
        fields = parse(unzipped(data, LARGEST_BYTES))
        check_header(fields, "journal", VERSION, "not a gpuledger journal")
        state = record(State, fields)
        _check(state)
    except (ValueError, TypeError) as error:
        raise JournalError(f"damaged: {error}", kind="damaged") from None
    return state


def check_header(fields: dict[str, Any], kind: str, version: int, other: str) -> None:
    """Remove kind and version from the fields of a file; JournalError (`other`) if it is another kind or version."""
    if fields.pop("gpuledger", None) != kind:
        raise JournalError(other, kind="damaged")
    found = fields.pop("version", None)
    if found != version:
        raise JournalError(f"format version {found!r}, but this gpuledger reads version {version}", kind="version")


def unzipped(data: bytes, most_bytes: int) -> str:
    """The text in gzip format; JournalError if it is damaged or longer than `most_bytes`."""
    unpacker = zlib.decompressobj(wbits=GZIP)
    try:
        text = unpacker.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise JournalError(f"damaged or not in gzip format: {error}", kind="damaged") from None
    if len(text) > most_bytes:
        raise JournalError(f"unpacks to more than {most_bytes >> 20} MiB", kind="too_large")
    if not unpacker.eof:
        raise JournalError("truncated", kind="damaged")
    if unpacker.unused_data:
        raise JournalError("damaged: bytes follow its end", kind="damaged")
    return text.decode()


def _check(state: State) -> None:
    """Check that indexes are valid, keys unique, numbers not negative, and that the ledgers balance."""
    references = [(row.device, row.owner) for row in state.rows]
    references += [(total.device, total.owner) for total in state.totals]
    references += [(allocation.device, allocation.owner) for allocation in state.allocations]
    alone = [gpu.ledger.alone for gpu in state.gpus if gpu.ledger is not None and gpu.ledger.alone is not None]
    if (
        any(not (0 <= d < len(state.devices) and 0 <= o < len(state.owners)) for d, o in references)
        or any(not 0 <= number < len(state.rows) for number in alone)
    ):  # fmt: skip
        raise ValueError("a reference is invalid")
    places = {(state.devices[row.device].uuid, row.resident.pid) for row in state.rows}
    if len({gpu.uuid for gpu in state.gpus}) != len(state.gpus) or len(places) != len(state.rows):
        raise ValueError("a GPU or process occurs twice")
    _check_allocations(state)
    _sum((), *(entry.parked_mj for entry in state.parked))
    balance_mj: Counter[str] = Counter()
    for row in state.rows:
        balance_mj[state.devices[row.device].gpu_uuid] += _sum(row.energy_mj, row.busy_ns)
    for total in state.totals:
        _sum(total.energy_mj, total.busy_ns, total.earlier_mj, total.namesakes_mj)
    for gpu in state.gpus:
        _sum((), gpu.busy_ns, gpu.in_use_ns)
        if (ledger := gpu.ledger) is not None:
            accounts = (("idle", ledger.idle_mj), ("retired", ledger.retired_mj), *ledger.unattributed_mj)
            booked_mj = _sum(accounts, ledger.open_mj, ledger.gone_mj, ledger.unowned_mj)
            meter = ledger.meter
            _sum((), ledger.idle_power_mw, ledger.parked_power_mw, meter.limit_mw)
            _sum((), meter.still_ns, meter.still_mw_ns, meter.stuck_mj)
            balance_mj[gpu.uuid] += booked_mj - ledger.energy_mj
    if any(balance_mj.values()):
        raise ValueError("the accounts of a GPU do not add up to its energy")


def _check_allocations(state: State) -> None:
    keys = {claim_key(state.devices[a.device], state.owners[a.owner]) for a in state.allocations}
    if len(keys) != len(state.allocations):
        raise ValueError("an allocation occurs twice")
    for allocation in state.allocations:
        if not {name for name, _ in (*allocation.times_ns, *allocation.energy_mj)} <= STATES:
            raise ValueError("an allocation has an unknown state")
        _sum(allocation.times_ns, allocation.started_ns, allocation.last_busy_ns, allocation.idle_since_ns)
        _sum(allocation.energy_mj, allocation.idle_gpu_ns, allocation.period_gpu_ns, allocation.period_mj)
        _sum((), allocation.unobserved_ns, allocation.missing_ns, allocation.away_ns, allocation.absent_mj)


def _sum(numbers: Labelled, *others: int | None) -> int:
    """The sum of `numbers`; ValueError if one of them or of `others` is negative."""
    if any(number < 0 for _, number in numbers) or any(number is not None and number < 0 for number in others):
        raise ValueError("a number is negative")
    return sum(number for _, number in numbers)
