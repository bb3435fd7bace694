"""Names of exporters of energy by process, under a configurable prefix.

`_energy_joules` is one series per process, as in these exporters; `_energy_joules_total` has measured and estimated
energy apart.
"""

from __future__ import annotations

from gpuledger.catalog.dialects import Choices
from gpuledger.catalog.family import C, Family, G, Kind, Series, Thing, Value, at, flag
from gpuledger.catalog.kinds import GPU, GPU_ACCOUNT
from gpuledger.model import Account, ProcessUse, Reading, Tick

MEASURED = "exclusive"
LABELS = ("pid", "gpu", "uuid", "process_name", "pod", "namespace", "container", "pod_uid", "container_id")


def _processes(tick: Tick) -> list[Thing]:
    return [(_label(use), use) for use in tick.processes]


def _label(use: ProcessUse) -> tuple[str, ...]:
    device, owner = use.device, use.owner
    name = use.facts.name if use.facts is not None else ""
    names = (owner.pod, owner.namespace, owner.container, owner.pod_uid, owner.container_id)
    return (str(use.resident.pid), str(device.index), device.uuid, name, *names)


def _energy(use: ProcessUse) -> Value | None:
    return sum(mj for _, mj in use.energy_mj) / 1000 if use.energy_mj else None


def _energy_by_origin(use: ProcessUse) -> Series:
    """Energy measured while the process was alone on the GPU, and estimated energy."""
    sums: dict[str, int] = {}
    for method, mj in use.energy_mj:
        estimated = "false" if method == MEASURED else "true"
        sums[estimated] = sums.get(estimated, 0) + mj
    return [((estimated,), mj / 1000) for estimated, mj in sorted(sums.items())]


def _processes_energy(account: Account) -> Value | None:
    """Energy of all processes, running or exited."""
    if account.energy_mj is None:
        return None
    return (account.energy_mj - account.idle_mj - sum(mj for _, mj in account.unattributed_mj)) / 1000


def _process_count(reading: Reading) -> Value | None:
    return None if reading.residents is None else len(reading.residents)


def families(choices: Choices) -> tuple[Family, ...]:
    """One series per process and device, and two per GPU."""
    prefix, of = choices.prefix, Kind(LABELS, _processes)
    return (
        Family(f"{prefix}_energy_joules", C, of, "Energy of the process in joules.",
               "gpu_process_energy_joules_total", _energy),
        Family(f"{prefix}_energy_joules_total", C, of, "Energy of the process in joules, measured or estimated.",
               "gpu_process_energy_joules_total", series=_energy_by_origin, labels=("energy_estimated",)),
        Family(f"{prefix}_sm_utilization_ratio", G, of, "Share of time in which the process used the compute engine.",
               "gpu_process_sm_utilization_ratio", at("sample.sm_pct", 100)),
        Family(f"{prefix}_memory_utilization_ratio", G, of, "Share of time in which the process used the memory.",
               "gpu_process_memory_utilization_ratio", at("sample.memory_pct", 100)),
        Family(f"{prefix}_memory_used_bytes", G, of, "GPU memory of the process.", "gpu_process_memory_used_bytes",
               at("resident.memory_bytes")),
        Family(f"{prefix}_start_time_seconds", G, of, "Unix time at which the process started.",
               "gpu_process_start_time_seconds", at("facts.start_time_ms", 1000)),
        Family(f"{prefix}_active", G, of, "1 while the process is on the GPU, 0 after it has left.",
               "gpu_process_active", flag("active")),
        Family(f"{prefix}_gpu_energy_joules_total", C, GPU_ACCOUNT, "Energy of all processes of the GPU in joules.",
               "gpu_energy_joules_total", _processes_energy),
        Family(f"{prefix}_gpu_process_count", G, GPU, "Processes on the GPU.", "gpu_processes", _process_count),
    )  # fmt: skip
