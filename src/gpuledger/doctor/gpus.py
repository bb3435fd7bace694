"""Each GPU: whether it answers, says who is on it, keeps accounts where they are needed, and shows its instances."""

from __future__ import annotations

from collections.abc import Iterable

from gpuledger.doctor.finding import Finding, ok, problem, unused, warning
from gpuledger.model import Reading
from gpuledger.view.advice import fix_of

MIG_FIX = (
    "run as root; in a container `docker run --cap-add SYS_ADMIN -e NVIDIA_MIG_MONITOR_DEVICES=all`, "
    "on Kubernetes `privileged: true`"
)


def gpus(readings: Iterable[Reading]) -> list[Finding]:
    """One line a GPU."""
    return [_gpu(reading) for reading in _whole(readings)]


def _gpu(reading: Reading) -> Finding:
    device = reading.device
    name = f"gpu {device.index}"
    if not reading.up:
        return problem(name, f"cannot be read: {reading.reason}", fix_of(reading.reason, device.index))
    if reading.residents is None and not reading.mig_enabled:
        fix = "`nvidia-smi --query-compute-apps=pid,used_memory --format=csv` shows whether the driver tells at all"
        return warning(name, f"{device.name} does not say which processes are on it", fix)
    return ok(name, f"{device.name} ({device.uuid})")


def mig(readings: Iterable[Reading]) -> list[Finding]:
    """Whether the instances of GPUs in MIG mode are seen, with who is on them."""
    all_of_them = tuple(readings)
    cut = [reading for reading in _whole(all_of_them) if reading.mig_enabled]
    if not cut:
        return [unused("mig", "no GPU is in MIG mode")]
    found = []
    for gpu in cut:
        name = f"mig of gpu {gpu.device.index}"
        instances = [reading for reading in all_of_them if reading.device.parent_uuid == gpu.device.uuid]
        silent = [one for one in instances if one.residents is None or one.memory_used_bytes is None]
        if silent or (not instances and gpu.residents is None):
            text = f"{len(silent) or 'all'} of its instances may not be read: their memory and processes are missing"
            found.append(problem(name, text, MIG_FIX))
        elif not instances:
            text = "MIG is on, but no instance is seen: there is none, or this user may not see them"
            fix = f"`sudo nvidia-smi mig -lgi` lists them; `sudo nvidia-smi mig -cgi 19 -C` makes one; {MIG_FIX}"
            found.append(warning(name, text, fix))
        else:
            found.append(ok(name, f"{len(instances)} instances can be read"))
    return found


def accounting(readings: Iterable[Reading], *, needed: bool) -> list[Finding]:
    """The driver's accounts of processes: DCGM needs them, and nobody else."""
    told = [reading for reading in _whole(readings) if reading.accounting_enabled is not None]
    off = [str(reading.device.index) for reading in told if not reading.accounting_enabled]
    which = f"GPU {', '.join(off)}"
    if off and needed:
        text = f"accounting mode is off on {which}, so DCGM has no data of processes"
        return [warning("accounting", text, "`sudo nvidia-smi -am 1`, before the processes start; MIG keeps it off")]
    if off:
        return [ok("accounting", f"off on {which}; only --collector.dcgm needs it (`sudo nvidia-smi -am 1`)")]
    return [ok("accounting", "on" if told else "not told by these GPUs")]


def _whole(readings: Iterable[Reading]) -> list[Reading]:
    return [reading for reading in readings if not reading.device.parent_uuid]
