"""The journal: the books as bytes, and books that go on from them.

Only within one boot: after another the driver counts from 0 again, and a pid is somebody else's.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from typing import Any, Generic, TypeVar

from gpuledger.books.energy import EnergyBook
from gpuledger.books.kept import KeptGpu, KeptRow, KeptTotal, State
from gpuledger.books.retention import Retention, Total
from gpuledger.books.rows import Row, Rows
from gpuledger.books.time import GpuTime, TimeBook
from gpuledger.errors import JournalError
from gpuledger.model import Device, Labelled, Owner
from gpuledger.records import parse, plain, record

VERSION = 2
LARGEST_BYTES = 1 << 24
"""Unpacked; a process takes some 300. What would be larger is not written, and not read."""
GZIP = 31
"""For zlib: with gzip's head, and the checksum at its end."""
T = TypeVar("T")


class _Numbers(Generic[T]):
    """Devices and owners are those of many rows; each is written once."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}

    def of(self, thing: T) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    def things(self) -> tuple[T, ...]:
        return tuple(self._numbers)


def keep(boot_id: str, time_ns: int, *, rows: Rows, time: TimeBook, energy: EnergyBook, retention: Retention) -> State:
    """The books as they are after a tick."""
    devices, owners = _Numbers[Device](), _Numbers[Owner]()
    everybody = rows.all()
    kept_rows = [
        KeptRow(
            devices.of(row.device),
            owners.of(row.owner),
            row.start_ticks,
            row.resident,
            row.facts,
            tuple(row.energy_mj.items()),
            row.busy_ns,
            row.active,
            row.seen_ns,
        )
        for row in everybody
    ]
    totals = [
        KeptTotal(
            devices.of(total.device),
            owners.of(total.owner),
            total.seen_ns,
            tuple(total.energy_mj.items()),
            total.busy_ns,
            total.earlier_mj,
            total.namesakes_mj,
        )
        for total in retention.totals.values()
    ]
    numbers = {row: number for number, row in enumerate(everybody)}
    gpus = []
    for uuid, gpu in time.gpus.items():
        ledger = energy.ledgers.get(uuid)
        gpus.append(KeptGpu(uuid, None if ledger is None else ledger.keep(numbers), gpu.busy_ns, gpu.in_use_ns))
    return State(boot_id, time_ns, devices.things(), owners.things(), tuple(gpus), tuple(kept_rows), tuple(totals))


def resume(state: State, now_ns: int, *, rows: Rows, time: TimeBook, energy: EnergyBook, retention: Retention) -> None:
    """Go on in new books where others ended.

    How long ago a process was seen is told by the time that the books were open: none is dropped because nobody looked.
    """
    past_ns = now_ns - state.time_ns
    met = [
        Row(
            state.devices[kept.device],
            state.devices[kept.device].gpu_uuid,
            kept.resident.pid,
            kept.start_ticks,
            number,
            kept.resident,
            kept.facts,
            state.owners[kept.owner],
            dict(kept.energy_mj),
            kept.busy_ns,
            active=False if kept.active is False else None,
            seen_ns=kept.seen_ns + past_ns,
            resumed=True,
        )
        for number, kept in enumerate(state.rows, start=1)
    ]
    rows.resume(met)
    for gpu in state.gpus:
        time.gpus[gpu.uuid] = GpuTime(gpu.busy_ns, None, gpu.in_use_ns)
        if gpu.ledger is not None:
            alone = gpu.ledger.alone
            energy.ledger(gpu.uuid).resume(gpu.ledger, None if alone is None else met[alone])
    for total in state.totals:
        device, owner = state.devices[total.device], state.owners[total.owner]
        retention.totals[owner.container_id, device.uuid] = Total(
            device,
            owner,
            total.seen_ns + past_ns,
            dict(total.energy_mj),
            total.busy_ns,
            earlier_mj=total.earlier_mj,
            namesakes_mj=total.namesakes_mj,
        )


def encode(state: State) -> bytes:
    """The journal's bytes; JournalError when there would be too many."""
    found = plain(state, "rows")
    found["rows"] = [_row(row) for row in state.rows]
    text = json.dumps({"gpuledger": "journal", "version": VERSION, **found}, separators=(",", ":")).encode()
    if len(text) > LARGEST_BYTES:
        raise JournalError(f"it would have {len(text) >> 20} MiB unpacked, and {LARGEST_BYTES >> 20} are the most")
    packer = zlib.compressobj(1, wbits=GZIP)
    return packer.compress(text) + packer.flush()


def _row(row: KeptRow) -> dict[str, Any]:
    found = plain(row, "facts")
    if row.facts is not None:
        found["facts"] = plain(row.facts, "cgroup")  # if the process lives it is read again
    return found


def decode(data: bytes) -> State:
    """What was encoded; JournalError says why that cannot be told."""
    try:
        found = parse(_unpacked(data))
        if found.pop("gpuledger", None) != "journal":
            raise JournalError("it is no journal of gpuledger")
        version = found.pop("version", None)
        if version != VERSION:
            raise JournalError(f"it has format version {version!r}, and this gpuledger knows {VERSION}")
        state = record(State, found)
        _check(state)
    except (ValueError, TypeError) as error:
        raise JournalError(f"it is damaged: {error}") from None
    return state


def _unpacked(data: bytes) -> str:
    unpacker = zlib.decompressobj(wbits=GZIP)
    try:
        text = unpacker.decompress(data, LARGEST_BYTES + 1)
    except zlib.error as error:
        raise JournalError(f"it is damaged or no journal: {error}") from None
    if len(text) > LARGEST_BYTES:
        raise JournalError(f"it unpacks to more than {LARGEST_BYTES >> 20} MiB")
    if not unpacker.eof:
        raise JournalError("it is truncated")
    if unpacker.unused_data:
        raise JournalError("it is damaged: something follows its end")
    return text.decode()


def _check(state: State) -> None:
    """Whether the books can go on from it: references lead somewhere, nothing is negative, and the sums match."""
    references = [(kept.device, kept.owner) for kept in state.rows] + [(t.device, t.owner) for t in state.totals]
    alone = [gpu.ledger.alone for gpu in state.gpus if gpu.ledger is not None and gpu.ledger.alone is not None]
    if (
        any(not (0 <= device < len(state.devices) and 0 <= o < len(state.owners)) for device, o in references)
        or any(not 0 <= number < len(state.rows) for number in alone)
    ):  # fmt: skip
        raise ValueError("it refers to something that is not in it")
    places = {(state.devices[row.device].uuid, row.resident.pid) for row in state.rows}
    if len({gpu.uuid for gpu in state.gpus}) != len(state.gpus) or len(places) != len(state.rows):
        raise ValueError("something is in it twice")
    used_mj: Counter[str] = Counter()
    for row in state.rows:
        used_mj[state.devices[row.device].gpu_uuid] += _sum(row.energy_mj, row.busy_ns)
    for total in state.totals:
        _sum(total.energy_mj, total.busy_ns, total.earlier_mj, total.namesakes_mj)
    for gpu in state.gpus:
        _sum((), gpu.busy_ns, gpu.in_use_ns)
        if (ledger := gpu.ledger) is not None:
            accounts = (("idle", ledger.idle_mj), ("retired", ledger.retired_mj), *ledger.unattributed_mj)
            used_mj[gpu.uuid] += _sum(accounts, ledger.open_mj, ledger.gone_mj, ledger.unowned_mj) - ledger.energy_mj
    if any(used_mj.values()):
        raise ValueError("its sums do not match")


def _sum(numbers: Labelled, *others: int | None) -> int:
    """All of the numbers; neither they nor the others may be negative."""
    if any(number < 0 for _, number in numbers) or any(number is not None and number < 0 for number in others):
        raise ValueError("a number in it is negative")
    return sum(number for _, number in numbers)
