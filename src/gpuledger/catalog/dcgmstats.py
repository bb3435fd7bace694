"""DCGM's process statistics, next to our own metrics. Most of them describe the whole GPU.

The energy is a gauge, not a counter: DCGM keeps one hour of samples, so that the value of a longer process decreases,
and rate() or increase() of it would be meaningless.
"""

from __future__ import annotations

from gpuledger.catalog.family import Family, G, I, Series, at, flag
from gpuledger.catalog.kinds import EXPORTER, PROCESS
from gpuledger.model import Tick

DCGM = "dcgmGetPidInfo, with --collector.dcgm and accounting mode"


def _about(tick: Tick) -> Series:
    health = tick.dcgm
    return () if health is None else (((health.version, health.library, health.mode), 1),)


HEALTH: tuple[Family, ...] = (
    Family("gpuledger_dcgm_up", G, EXPORTER,
           "1 if DCGM answers; the log has the reason if not. Absent without --collector.dcgm.",
           "every DCGM call", flag("dcgm.up")),
    Family("gpuledger_dcgm_info", I, EXPORTER,
           "Version of DCGM, its library, and its mode: embedded, or hostengine.",
           "dcgmHostengineVersionInfo", series=_about, labels=("version", "library", "mode")),
)  # fmt: skip

PROCESSES: tuple[Family, ...] = (
    Family("gpu_process_dcgm_energy_joules", G, PROCESS,
           "Energy of the WHOLE GPU while the process was on it, at most of the last hour. On a shared GPU, every "
           "process has the same joules, so that a sum counts them repeatedly. Never booked; use "
           "gpu_process_energy_joules_total for sums.",
           DCGM, at("dcgm.energy_mj", 1000), unit="joules", needs="dcgm"),
    Family("gpu_process_dcgm_sm_utilization_ratio", G, PROCESS,
           "Mean utilization of the WHOLE GPU while the process was on it.",
           DCGM, at("dcgm.sm_pct", 100), unit="ratio", needs="dcgm"),
    Family("gpu_process_dcgm_memory_utilization_ratio", G, PROCESS,
           "Mean memory activity of the WHOLE GPU while the process was on it.",
           DCGM, at("dcgm.memory_pct", 100), unit="ratio", needs="dcgm"),
    Family("gpu_process_dcgm_max_memory_bytes", G, PROCESS,
           "Peak GPU memory of the process, from the driver's accounting.",
           DCGM, at("dcgm.max_memory_bytes"), unit="bytes", needs="dcgm"),
    Family("gpu_process_dcgm_other_processes", G, PROCESS,
           "Other compute processes on the GPU in the same time, at most 16. They have the same joules.",
           DCGM, at("dcgm.other_processes"), needs="dcgm"),
    Family("gpu_process_dcgm_start_time_seconds", G, PROCESS,
           "Unix time at which the process first used a GPU.",
           DCGM, at("dcgm.start_us", 1e6), unit="seconds", needs="dcgm"),
)  # fmt: skip
