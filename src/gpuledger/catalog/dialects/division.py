"""Divides the values of a device among the containers that hold it. The parts add up to the device's value exactly.

Values that belong to no container (idle and unattributed energy, processes outside of containers, unlisted memory) are
the part of NO_HOLDER. A device with a single holder is not divided, except for energy, which the books attribute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpuledger.ledger.split import apportion
from gpuledger.model import ContainerUse, Percentages
from gpuledger.model.holders import NO_HOLDER, HolderLabels, Holding
from gpuledger.shares.activity import NOTHING, divisible, remaining_activity, scaled, total_activity

MIB = 1 << 20
Seat = tuple[int, HolderLabels]
"""Number of a device (0 for the GPU, then its MIG instances) and one of its holders."""
K = TypeVar("K", HolderLabels, Seat)


@dataclass(slots=True)
class Part:
    """The values of one device that belong to one holder, or to NO_HOLDER."""

    holding: Holding
    labels: HolderLabels
    utilization_pct: int | None = None
    memory_bytes: int | None = None
    memory_mib: int | None = None
    """Whole mebibytes, which add up to those of the device."""
    power_mw: int | None = None
    energy_mj: int | None = None


def with_rest(total: int, amounts: Mapping[K, int], rest: K) -> dict[K, int]:
    """The amounts and, under the key `rest`, the remainder of the total; too large amounts are scaled down."""
    remainder = total - sum(amounts.values())
    return {**amounts, rest: remainder} if remainder >= 0 else {**apportion(total, amounts), rest: 0}


def divide(gpu: Holding, instances: Sequence[Holding], *, pod_uid: bool) -> list[Part]:
    """All parts of a GPU and its MIG instances."""
    parts: dict[Seat, Part] = {}
    devices = [gpu, *instances]

    def part(number: int, labels: HolderLabels) -> Part:
        return parts.setdefault((number, labels), Part(devices[number], labels))

    if gpu.reading.up:
        for labels, pct in _utilization(gpu).items():
            part(0, labels).utilization_pct = pct
        for seat, mw in _power(gpu, devices).items():
            part(*seat).power_mw = mw
        memory = _memory(gpu, instances)
        for seat, used in memory.items():
            part(*seat).memory_bytes = used
        for seat, mib in _in_mib(memory, gpu).items():
            part(*seat).memory_mib = mib
    for seat, mj in _energy(gpu, devices, pod_uid=pod_uid).items():
        part(*seat).energy_mj = mj
    return list(parts.values())


def undivided(gpu: Holding, instances: Sequence[Holding]) -> list[Part]:
    """The values of a GPU and, if it has MIG instances, the memory of each instance instead of the GPU's."""
    account, reading = gpu.account, gpu.reading
    part = Part(gpu, gpu.holder, energy_mj=account.energy_mj if account is not None else None)
    if not reading.up:
        return [part]
    part.utilization_pct, part.power_mw = reading.utilization_pct, reading.power_mw
    parts = [part, *(Part(instance, instance.holder) for instance in instances)]
    for device in parts[1:] or parts:
        device.memory_bytes = used = device.holding.reading.memory_used_bytes
        device.memory_mib = None if used is None else used // MIB
    return parts


def _utilization(gpu: Holding) -> dict[HolderLabels, int]:
    """Percent of each holder, in proportion to its use of the compute engine."""
    total = gpu.reading.utilization_pct
    if total is None:
        return {}
    if gpu.alone:
        return {gpu.holder: total}
    shares = {}
    for labels, uses in gpu.uses.items():
        pct = [use.sm_pct for use in uses if use.processes]
        if None not in pct and (pct or (labels in gpu.waiting and gpu.reading.samples is not None)):
            shares[labels] = sum(p for p in pct if p is not None)
    return with_rest(total, shares, NO_HOLDER)


def _memory(gpu: Holding, instances: Sequence[Holding]) -> dict[Seat, int]:
    """Bytes of each holder: those of its listed processes."""
    if not instances:
        return {(0, labels): used for labels, used in _device_memory(gpu).items()}
    parts: dict[Seat, int] = {}
    for number, instance in enumerate(instances, 1):
        parts |= {(number, labels): used for labels, used in _device_memory(instance).items()}
    if gpu.reading.memory_used_bytes is not None:
        parts[0, NO_HOLDER] = max(0, gpu.reading.memory_used_bytes - sum(parts.values()))
    return parts


def _in_mib(memory: Mapping[Seat, int], gpu: Holding) -> dict[Seat, int]:
    """Mebibytes of each holder, which add up to the whole mebibytes of each device."""
    parts: dict[Seat, int] = {}
    instances = sorted({number for number, _ in memory if number})
    for number in instances or (0,):
        on_device = {seat: used for seat, used in memory.items() if seat[0] == number}
        used = sum(on_device.values())
        parts |= apportion(used // MIB, on_device) if used else on_device
    if instances and gpu.reading.memory_used_bytes is not None:
        parts[0, NO_HOLDER] = max(0, gpu.reading.memory_used_bytes // MIB - sum(parts.values()))
    return parts


def _device_memory(holding: Holding) -> dict[HolderLabels, int]:
    used = holding.reading.memory_used_bytes
    if used is None:
        return {}
    if holding.alone:
        unknown = min(used, holding.memory.unknown_bytes or 0) if holding.memory is not None else 0
        return {holding.holder: used - unknown, NO_HOLDER: unknown} if unknown else {holding.holder: used}
    amounts = {}
    for labels, uses in holding.uses.items():
        listed = [use.memory_bytes for use in uses if use.processes]
        is_waiting = labels in holding.waiting and not any(use.inferred_bytes for use in uses)
        if None not in listed and (listed or (is_waiting and holding.reading.residents is not None)):
            amounts[labels] = sum(n for n in listed if n is not None)
    return with_rest(used, amounts, NO_HOLDER)


def _power(gpu: Holding, devices: Sequence[Holding]) -> dict[Seat, int]:
    """Milliwatts of each holder, in proportion to its energy in the last booked interval."""
    total = gpu.reading.power_mw
    if total is None:
        return {}
    if gpu.alone:
        return {(0, gpu.holder): total}
    booked: dict[Seat, int] = {}
    for number, holding in enumerate(devices):
        for labels, uses in holding.uses.items():
            mj = sum(use.booked_mj for use in uses)
            if mj or labels in holding.waiting or any(use.processes for use in uses):
                booked[number, labels] = mj
    gpu_mj = gpu.account.booked_mj if gpu.account is not None else 0
    if not gpu_mj:
        return {**dict.fromkeys(booked, 0), (0, NO_HOLDER): total}
    return apportion(total, with_rest(gpu_mj, booked, (0, NO_HOLDER)))


def _energy(gpu: Holding, devices: Sequence[Holding], *, pod_uid: bool) -> dict[Seat, int]:
    account = gpu.account
    if account is None or account.energy_mj is None:
        return {}
    parts: dict[Seat, int] = {(0, NO_HOLDER): account.unowned_mj}
    for number, holding in enumerate(devices):
        for labels, uses in holding.uses.items():
            if uses:  # no 0 for a waiting holder: its counter may continue that of an earlier container with its name
                parts[number, labels] = sum(_container_energy(use, pod_uid=pod_uid) for use in uses)
    return parts


def _container_energy(use: ContainerUse, *, pod_uid: bool) -> int:
    """Includes earlier containers with the same labels, so that the counter does not fall when they are dropped."""
    earlier_mj = use.earlier_mj + (0 if pod_uid else use.namesakes_mj)
    return sum(mj for _, mj in use.energy_mj) + earlier_mj


@dataclass(frozen=True, slots=True)
class ActivePart:
    """The activity and video utilization of one device that belong to one holder, or to NO_HOLDER."""

    holding: Holding
    labels: HolderLabels
    activity: Percentages | None
    encoder_pct: int | None = None
    decoder_pct: int | None = None


def whole_activity(holding: Holding, labels: HolderLabels) -> ActivePart:
    """The activity of the whole device. A GPU with MIG instances has none; they have."""
    reading = holding.reading
    activity = None if holding.has_instances else divisible(reading)
    return ActivePart(holding, labels, activity, reading.encoder_pct, reading.decoder_pct)


def divide_activity(holding: Holding) -> list[ActivePart]:
    """The part of each holder, and the rest; a holder whose activity is not known has no part."""
    whole = whole_activity(holding, holding.holder)
    if holding.alone or holding.has_instances or not holding.reading.up:
        return [whole]
    on_device = {
        labels: [use for use in uses if use.processes]
        for labels, uses in holding.uses.items()
        if labels in holding.waiting or any(use.processes for use in uses)
    }
    activities: dict[HolderLabels, Percentages] = {}
    for labels, uses in on_device.items():
        if whole.activity is not None and all(use.activity for use in uses):
            parts = [part.pct for use in uses for part in use.activity]
            activities[labels] = total_activity(parts or [scaled(whole.activity, NOTHING)])
    if whole.activity is not None:
        activities[NO_HOLDER] = remaining_activity(whole.activity, list(activities.values()))
    encoder = _video(whole.encoder_pct, {labels: [u.encoder_pct for u in uses] for labels, uses in on_device.items()})
    decoder = _video(whole.decoder_pct, {labels: [u.decoder_pct for u in uses] for labels, uses in on_device.items()})
    return [
        ActivePart(holding, labels, activities.get(labels), encoder.get(labels), decoder.get(labels))
        for labels in {**activities, **encoder, **decoder}
    ]


def _video(total: int | None, by_holder: Mapping[HolderLabels, Sequence[int | None]]) -> dict[HolderLabels, int]:
    """Percent of each holder, and the rest."""
    if total is None:
        return {}
    known = {labels: [pct for pct in of_holder if pct is not None] for labels, of_holder in by_holder.items()}
    return with_rest(
        total,
        {labels: sum(pct) for labels, pct in known.items() if len(pct) == len(by_holder[labels])},
        NO_HOLDER,
    )
