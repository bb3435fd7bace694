"""Builds the snapshot of a tick."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import Any

from gpuledger import __version__
from gpuledger.model import (
    ADVICE_AFTER_S,
    IDLE_REASONS,
    Account,
    AllocationUse,
    ContainerUse,
    MemoryAccount,
    ProcessUse,
    ProviderHealth,
    Reading,
    Tick,
    TokenServer,
)
from gpuledger.model.readings import Labelled
from gpuledger.model.tick import use_identity
from gpuledger.web.snapshot.colours import first_choice, owners_of
from gpuledger.web.snapshot.problems import problems
from gpuledger.web.snapshot.schema import (
    AllocationRow,
    ContainerRow,
    Counts,
    DriverState,
    Energy,
    Gpu,
    Memory,
    ProblemRow,
    ProcessRow,
    Provider,
    ServerRow,
    Snapshot,
)

MIN_INTERVAL_NS = 50_000_000
"""Power from energy over a shorter time is noise: the counter rises in steps of about 20 ms."""


def snapshot(tick: Tick, before: Tick | None = None, *, node: str = "", colours: Counts | None = None) -> Snapshot:
    """The snapshot of `tick`. Power is the mean since the earlier tick `before`.

    Without `colours`, those of owners follow from their names alone.
    """
    power = _Power(tick, before)
    allocated: dict[str, set[str]] = {}
    for allocation in tick.owners.allocations:
        allocated.setdefault(allocation.device.uuid, set()).add(allocation.owner.display_name)
    return Snapshot(
        gpuledger=__version__,
        time=tick.time_ns / 1e9,
        interval_seconds=tick.health.interval_ns / 1e9,
        node=node,
        recording=tick.source == "replay",
        driver=DriverState(**_same(tick.driver, "up", "reason", "driver_version", "cuda_version")),
        gpus=tuple(_gpu(reading, tick, allocated.get(reading.device.uuid, set())) for reading in tick.readings),
        process_count=_process_count(tick),
        processes=tuple(_process(use, power) for use in tick.processes),
        containers=tuple(_container(use, power) for use in tick.containers),
        allocations=tuple(_allocation(use, tick.time_ns) for use in tick.allocations if use.state),
        servers=tuple(_server(server) for server in tick.servers or ()),
        colours={owner: first_choice(owner) for owner in owners_of(tick)} if colours is None else colours,
        dropped_processes=tick.dropped_processes,
        providers=tuple(_provider(health) for health in tick.owners.providers),
        unresolved=dict(tick.owners.unresolved),
        host_pid_namespace=tick.owners.host_pid_namespace,
        tick_seconds=tick.health.duration_ns / 1e9,
        problems=tuple(
            ProblemRow(level=problem.severity, **_same(problem, "about", "what", "fix", "kind"))  # type: ignore[arg-type]
            for problem in problems(tick)
        ),
    )


def _provider(health: ProviderHealth) -> Provider:
    last_success = health.last_success_ns / 1e9 or None
    return Provider(**_same(health, "name", "up", "reason"), since=health.since_ns / 1e9, last_success=last_success)


def _server(server: TokenServer) -> ServerRow:
    row = ServerRow(
        server=server.name,
        **_same(server, "up", "reason"),
        models=tuple(dict.fromkeys(count.model or count.engine for count in server.counts)),
    )
    if server.owner is None:  # on no GPU
        return row
    row = replace(row, owner=server.owner.display_name)
    if server.counts:
        prompt, output = (sum(tokens) for tokens in zip(*((c.prompt, c.output) for c in server.counts), strict=True))
        row = replace(row, prompt_tokens=prompt, output_tokens=output)
    if (rates := server.rates) is not None:
        row = replace(
            row,
            prompt_tokens_per_second=round(rates.prompt_tokens / rates.seconds, 3),
            output_tokens_per_second=round(rates.output_tokens / rates.seconds, 3),
            work_watts=round(rates.work_j / rates.seconds, 3),
            parked_watts=round(rates.parked_j / rates.seconds, 3),
            **_same(rates, "joules_per_output_token", "joules_per_token"),
        )
    if (phases := server.phases) is not None:
        row = replace(
            row,
            prefill_joules=phases.prompt_j,
            prefill_error_joules=phases.prompt_error_j,
            decode_joules=phases.output_j,
            decode_error_joules=phases.output_error_j,
        )
    return row


def metered_gpus(tick: Tick) -> set[str]:
    """UUIDs of the GPUs whose energy is known in this tick; power on other GPUs is unknown."""
    up = {reading.device.uuid for reading in tick.readings if reading.up}
    return {uuid for uuid, account in tick.accounts.items() if uuid in up and account.energy_mj is not None}


def booked_times(tick: Tick) -> dict[str, int]:
    """The time up to which the energy of each GPU is booked, if it is known in this tick."""
    return {uuid: tick.time_ns - tick.accounts[uuid].unbooked_ns for uuid in metered_gpus(tick)}


class _Power:
    """Mean power of each row between two ticks."""

    def __init__(self, tick: Tick, before: Tick | None) -> None:
        uses: list[ProcessUse | ContainerUse] = []
        self._elapsed_ns: dict[str, int] = {}
        """Time whose energy was booked between the ticks, by GPU."""
        if before is not None:
            uses = [*before.processes, *before.containers]
            booked_ns, until_ns = booked_times(before), booked_times(tick)
            self._elapsed_ns = {uuid: until_ns[uuid] - ns for uuid, ns in booked_ns.items() if uuid in until_ns}
        self._energy_mj = {use_identity(use): _sum(use.energy_mj) for use in uses}

    def watts(self, use: ProcessUse | ContainerUse) -> float | None:
        """None for a new row, and if the GPU reports no energy."""
        before_mj = self._energy_mj.get(use_identity(use))
        elapsed_ns = self._elapsed_ns.get(use.device.gpu_uuid, 0)
        if before_mj is None or elapsed_ns < MIN_INTERVAL_NS:
            return None
        used_mj = _sum(use.energy_mj) - before_mj
        return None if used_mj < 0 else round(used_mj * 1e6 / elapsed_ns, 3)


def _process_count(tick: Tick) -> int | None:
    """Processes that the driver lists; None if no GPU reports its processes."""
    is_known = any(reading.up and reading.residents is not None for reading in tick.readings)
    return len(tick.resident_pids()) if is_known else None


def _gpu(reading: Reading, tick: Tick, allocated_to: set[str]) -> Gpu:
    device, account = reading.device, tick.accounts.get(reading.device.uuid)
    booked: dict[str, Any] = {}
    if account is not None:
        booked = {
            "energy": _energy(account),
            "busy_seconds": _divided(account.busy_ns, 1e9),
            "in_use": account.in_use,
            "in_use_seconds": account.in_use_ns / 1e9,
        }
    return Gpu(
        gpu=device.index,
        **_same(device, "uuid", "gpu_uuid", "name", "pci_bus_id", "parent_uuid", "mig_profile"),
        **_same(reading, "up", "reason", "mig_enabled"),
        memory=_memory(reading, tick.memory.get(device.uuid)),
        utilization_ratio=_divided(reading.utilization_pct, 100),
        memory_utilization_ratio=_divided(reading.memory_utilization_pct, 100),
        power_watts=_divided(reading.power_mw, 1000),
        power_limit_watts=_divided(reading.power_limit_mw, 1000),
        temperatures_celsius=dict(reading.temperatures_c),
        temperature_limits_celsius=dict(reading.temperature_limits_c),
        clocks_hertz={name: mhz * 1_000_000 for name, mhz in reading.clocks_mhz},
        slowed_by=tuple(name for name, is_active in reading.clock_events if is_active),
        fans_ratio={name: pct / 100 for name, pct in reading.fans_pct},
        xids=dict(reading.xids),
        ecc_errors=dict(reading.ecc_errors),
        allocated_to=tuple(sorted(allocated_to)),
        **booked,
    )


def _memory(reading: Reading, account: MemoryAccount | None) -> Memory:
    read = {f"{part}_bytes": getattr(reading, f"memory_{part}_bytes") for part in ("total", "used", "free", "reserved")}
    total, used = reading.system_memory_total_bytes, reading.system_memory_used_bytes
    if total is not None and used is not None:
        system = max(0, used - (account.known_bytes if account is not None else 0))
        read |= {"total_bytes": total, "used_bytes": used, "free_bytes": total - used, "system_bytes": system}
    booked = ("known_bytes", "overhead_bytes", "unknown_bytes", "inferred_bytes", "candidates")
    return Memory(**read, **(_same(account, *booked) if account is not None else {}))


def _energy(account: Account) -> Energy:
    without_process_mj = account.idle_mj + account.retired_mj + _sum(account.unattributed_mj)
    return Energy(
        joules=_divided(account.energy_mj, 1000),
        source=account.source,
        processes_joules=((account.energy_mj or 0) - without_process_mj - account.residual_mj) / 1000,
        idle_joules=account.idle_mj / 1000,
        retired_joules=account.retired_mj / 1000,
        unattributed_joules=_joules(account.unattributed_mj),
        residual_joules=account.residual_mj / 1000,
        idle_power_watts=_divided(account.idle_power_mw, 1000),
        parked_power_watts=_divided(account.parked_power_mw, 1000),
    )


def _process(use: ProcessUse, power: _Power) -> ProcessRow:
    facts = use.facts
    return ProcessRow(
        **_shared(use, power),
        pid=use.resident.pid,
        process_name=facts.name if facts else "",
        kind=use.resident.kind,
        user=use.owner.user or (facts.user if facts else ""),
        active=use.active,
        start_time=facts.start_time_ms / 1000 if facts else None,
        memory_bytes=use.resident.memory_bytes,
        sm_ratio=_divided(use.sample.sm_pct if use.sample else None, 100),
        energy_share_error_ratio=use.energy_share_error,
    )


def _container(use: ContainerUse, power: _Power) -> ContainerRow:
    return ContainerRow(
        **_shared(use, power),
        user=use.owner.user,
        **_same(use, "processes", "memory_bytes", "inferred_bytes"),
        sm_ratio=_divided(use.sm_pct, 100),
    )


def _allocation(use: AllocationUse, time_ns: int) -> AllocationRow:
    owner, asked = use.owner, use.entitlement
    idle_ns = time_ns - use.idle_since_ns if use.idle_since_ns is not None and use.state in IDLE_REASONS else 0
    command = free_command(owner.namespace, owner.pod, owner.container, owner.job)
    return AllocationRow(
        gpu=max(0, use.device.index),
        **_same(use.device, "uuid", "gpu_uuid"),
        owner=owner.display_name,
        **_same(owner, "namespace", "pod", "container", "container_id", "job"),
        **_same(use, "state", "shared_by"),
        start_time=use.started_ns / 1e9,
        last_busy=_divided(use.last_busy_ns, 1e9),
        idle_since=_divided(use.idle_since_ns, 1e9),
        allocated_seconds=use.allocated_ns / 1e9,
        busy_seconds=use.busy_ns / 1e9,
        idle_seconds={reason: ns / 1e9 for reason, ns in use.idle_ns},
        unknown_seconds=use.unknown_ns / 1e9,
        idle_gpu_seconds=use.idle_gpu_ns / 1e9,
        period_gpu_seconds=use.period_gpu_ns / 1e9,
        joules=_joules(use.energy_mj),
        period_joules=_divided(use.period_mj, 1000),
        entitlement=asked.source if asked else "",
        asked_ratio=asked.compute_ratio if asked else None,
        asked_bytes=asked.memory_bytes if asked else None,
        **_same(use, "compute_used_ratio", "memory_used_ratio"),
        free_command=command if idle_ns >= ADVICE_AFTER_S * 1e9 else "",
    )


def _shared(use: ProcessUse | ContainerUse, power: _Power) -> dict[str, Any]:
    """The fields that both kinds of row compute in the same way."""
    owner = use.owner
    names = ("namespace", "pod", "container", "pod_uid", "container_id", "runtime", "image", "unit", "job")
    return {
        "gpu": use.device.index,
        **_same(use.device, "uuid", "gpu_uuid"),
        "owner": owner.display_name,
        **_same(owner, *names),
        "workload": "/".join(part for part in (owner.workload_kind, owner.workload_name) if part),
        "unknown_because": owner.reason,
        "watts": power.watts(use),
        "joules": _joules(use.energy_mj),
        "busy_seconds": _divided(use.busy_ns, 1e9),
    }


def free_command(namespace: str, pod: str, container: str, job: str) -> str:
    """The command that would free a device, with every name quoted: tenants choose names. It is never executed.

    Empty if a name cannot be part of a command.
    """
    if any(name.startswith("-") or not name.isprintable() for name in (namespace, pod, container, job)):
        return ""
    if pod:
        return f"kubectl delete pod {f'-n {quote(namespace)} ' if namespace else ''}{quote(pod)}"
    if job:
        return f"scancel {quote(job)}"
    return f"docker stop {quote(container)}" if container else ""


def _same(record: object, *names: str) -> dict[str, Any]:
    """The fields of a record that the snapshot has under the same name and in the same unit."""
    return {name: getattr(record, name) for name in names}


def _sum(energy_mj: Labelled) -> int:
    return sum(mj for _, mj in energy_mj)


def _joules(energy_mj: Labelled) -> dict[str, float]:
    return {name: mj / 1000 for name, mj in energy_mj}


def _divided(value: float | None, divisor: float) -> float | None:
    return None if value is None else value / divisor
