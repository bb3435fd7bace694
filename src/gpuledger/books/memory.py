"""Whose the memory is: what the driver lists, what contexts need beside it, and what somebody holds who is not listed.

Unknown memory is inferred to those who may hold it and have no listed process on the device, best evidence first, in
equal parts among those with the best. It is a guess, and is shown as one, with how many it was split among.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpuledger.books.rows import cut_gpus, own_residents
from gpuledger.books.shares import equally
from gpuledger.holders import memory_candidates, owner_key
from gpuledger.model import (
    ContainerUse,
    Device,
    Holder,
    MemoryAccount,
    Owner,
    Reading,
    Resident,
    Tick,
)

MIB = 1 << 20
TOLERANCE_BYTES = 64 * MIB
TOLERANCE_EACH_BYTES = 16 * MIB
"""A listed process's context needs 6 MB beside what it is listed with, and the first 3 MB more (H200); no context of
which nothing is listed is as small as this."""
RESERVED_MOST_BYTES = 1024 * MIB
"""Where the driver does not tell what it keeps for itself (only the v1 call works), used memory has that in it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the book says of one tick."""

    accounts: dict[str, MemoryAccount]
    """By device."""
    inferred: tuple[tuple[Device, Owner, int], ...]
    """Containers with the memory they are taken to hold."""
    hidden: frozenset[str]
    """GPUs on which somebody is whom the driver does not list."""


class MemoryBook:
    """Keeps only what no list explained a tick ago."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def book(self, tick: Tick) -> Found:
        """Whose the memory of each device is."""
        cut = cut_gpus(tick)
        holders: dict[str, list[Holder]] = {}
        for holder in tick.owners.holders:
            holders.setdefault(holder.device.uuid, []).append(holder)
        instances: dict[str, list[Resident]] = {}
        for reading in tick.readings:
            instances.setdefault(reading.device.parent_uuid, []).extend(reading.residents or ())
        accounts: dict[str, MemoryAccount] = {}
        inferred: list[tuple[Device, Owner, int]] = []
        hidden: set[str] = set()
        gaps: dict[str, int] = {}
        for reading in tick.readings:
            uuid = reading.device.uuid
            if not reading.up or reading.residents is None:
                continue
            residents = own_residents(reading, has_migs=uuid in cut) + instances.get(uuid, [])
            known = sum(r.memory_bytes or 0 for r in residents)
            if reading.memory_used_bytes is None:
                accounts[uuid] = MemoryAccount(known)
                continue
            gaps[uuid] = gap = max(0, reading.memory_used_bytes - known)
            # The smaller of two ticks: memory is read before the lists, and a process may go in between.
            lasting = min(gap, self._before.get(uuid, gap))
            unknown = lasting if lasting > _tolerance(reading, len(residents), cut=uuid in cut) else 0
            shares: list[tuple[Owner, int]] = []
            candidates = 0
            if unknown:
                if all(r.memory_bytes is not None for r in residents):  # else it may be theirs
                    hidden.add(reading.device.gpu_uuid)
                if uuid not in cut:
                    shares, candidates = infer(unknown, residents, holders.get(uuid, ()), tick)
            inferred += [(reading.device, owner, held) for owner, held in shares]
            accounts[uuid] = MemoryAccount(known, unknown, gap - unknown, sum(held for _, held in shares), candidates)
        self._before = gaps
        return Found(accounts, tuple(inferred), frozenset(hidden))


def _tolerance(reading: Reading, residents: int, *, cut: bool) -> int:
    """MIG instances need memory with nobody on them: published outputs of an A100 show 36 to 107 MiB each."""
    instances = (reading.memory_total_bytes or 0) // 256 if cut or reading.device.parent_uuid else 0
    reserved = RESERVED_MOST_BYTES if reading.memory_reserved_bytes is None else 0
    return TOLERANCE_BYTES + TOLERANCE_EACH_BYTES * residents + reserved + instances


def infer(
    unknown_bytes: int, residents: Sequence[Resident], holders: Iterable[Holder], tick: Tick
) -> tuple[list[tuple[Owner, int]], int]:
    """The containers that hold it, each with its part, and among how many it was split.

    Processes outside of containers count too, and keep their part to themselves: it stays unknown. So do those that
    are listed without their memory; they come before everybody else.
    """
    best = memory_candidates(residents, holders, tick.owners.by_pid)
    parts = equally(unknown_bytes, best) if best else {}
    return [(owner, parts[key]) for key, owner in best.items() if _is_container(owner)], len(best)


def _is_container(owner: Owner) -> bool:
    return bool(owner.container_id or owner.container)


def with_inferred(tick: Tick, found: Found) -> tuple[ContainerUse, ...]:
    """The tick's containers, and those that are only inferred to be on a device."""
    if not found.inferred:
        return tick.containers
    uses = list(tick.containers)
    for device, owner, held in found.inferred:
        here = (i for i, use in enumerate(uses) if use.device.uuid == device.uuid and _is_same(use.owner, owner))
        if (number := next(here, None)) is not None:
            uses[number] = replace(uses[number], inferred_bytes=held)
        else:
            uses.append(ContainerUse(device, owner, 0, None, None, inferred_bytes=held))
    return tuple(uses)


def _is_same(one: Owner, other: Owner) -> bool:
    """A container that was started again has the names of the one before, and another id."""
    if one.container_id and other.container_id:
        return one.container_id == other.container_id
    return owner_key(one, None) == owner_key(other, None)
