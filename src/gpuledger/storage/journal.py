"""The journal: the state of the books as bytes, so that totals continue after a restart.

A journal is valid only within one boot: afterwards the driver counts from 0 again, and pids belong to other processes.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any

from gpuledger.errors import JournalError
from gpuledger.ledger.state import State
from gpuledger.model import BUSY, IDLE_REASONS, UNKNOWN_STATE, Device, Labelled, Owner, allocation_key
from gpuledger.storage.codec import numbered_from, parse, plain, record, records

VERSION = 4
WALL_CLOCK_VERSION = 3
"""It has intervals on the wall clock, and parked energy apart from the totals, which is dropped."""
LARGEST_BYTES = 1 << 24
"""Limit of the unpacked size, for writing and reading. A process takes about 300 bytes."""
STATES = frozenset({BUSY, *IDLE_REASONS, UNKNOWN_STATE})
GZIP = 31
"""zlib's number for gzip format with a checksum."""


def encode(state: State) -> bytes:
    """The bytes of a journal; JournalError if they exceed the limit.

    Cgroups are left out: they are long, and read again if the process still runs.
    """
    devices: dict[Device, int] = {}
    owners: dict[Owner, int] = {}
    data = plain(state, {Device: devices, Owner: owners}, omit="cgroup")
    lists = {"devices": numbered_from(0, devices), "owners": numbered_from(0, owners)}
    text = json.dumps({"gpuledger": "journal", "version": VERSION, **data, **lists}, separators=(",", ":")).encode()
    if len(text) > LARGEST_BYTES:
        raise JournalError(
            f"{len(text) >> 20} MiB unpacked, but the limit is {LARGEST_BYTES >> 20} MiB",
            "lower --metric-retention",
            "too_large",
        )
    return zipped(text)


def decode(data: bytes) -> State:
    """The state in a journal; JournalError if it cannot be used."""
    try:
        fields = parse(unzipped(data, LARGEST_BYTES))
        is_old = fields.get("version") == WALL_CLOCK_VERSION
        if is_old:
            fields.pop("parked", None)
        check_header(fields, "journal", WALL_CLOCK_VERSION if is_old else VERSION, "not a gpuledger journal")
        devices = records(Device, fields.pop("devices", []), "devices")
        owners = records(Owner, fields.pop("owners", []), "owners")
        state = record(State, fields, {Device: devices, Owner: owners})
        _check(state)
        if is_old:
            _use_monotonic_clock(state)
    except IndexError:
        raise JournalError("damaged: a reference is invalid", kind="damaged") from None
    except (ValueError, TypeError) as error:
        raise JournalError(f"damaged: {error}", kind="damaged") from None
    return state


def _use_monotonic_clock(state: State) -> None:
    """Convert the ledgers of a journal of WALL_CLOCK_VERSION."""
    offset_ns = 0 if state.monotonic_ns is None else state.time_ns - state.monotonic_ns
    for gpu in state.gpus:
        if gpu.ledger is not None:
            gpu.ledger.since_ns -= offset_ns
            gpu.ledger.meter.at_ns -= offset_ns


def check_header(fields: dict[str, Any], kind: str, version: int, other: str) -> None:
    """Remove kind and version from the fields of a file; JournalError (`other`) if it is another kind or version."""
    if fields.pop("gpuledger", None) != kind:
        raise JournalError(other, kind="damaged")
    found = fields.pop("version", None)
    if found != version:
        raise JournalError(f"format version {found!r}, but this gpuledger reads version {version}", kind="version")


def zipped(text: bytes) -> bytes:
    """The text in gzip format."""
    packer = zlib.compressobj(1, wbits=GZIP)
    return packer.compress(text) + packer.flush()


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
    """Check that keys are unique, numbers not negative, and that the ledgers balance."""
    alone = [gpu.ledger.alone for gpu in state.gpus if gpu.ledger is not None and gpu.ledger.alone is not None]
    if any(not 0 <= number < len(state.rows) for number in alone):
        raise ValueError("a reference is invalid")
    places = {(row.device.uuid, row.resident.pid) for row in state.rows}
    if len({gpu.uuid for gpu in state.gpus}) != len(state.gpus) or len(places) != len(state.rows):
        raise ValueError("a GPU or process occurs twice")
    _check_allocations(state)
    balance_mj: Counter[str] = Counter()
    for row in state.rows:
        balance_mj[row.device.gpu_uuid] += _sum(row.energy_mj, row.parked_mj, row.busy_ns)
    for total in state.totals:
        _sum(total.energy_mj, total.parked_mj, total.busy_ns, total.earlier_mj, total.namesakes_mj)
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
    if len({allocation_key(entry.device, entry.owner) for entry in state.allocations}) != len(state.allocations):
        raise ValueError("an allocation occurs twice")
    for entry in state.allocations:
        if not {name for name, _ in (*entry.times_ns, *entry.energy_mj)} <= STATES:
            raise ValueError("an allocation has an unknown state")
        _sum(entry.times_ns, entry.started_ns, entry.last_busy_ns, entry.idle_since_ns)
        _sum(entry.energy_mj, entry.idle_gpu_ns, entry.period_gpu_ns, entry.period_mj)
        _sum((), entry.unobserved_ns, entry.missing_ns, entry.away_ns, entry.absent_mj)


def _sum(numbers: Labelled, *others: int | None) -> int:
    """The sum of `numbers`; ValueError if one of them or of `others` is negative."""
    if any(number < 0 for _, number in numbers) or any(number is not None and number < 0 for number in others):
        raise ValueError("a number is negative")
    return sum(number for _, number in numbers)
