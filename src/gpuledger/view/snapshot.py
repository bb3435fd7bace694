"""A picture of one tick for people: plain JSON values in base units. The page, the terminal and `/api/v1` show it.

What is not known is null, never 0. Fields may be added; one that changes its meaning makes a new VERSION.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpuledger import __version__
from gpuledger.model import Account, ContainerUse, Device, MemoryAccount, Owner, ProcessUse, Reading, Tick
from gpuledger.model.readings import Labelled
from gpuledger.view.problems import problems
from gpuledger.view.who import who, whose

VERSION = 1
SHORTEST_NS = 50_000_000
"""Power from energy over less time than this is noise: the counter rises in steps of some 20 ms."""

Picture = dict[str, Any]
"""Only what JSON has."""


def snapshot(tick: Tick, before: Tick | None = None, *, node: str = "") -> Picture:
    """The whole picture. `before` is an earlier tick, from which on power is taken."""
    earlier = _Earlier(tick, before)
    return {
        "version": VERSION,
        "gpuledger": __version__,
        "time": tick.time_ns / 1e9,
        "interval_seconds": tick.health.interval_ns / 1e9,
        "node": node,
        "recording": tick.source == "replay",
        "driver": {
            "up": tick.driver.up,
            "reason": tick.driver.reason,
            "driver_version": tick.driver.driver_version,
            "cuda_version": tick.driver.cuda_version,
        },
        "gpus": [_gpu(reading, tick) for reading in tick.readings],
        "process_count": _count(tick),
        "processes": [_process(use, earlier) for use in tick.processes],
        "containers": [_container(use, earlier) for use in tick.containers],
        "dropped_processes": tick.dropped_processes,
        "providers": [
            {
                "name": provider.name,
                "up": provider.up,
                "reason": provider.reason,
                "since": provider.since_ns / 1e9,
                "last_success": provider.last_success_ns / 1e9 or None,
            }
            for provider in tick.owners.providers
        ],
        "unresolved": dict(tick.owners.unresolved),
        "host_pid_namespace": tick.owners.host_pid_namespace,
        "tick_seconds": tick.health.duration_ns / 1e9,
        "problems": [asdict(problem) for problem in problems(tick)],
    }


def metered(tick: Tick) -> set[str]:
    """The GPUs that tell now what they use; of others nobody's power is known."""
    up = {reading.device.uuid for reading in tick.readings if reading.up}
    return {uuid for uuid, account in tick.accounts.items() if uuid in up and account.energy_mj is not None}


class _Earlier:
    """What everybody had used at an earlier tick."""

    def __init__(self, tick: Tick, before: Tick | None) -> None:
        self._seconds = (tick.time_ns - before.time_ns) / 1e9 if before is not None else 0.0
        uses: list[ProcessUse | ContainerUse] = []
        if before is not None and self._seconds * 1e9 >= SHORTEST_NS:
            uses = [*before.processes, *before.containers]
        self._energy = {_identity(use): _sum(use.energy_mj) for use in uses}
        self._metered = metered(tick)

    def watts(self, use: ProcessUse | ContainerUse) -> float | None:
        """Mean power since then; None for a newcomer, and where the GPU does not tell now what it uses."""
        if use.device.gpu_uuid not in self._metered:
            return None
        had = self._energy.get(_identity(use))
        rise = _sum(use.energy_mj) - had if had is not None else -1
        return None if rise < 0 else round(rise / 1000 / self._seconds, 3)


def _identity(use: ProcessUse | ContainerUse) -> tuple[object, ...]:
    if isinstance(use, ContainerUse):
        return use.device.uuid, use.owner.container_id, use.owner.pod_uid, use.owner.container
    return use.device.uuid, use.resident.pid, use.facts.start_ticks if use.facts is not None else None


def _sum(energy_mj: Labelled) -> int:
    return sum(mj for _, mj in energy_mj)


def _count(tick: Tick) -> int | None:
    """Processes that the driver lists, shown one by one or not; None when no GPU tells."""
    told = any(reading.up and reading.residents is not None for reading in tick.readings)
    return len(tick.resident_pids()) if told else None


def _gpu(reading: Reading, tick: Tick) -> Picture:
    device = reading.device
    return {
        **_place(device),
        "name": device.name,
        "pci_bus_id": device.pci_bus_id,
        "parent_uuid": device.parent_uuid,
        "mig_profile": device.mig_profile,
        "up": reading.up,
        "reason": reading.reason,
        "memory": _memory(reading, tick.memory.get(device.uuid)),
        "utilization_ratio": _part(reading.utilization_pct, 100),
        "memory_utilization_ratio": _part(reading.memory_utilization_pct, 100),
        "power_watts": _part(reading.power_mw, 1000),
        "power_limit_watts": _part(reading.power_limit_mw, 1000),
        "temperatures_celsius": dict(reading.temperatures_c),
        "temperature_limits_celsius": dict(reading.temperature_limits_c),
        "clocks_hertz": {name: mhz * 1_000_000 for name, mhz in reading.clocks_mhz},
        "slowed_by": [name for name, on in reading.clock_events if on],
        "fans_ratio": {name: pct / 100 for name, pct in reading.fans_pct},
        "xids": dict(reading.xids),
        "ecc_errors": dict(reading.ecc_errors),
        "mig_enabled": reading.mig_enabled,
        **_account(tick.accounts.get(device.uuid)),
    }


def _memory(reading: Reading, account: MemoryAccount | None) -> Picture:
    return {
        "total_bytes": reading.memory_total_bytes,
        "used_bytes": reading.memory_used_bytes,
        "free_bytes": reading.memory_free_bytes,
        "reserved_bytes": reading.memory_reserved_bytes,
        "known_bytes": account.known_bytes if account else None,
        "overhead_bytes": account.overhead_bytes if account else None,
        "unknown_bytes": account.unknown_bytes if account else None,
        "inferred_bytes": account.inferred_bytes if account else None,
        "candidates": account.candidates if account else None,
    }


def _account(account: Account | None) -> Picture:
    if account is None:
        return {"energy": None, "busy_seconds": None, "in_use": None, "in_use_seconds": None}
    nobodys_mj = account.idle_mj + account.retired_mj + _sum(account.unattributed_mj)
    return {
        "energy": {
            "joules": _part(account.energy_mj, 1000),
            "source": account.source,
            "processes_joules": ((account.energy_mj or 0) - nobodys_mj - account.residual_mj) / 1000,
            "idle_joules": account.idle_mj / 1000,
            "retired_joules": account.retired_mj / 1000,
            "unattributed_joules": _joules(account.unattributed_mj),
            "residual_joules": account.residual_mj / 1000,
            "idle_power_watts": _part(account.idle_power_mw, 1000),
            "parked_power_watts": _part(account.parked_power_mw, 1000),
        },
        "busy_seconds": _part(account.busy_ns, 1e9),
        "in_use": account.in_use,
        "in_use_seconds": account.in_use_ns / 1e9,
    }


def _process(use: ProcessUse, earlier: _Earlier) -> Picture:
    facts = use.facts
    return {
        **_place(use.device),
        "pid": use.resident.pid,
        "process_name": facts.name if facts else "",
        "kind": use.resident.kind,
        "owner": whose(use),
        **_owner(use.owner),
        "user": use.owner.user or (facts.user if facts else ""),
        "active": use.active,
        "start_time": facts.start_time_ms / 1000 if facts else None,
        "memory_bytes": use.resident.memory_bytes,
        "sm_ratio": _part(use.sample.sm_pct if use.sample else None, 100),
        "watts": earlier.watts(use),
        "joules": _joules(use.energy_mj),
        "energy_share_error_ratio": use.energy_share_error,
        "busy_seconds": _part(use.busy_ns, 1e9),
    }


def _container(use: ContainerUse, earlier: _Earlier) -> Picture:
    return {
        **_place(use.device),
        "owner": who(use.owner),
        **_owner(use.owner),
        "user": use.owner.user,
        "processes": use.processes,
        "memory_bytes": use.memory_bytes,
        "inferred_bytes": use.inferred_bytes,
        "sm_ratio": _part(use.sm_pct, 100),
        "watts": earlier.watts(use),
        "joules": _joules(use.energy_mj),
        "busy_seconds": _part(use.busy_ns, 1e9),
    }


def _place(device: Device) -> Picture:
    return {"gpu": device.index, "uuid": device.uuid, "gpu_uuid": device.gpu_uuid}


def _owner(owner: Owner) -> Picture:
    return {
        "namespace": owner.namespace,
        "pod": owner.pod,
        "container": owner.container,
        "pod_uid": owner.pod_uid,
        "container_id": owner.container_id,
        "runtime": owner.runtime,
        "image": owner.image,
        "workload": "/".join(part for part in (owner.workload_kind, owner.workload_name) if part),
        "unit": owner.unit,
        "job": owner.job,
        "unknown_because": owner.reason,
    }


def _joules(energy_mj: Labelled) -> dict[str, float]:
    return {name: mj / 1000 for name, mj in energy_mj}


def _part(value: float | None, of: float) -> float | None:
    return None if value is None else value / of
