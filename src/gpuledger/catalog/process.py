"""Processes on devices."""

from __future__ import annotations

from gpuledger.catalog.family import C, Family, G, I, Series, at, flag, named
from gpuledger.catalog.gpu import LEDGER, LISTS
from gpuledger.catalog.kinds import PROCESS
from gpuledger.model import ProcessUse

SAMPLES = "nvmlDeviceGetProcessesUtilizationInfo, or nvmlDeviceGetProcessUtilization where it is missing"
ACCOUNTING = "nvmlDeviceGetAccountingStats, where accounting mode is on"


def _about(use: ProcessUse) -> Series:
    uid = "" if use.facts is None or use.facts.uid is None else str(use.facts.uid)
    owner = use.owner
    values = (use.resident.kind, uid, owner.user, owner.unit, owner.job, owner.step, owner.task, owner.account)
    return ((values, 1),)


PROCESSES: tuple[Family, ...] = (
    Family("gpu_process_info", I, PROCESS,
           "How the process uses the GPU, as which user, and in which systemd unit or batch job.",
           f"{LISTS}; /proc/PID/status",
           series=_about, labels=("kind", "uid", "user", "unit", "batch_job", "batch_step", "batch_task",
                                  "batch_account")),
    Family("gpu_process_active", G, PROCESS,
           "1 while the process is on the GPU, 0 once it is gone; absent while the driver does not say.",
           LISTS, flag("active")),
    Family("gpu_process_energy_joules_total", C, PROCESS,
           "Energy of the process, by how it is known; only exclusive is measured, all others are estimates.",
           LEDGER, series=named("energy_mj", 1000), labels=("method",), unit="joules"),
    Family("gpu_process_energy_share_error_ratio", G, PROCESS,
           "Standard deviation, estimated, of the share of the GPU's energy above parked power that the process was "
           "given last; absent where that was not shared.",
           LEDGER, at("energy_share_error"), unit="ratio"),
    Family("gpu_process_busy_seconds_total", C, PROCESS, "Time the process had the compute engine.",
           SAMPLES, at("busy_ns", 1e9), unit="seconds"),
    Family("gpu_process_memory_used_bytes", G, PROCESS, "GPU memory of the process; absent where not told.",
           LISTS, at("resident.memory_bytes"), unit="bytes"),
    Family("gpu_process_sm_utilization_ratio", G, PROCESS,
           "Share of time the process had the compute engine, as sampled by the driver about every 0.2 s.",
           SAMPLES, at("sample.sm_pct", 100), unit="ratio"),
    Family("gpu_process_memory_utilization_ratio", G, PROCESS,
           "Share of time the process had memory busy, as sampled by the driver.",
           SAMPLES, at("sample.memory_pct", 100), unit="ratio"),
    Family("gpu_process_encoder_utilization_ratio", G, PROCESS, "Share of the video encoders the process used.",
           SAMPLES, at("sample.encoder_pct", 100), unit="ratio"),
    Family("gpu_process_decoder_utilization_ratio", G, PROCESS, "Share of the video decoders the process used.",
           SAMPLES, at("sample.decoder_pct", 100), unit="ratio"),
    Family("gpu_process_start_time_seconds", G, PROCESS, "Unix time at which the process started.",
           "/proc/PID/stat", at("facts.start_time_ms", 1000), unit="seconds"),
    Family("gpu_process_accounting_utilization_ratio", G, PROCESS,
           "Compute engine use over the life of the process.", ACCOUNTING,
           at("accounting.gpu_pct", 100), unit="ratio"),
    Family("gpu_process_accounting_memory_utilization_ratio", G, PROCESS,
           "Memory activity over the life of the process.", ACCOUNTING,
           at("accounting.memory_pct", 100), unit="ratio"),
    Family("gpu_process_accounting_peak_memory_bytes", G, PROCESS, "Most GPU memory the process ever held.",
           ACCOUNTING, at("accounting.peak_memory_bytes"), unit="bytes"),
)  # fmt: skip
