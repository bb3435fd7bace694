"""The process list against the memory in use: memory that nobody is listed with belongs to somebody all the same."""

from __future__ import annotations

from gpuledger.doctor.finding import Finding, ok, warning
from gpuledger.model import Tick
from gpuledger.view.advice import MEMORY_FIX, of_memory


def memory(tick: Tick, *, sees_host: bool) -> list[Finding]:
    """One line for each device on which memory is unknown; one in all when there is none.

    In a PID namespace of its own an exporter is listed nobody, which is a finding already.
    """
    if not sees_host:
        return [ok("memory", "cannot be compared with a process list that is empty")]
    found = []
    for reading in tick.readings:
        account = tick.memory.get(reading.device.uuid)
        if account is None or not account.unknown_bytes:
            continue
        which = f"gpu {reading.device.index}" + (f" {reading.device.mig_profile}" if reading.device.parent_uuid else "")
        found.append(warning(f"memory of {which}", of_memory(account), MEMORY_FIX))
    silent = sorted({r.pid for one in tick.readings for r in one.residents or () if r.memory_bytes is None})
    if silent and not found:
        text = f"the driver does not tell the memory of {len(silent)} processes it lists, such as {silent[0]}"
        found.append(
            warning("memory", text, "it tells under Linux without a hypervisor between; `nvidia-smi` shows N/A")
        )
    return found or [ok("memory", "all that is used is explained by who is listed")]
