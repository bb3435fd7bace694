"""Metrics of processes and containers on devices, and of allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from gpuledger.catalog.family import C, Family, G, I, Kind, Series, at, divided, flag, named
from gpuledger.catalog.gpu import GPM, GRAPHICS, LEDGER, LISTS, MEMORY, OWNED
from gpuledger.catalog.kinds import (
    ACCESS,
    CONTAINER,
    CONTAINER_ALLOCATION,
    JOB_ALLOCATION,
    OWNER,
    POD_ALLOCATION,
    PROCESS,
)
from gpuledger.model import ActivityPart, ContainerUse, Owner, ProcessUse

SAMPLES = "nvmlDeviceGetProcessesUtilizationInfo, else nvmlDeviceGetProcessUtilization"
RUNTIME = "Docker, Podman, CRI or the Kubernetes API"
SHARED = f"{GPM}, divided by the energy books"
UTILIZATION = (
    f"{GRAPHICS}; divided by the energy books; before Hopper, nvmlDeviceGetUtilizationRates divided by SM time"
)
OWNERS = {PROCESS: "the process", CONTAINER: "the container"}
ACCOUNTING = "nvmlDeviceGetAccountingStats, in accounting mode"


def _about(use: ProcessUse) -> Series:
    uid = "" if use.facts is None or use.facts.uid is None else str(use.facts.uid)
    owner = use.owner
    values = (use.resident.kind, uid, owner.user, owner.unit, owner.job, owner.step, owner.task, owner.account)
    return (((*values, *_outer(owner)), 1),)


def _properties(owner: Owner) -> Series:
    return (((owner.runtime, owner.image, owner.workload_kind, owner.workload_name, *_outer(owner)), 1),)


def _outer(owner: Owner) -> tuple[str, ...]:
    return () if owner.outer is None else (owner.outer.display_name,)


def _memory(use: ContainerUse) -> Series:
    if use.memory_bytes is not None:
        yield ("nvml",), use.memory_bytes
    if use.inferred_bytes is not None:
        yield ("inference",), use.inferred_bytes


def _activities(prefix: str, of: Kind, parts: Callable[[Any], Iterable[ActivityPart]]) -> list[Family]:
    """The part of each activity of a device that belongs to a process or container, and the error of these parts."""

    def reader(field: str) -> Callable[[Any], Series]:
        read = divided(field)
        return lambda use: [((part.method,), value) for part in parts(use) if (value := read(part.pct)) is not None]

    return [
        *(
            Family(f"{prefix}_{name}_ratio", G, of, f"{text}: the part that belongs to {OWNERS[of]}, by method.",
                   UTILIZATION if name == "graphics_active" else SHARED, series=reader(field), labels=("method",),
                   unit="ratio")
            for name, field, text in OWNED
        ),
        Family(f"{prefix}_activity_share_error_ratio", G, of,
               f"Standard deviation of the share that {OWNERS[of]} has in the activity of the device, by method; "
               "0 for exclusive, which is measured.",
               LEDGER, series=lambda use: [((part.method,), round(part.error, 3)) for part in parts(use)],
               labels=("method",), unit="ratio"),
    ]  # fmt: skip


PROCESSES: tuple[Family, ...] = (
    Family("gpu_process_info", I, PROCESS,
           "Type of GPU use, user, and systemd unit or batch job of the process.",
           f"{LISTS}; /proc/PID/status",
           series=_about, labels=("kind", "uid", "user", "unit", "batch_job", "batch_step", "batch_task",
                                  "batch_account", "outer_container")),
    Family("gpu_process_active", G, PROCESS,
           "1 while the process is on the GPU, 0 after it has left; absent while the driver lists no processes.",
           LISTS, flag("active")),
    Family("gpu_process_energy_joules_total", C, PROCESS,
           "Energy of the process, by method. exclusive is measured, others are estimates.",
           LEDGER, series=named("energy_mj", 1000), labels=("method",), unit="joules"),
    Family("gpu_process_energy_share_error_ratio", G, PROCESS,
           "Standard deviation of the process's share of the GPU's energy above parked power, over the last seconds; "
           "absent if the energy was not shared.",
           LEDGER, at("energy_share_error"), unit="ratio"),
    Family("gpu_process_busy_seconds_total", C, PROCESS, "Time in which the process used the compute engine.",
           SAMPLES, at("busy_ns", 1e9), unit="seconds"),
    Family("gpu_process_memory_used_bytes", G, PROCESS, "GPU memory of the process; absent if not reported.",
           LISTS, at("resident.memory_bytes"), unit="bytes"),
    Family("gpu_process_sm_utilization_ratio", G, PROCESS,
           "Share of time in which the process used the compute engine, sampled by the driver about every 0.2 s.",
           SAMPLES, at("sample.sm_pct", 100), unit="ratio"),
    Family("gpu_process_start_time_seconds", G, PROCESS, "Unix time at which the process started.",
           "/proc/PID/stat", at("facts.start_time_ms", 1000), unit="seconds"),
    Family("gpu_process_accounting_utilization_ratio", G, PROCESS,
           "Utilization of the compute engine over the lifetime of the process.", ACCOUNTING,
           at("accounting.gpu_pct", 100), unit="ratio"),
    Family("gpu_process_accounting_memory_utilization_ratio", G, PROCESS,
           "Memory activity over the lifetime of the process.", ACCOUNTING,
           at("accounting.memory_pct", 100), unit="ratio"),
    Family("gpu_process_accounting_peak_memory_bytes", G, PROCESS, "Peak GPU memory of the process.",
           ACCOUNTING, at("accounting.peak_memory_bytes"), unit="bytes"),
)  # fmt: skip

DCGM = "dcgmGetPidInfo, with --collector.dcgm"

# Most of DCGM's process statistics describe the whole GPU. The energy is a gauge, not a counter: DCGM keeps one hour of
# samples, so that the value of a longer process decreases, and rate() or increase() of it would be meaningless.
DCGM_PROCESSES: tuple[Family, ...] = (
    Family("gpu_process_dcgm_energy_joules", G, PROCESS,
           "Energy of the WHOLE GPU while the process was on it, at most of the last hour. Never booked; use "
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
           "Other compute processes on the GPU at the same time, at most 16.",
           DCGM, at("dcgm.other_processes"), needs="dcgm"),
    Family("gpu_process_dcgm_start_time_seconds", G, PROCESS,
           "Unix time at which the process first used a GPU.",
           DCGM, at("dcgm.start_us", 1e6), unit="seconds", needs="dcgm"),
)  # fmt: skip

CONTAINERS: tuple[Family, ...] = (
    Family("container_gpu_memory_bytes", G, CONTAINER,
           "GPU memory of the container: nvml for its listed processes, inference for its part of unlisted memory.",
           f"{LISTS}, or {MEMORY}",
           series=_memory, labels=("method",), unit="bytes"),
    Family("container_gpu_detected", G, ACCESS,
           "1 for each container that is or may be on the device, with the evidence.",
           f"{LISTS}, memory maps, allocations, NVIDIA_VISIBLE_DEVICES", lambda _: 1),
    Family("container_gpu_processes", G, CONTAINER, "Processes of the container on the device.",
           LISTS, at("processes")),
    Family("container_gpu_sm_utilization_ratio", G, CONTAINER,
           "Share of time in which processes of the container used the compute engine, summed.",
           SAMPLES, at("sm_pct", 100), unit="ratio"),
    Family("container_gpu_energy_joules_total", C, CONTAINER,
           "Energy of all processes of the container, including exited ones, by method.",
           LEDGER, series=named("energy_mj", 1000), labels=("method",), unit="joules"),
    Family("container_gpu_parked_energy_joules_total", C, CONTAINER,
           "Part of the container's energy that the GPU draws while all processes wait: parked power times time while "
           "the container was alone, else its equal part of it. Counted since the exporter first saw the container.",
           LEDGER, at("parked_mj", 1000), unit="joules"),
    Family("container_gpu_busy_seconds_total", C, CONTAINER,
           "Time in which processes of the container used the compute engine, including exited ones.",
           SAMPLES, at("busy_ns", 1e9), unit="seconds"),
    Family("gpu_owner_info", I, OWNER, "Properties of a container on a GPU.",
           RUNTIME, series=_properties,
           labels=("runtime", "image", "workload_kind", "workload_name", "outer_container")),
    Family("gpu_owner_label_info", I, OWNER,
           "Pod labels selected by --kubernetes.pod-labels, and Compose labels of a container; one series per label.",
           RUNTIME, series=lambda owner: [(pair, 1) for pair in owner.labels], labels=("label", "value")),
    Family("gpu_pod_allocation_info", I, POD_ALLOCATION, "A device allocated to a container of a pod.",
           "the kubelet's pod-resources API", lambda _: 1),
    Family("gpu_container_allocation_info", I, CONTAINER_ALLOCATION, "A device allocated to a container.",
           "Docker's or Podman's device requests, devices, and NVIDIA_VISIBLE_DEVICES", lambda _: 1),
    Family("gpu_job_allocation_info", I, JOB_ALLOCATION, "A device allocated to a batch job.",
           "the files of --slurm.job-mapping-dir", lambda _: 1),
)  # fmt: skip

ENGINES: tuple[Family, ...] = (
    Family("gpu_process_memory_utilization_ratio", G, PROCESS,
           "Share of time in which the process used the memory, sampled by the driver.",
           SAMPLES, at("sample.memory_pct", 100), unit="ratio"),
    Family("gpu_process_encoder_utilization_ratio", G, PROCESS, "Utilization of the video encoders by the process.",
           SAMPLES, at("sample.encoder_pct", 100), unit="ratio"),
    Family("gpu_process_decoder_utilization_ratio", G, PROCESS, "Utilization of the video decoders by the process.",
           SAMPLES, at("sample.decoder_pct", 100), unit="ratio"),
    Family("container_gpu_encoder_utilization_ratio", G, CONTAINER,
           "Utilization of the video encoders by processes of the container, summed.",
           SAMPLES, at("encoder_pct", 100), unit="ratio"),
    Family("container_gpu_decoder_utilization_ratio", G, CONTAINER,
           "Utilization of the video decoders by processes of the container, summed.",
           SAMPLES, at("decoder_pct", 100), unit="ratio"),
)  # fmt: skip
"""Memory and video, by process and container."""

ACTIVITIES: tuple[Family, ...] = (
    *_activities("gpu_process", PROCESS, lambda use: () if use.activity is None else (use.activity,)),
    *_activities("container_gpu", CONTAINER, attrgetter("activity")),
)
"""What GPM measures of a device, by process and container."""
