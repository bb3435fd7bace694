"""How much of a device is whose: parts that add up to what the device says, exactly.

What is nobody's (idle, unattributed, of processes outside containers, memory nobody lists) is the device's own part.
A device with one holder alone on it is not divided, but for energy, which is what the books say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpuledger.books.interval import apportion
from gpuledger.catalog.dialects.holders import NOBODY, Place, Whose
from gpuledger.model import ContainerUse

MIB = 1 << 20
Seat = tuple[int, Whose]
"""The number of a place, and who is there."""
K = TypeVar("K", Whose, Seat)


@dataclass(slots=True)
class Part:
    """One owner's part of one place, or the place's own."""

    place: Place
    whose: Whose
    utilization_pct: int | None = None
    memory_mib: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None


def fill(total: int, told: Mapping[K, int], nobody: K) -> dict[K, int]:
    """Each what is told of it, and nobody the rest; scaled down where more is told than there is."""
    rest = total - sum(told.values())
    return {**told, nobody: rest} if rest >= 0 else {**apportion(total, told), nobody: 0}


def divide(gpu: Place, instances: list[Place], *, pod_uid: bool) -> list[Part]:
    """All parts of a GPU and its MIG instances."""
    found: dict[Seat, Part] = {}
    seats = [gpu, *instances]

    def part(number: int, whose: Whose) -> Part:
        return found.setdefault((number, whose), Part(seats[number], whose))

    if gpu.reading.up:
        for whose, pct in _utilization(gpu).items():
            part(0, whose).utilization_pct = pct
        for seat, mw in _power(gpu, seats).items():
            part(*seat).power_mw = mw
        for seat, mib in _memory(gpu, instances).items():
            part(*seat).memory_mib = mib
    for seat, mj in _energy(gpu, seats, pod_uid=pod_uid).items():
        part(*seat).energy_mj = mj
    return list(found.values())


def _utilization(gpu: Place) -> dict[Whose, int]:
    """By share of the compute engine."""
    total = gpu.reading.utilization_pct
    if total is None:
        return {}
    if gpu.alone:
        return {gpu.holder: total}
    told = {}
    for whose, uses in gpu.uses.items():
        pct = [use.sm_pct for use in uses if use.processes]
        if None not in pct and (pct or (whose in gpu.waiting and gpu.reading.samples is not None)):
            told[whose] = sum(p for p in pct if p is not None)
    return fill(total, told, NOBODY)


def _memory(gpu: Place, instances: list[Place]) -> dict[Seat, int]:
    """By the memory of listed processes, in MiB."""
    parts: dict[Seat, int] = {}
    for number, place in enumerate(instances, 1):
        parts |= {(number, whose): mib for whose, mib in _memory_of(place).items()}
    if not instances:
        return {(0, whose): mib for whose, mib in _memory_of(gpu).items()}
    if gpu.reading.memory_used_bytes is not None:
        parts[0, NOBODY] = max(0, gpu.reading.memory_used_bytes // MIB - sum(parts.values()))
    return parts


def _memory_of(place: Place) -> dict[Whose, int]:
    used = place.reading.memory_used_bytes
    if used is None:
        return {}
    if place.alone:
        account = place.memory
        unknown = min(used, account.unknown_bytes or 0) if account is not None else 0
        told = {place.holder: used - unknown}
        if not unknown:
            return {place.holder: used // MIB}
    else:
        told = {}
        for whose, uses in place.uses.items():
            held = [use.memory_bytes for use in uses if use.processes]
            waits = whose in place.waiting and not any(use.inferred_bytes for use in uses)
            if None not in held and (held or (waits and place.reading.residents is not None)):
                told[whose] = sum(n for n in held if n is not None)
    weights = fill(used, told, NOBODY)
    return apportion(used // MIB, weights) if used else weights


def _power(gpu: Place, seats: list[Place]) -> dict[Seat, int]:
    """As the energy of the interval that was booked last."""
    total, account = gpu.reading.power_mw, gpu.account
    if total is None:
        return {}
    if gpu.alone:
        return {(0, gpu.holder): total}
    booked: dict[Seat, int] = {}
    for number, place in enumerate(seats):
        for whose, uses in place.uses.items():
            mj = sum(use.booked_mj for use in uses)
            if mj or whose in place.waiting or any(use.processes for use in uses):
                booked[number, whose] = mj
    whole = account.booked_mj if account is not None else 0
    if not whole:
        return {**dict.fromkeys(booked, 0), (0, NOBODY): total}
    return apportion(total, fill(whole, booked, (0, NOBODY)))


def _energy(gpu: Place, seats: list[Place], *, pod_uid: bool) -> dict[Seat, int]:
    account = gpu.account
    if account is None or account.energy_mj is None:
        return {}
    parts: dict[Seat, int] = {(0, NOBODY): account.unowned_mj}
    for number, place in enumerate(seats):
        for whose, uses in place.uses.items():
            if uses:  # no 0 for who waits: one of its name may have used some before, and goes on from there
                parts[number, whose] = sum(_energy_of(use, pod_uid=pod_uid) for use in uses)
    return parts


def _energy_of(use: ContainerUse, *, pod_uid: bool) -> int:
    """With that of earlier containers that carry the same labels: a counter must not fall when their rows go."""
    earlier_mj = use.earlier_mj + (0 if pod_uid else use.namesakes_mj)
    return sum(mj for _, mj in use.energy_mj) + earlier_mj
