"""What DCGM says of processes, beside our own numbers: figures of the whole GPU under the name of a process.

The energy is a gauge, not a counter: DCGM keeps an hour of samples, so that the number of a longer process falls again,
and rate() or increase() of it would mean nothing.
"""

from __future__ import annotations

from gpuledger.catalog.family import Family, G, I, Series, at, flag
from gpuledger.catalog.kinds import EXPORTER, PROCESS
from gpuledger.model import Tick

DCGM = "dcgmGetPidInfo, with --collector.dcgm and accounting mode on"


def _about(tick: Tick) -> Series:
    health = tick.dcgm
    return () if health is None else (((health.version, health.library, health.mode), 1),)


HEALTH: tuple[Family, ...] = (
    Family("gpuledger_dcgm_up", G, EXPORTER,
           "1 when DCGM answers, 0 when it is asked and does not; the log says why. Absent without --collector.dcgm.",
           "every DCGM call", flag("dcgm.up")),
    Family("gpuledger_dcgm_info", I, EXPORTER,
           "Version of DCGM's engine, the library it is asked through, and whether the engine is embedded in the "
           "exporter or an nv-hostengine.",
           "dcgmHostengineVersionInfo", series=_about, labels=("version", "library", "mode")),
)  # fmt: skip

PROCESSES: tuple[Family, ...] = (
    Family("gpu_process_dcgm_energy_joules", G, PROCESS,
           "Energy of the WHOLE GPU while the process was on it, at most of the last hour, as DCGM tells it. Joules "
           "from when several were on the GPU are in the number of each of them, so a sum counts them several times. "
           "Never booked; gpu_process_energy_joules_total is what adds up.",
           DCGM, at("dcgm.energy_mj", 1000), unit="joules", needs="dcgm"),
    Family("gpu_process_dcgm_sm_utilization_ratio", G, PROCESS,
           "Mean utilization of the WHOLE GPU while the process was on it, as DCGM tells it, whoever used it.",
           DCGM, at("dcgm.sm_pct", 100), unit="ratio", needs="dcgm"),
    Family("gpu_process_dcgm_memory_utilization_ratio", G, PROCESS,
           "Mean memory activity of the WHOLE GPU while the process was on it, as DCGM tells it, whoever used it.",
           DCGM, at("dcgm.memory_pct", 100), unit="ratio", needs="dcgm"),
    Family("gpu_process_dcgm_max_memory_bytes", G, PROCESS,
           "Most GPU memory the process ever held, as DCGM tells it from the driver's accounting; the only one of "
           "DCGM's numbers that is the process's own.",
           DCGM, at("dcgm.max_memory_bytes"), unit="bytes", needs="dcgm"),
    Family("gpu_process_dcgm_other_processes", G, PROCESS,
           "Other compute processes on the GPU in that time, 16 at most, as DCGM tells it; the same joules are "
           "theirs too.",
           DCGM, at("dcgm.other_processes"), needs="dcgm"),
    Family("gpu_process_dcgm_start_time_seconds", G, PROCESS,
           "Unix time of the process's first use of a GPU, from which on DCGM counts what it still has samples of.",
           DCGM, at("dcgm.start_us", 1e6), unit="seconds", needs="dcgm"),
)  # fmt: skip
