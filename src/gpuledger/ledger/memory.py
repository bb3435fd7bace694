"""Memory accounts: memory of listed processes, overhead of their contexts, and memory of unlisted processes.

Unknown memory is attributed, in equal shares, to the containers without a listed process on the device that have the
best evidence for holding it. Metrics show it as inferred, with the number of candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuledger.ledger.rows import own_residents, partitioned_gpus
from gpuledger.ledger.split import equally
from gpuledger.model import Device, Holder, MemoryAccount, Owner, Reading, Resident, Tick
from gpuledger.model.holders import memory_candidates, owner_key
from gpuledger.model.record import dataclass

MIB = 1 << 20
TOLERANCE_BYTES = 64 * MIB
TOLERANCE_EACH_BYTES = 16 * MIB
"""The context of a listed process uses 6 MB beyond its listed memory, that of the first process 9 MB (H200). The
context of an unlisted process is always larger than these tolerances."""
RESERVED_MOST_BYTES = 1024 * MIB
"""If the driver does not report reserved memory (only the v1 call works), used memory includes it."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """A container inferred to hold memory of a device."""

    device: Device
    owner: Owner
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory accounts of one tick."""

    accounts: dict[str, MemoryAccount]
    """By uuid of the device."""
    inferred: tuple[Inferred, ...]
    hidden: frozenset[str]
    """uuids of GPUs with a process that the driver does not list."""


class MemoryBook:
    """Compares used memory with that of the listed processes. Keeps the difference of the previous tick."""

    def __init__(self) -> None:
        self._gaps: dict[str, int] = {}

    def book(self, tick: Tick) -> Memory:
        """The memory accounts of every device."""
        partitioned = partitioned_gpus(tick)
        holders: dict[str, list[Holder]] = {}
        for holder in tick.owners.holders:
            holders.setdefault(holder.device.uuid, []).append(holder)
        mig_residents: dict[str, list[Resident]] = {}
        for reading in tick.readings:
            mig_residents.setdefault(reading.device.parent_uuid, []).extend(reading.residents or ())
        accounts: dict[str, MemoryAccount] = {}
        inferred: list[Inferred] = []
        hidden: set[str] = set()
        gaps: dict[str, int] = {}
        for reading in tick.readings:
            uuid = reading.device.uuid
            if not reading.up or reading.residents is None:
                continue
            residents = own_residents(reading, has_migs=uuid in partitioned) + mig_residents.get(uuid, [])
            known = sum(resident.memory_bytes or 0 for resident in residents)
            if reading.memory_used_bytes is None:
                accounts[uuid] = MemoryAccount(known_bytes=known)
                continue
            gaps[uuid] = gap = max(0, reading.memory_used_bytes - known)
            # The minimum of two ticks: memory is read before the lists, and a process may exit in between.
            lasting = min(gap, self._gaps.get(uuid, gap))
            has_migs = uuid in partitioned
            unknown = lasting if lasting > _tolerance(reading, len(residents), has_migs=has_migs) else 0
            shares: list[tuple[Owner, int]] = []
            candidates = 0
            if unknown:
                # A process that is listed without its memory may hold the unknown memory.
                if all(resident.memory_bytes is not None for resident in residents):
                    hidden.add(reading.device.gpu_uuid)
                if not has_migs:
                    shares, candidates = infer(unknown, residents, holders.get(uuid, ()), tick)
            inferred += [Inferred(device=reading.device, owner=owner, memory_bytes=held) for owner, held in shares]
            accounts[uuid] = MemoryAccount(
                known_bytes=known,
                unknown_bytes=unknown,
                overhead_bytes=gap - unknown,
                inferred_bytes=sum(held for _, held in shares),
                candidates=candidates,
            )
        self._gaps = gaps
        return Memory(accounts=accounts, inferred=tuple(inferred), hidden=frozenset(hidden))


def _tolerance(reading: Reading, residents: int, *, has_migs: bool) -> int:
    """Overhead of listed processes and MIG instances. An idle MIG instance uses 36 to 107 MiB (A100)."""
    instances = (reading.memory_total_bytes or 0) // 256 if has_migs or reading.device.parent_uuid else 0
    reserved = RESERVED_MOST_BYTES if reading.memory_reserved_bytes is None else 0
    return TOLERANCE_BYTES + TOLERANCE_EACH_BYTES * residents + reserved + instances


def infer(
    unknown_bytes: int, residents: Sequence[Resident], holders: Iterable[Holder], tick: Tick
) -> tuple[list[tuple[Owner, int]], int]:
    """The containers that hold unknown memory, each with its share, and the number of candidates.

    Candidates are processes listed without their memory, or else the holders with the best evidence. The share of a
    candidate outside of containers remains unknown.
    """
    candidates = memory_candidates(residents, holders, tick.owners.by_pid)
    shares = equally(unknown_bytes, candidates) if candidates else {}
    containers = [(owner, shares[key]) for key, owner in candidates.items() if owner.container_id or owner.container]
    return containers, len(candidates)


def is_same_container(owner: Owner, other: Owner) -> bool:
    """Whether two owners are the same container: by id if both have one, else by name."""
    if owner.container_id and other.container_id:
        return owner.container_id == other.container_id
    return owner_key(owner, None) == owner_key(other, None)
