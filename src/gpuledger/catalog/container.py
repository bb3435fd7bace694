"""Metrics of containers on devices, their properties and their allocations."""

from __future__ import annotations

from gpuledger.catalog.family import C, Family, G, I, Series, at, info, named
from gpuledger.catalog.gpu import LEDGER, LISTS, MEMORY
from gpuledger.catalog.kinds import ACCESS, CONTAINER, CONTAINER_ALLOCATION, JOB_ALLOCATION, OWNER, POD_ALLOCATION
from gpuledger.catalog.process import SAMPLES
from gpuledger.model import ContainerUse

RUNTIME = "Docker, Podman, CRI or the Kubernetes API"


def _memory(use: ContainerUse) -> Series:
    if use.memory_bytes is not None:
        yield ("nvml",), use.memory_bytes
    if use.inferred_bytes is not None:
        yield ("inference",), use.inferred_bytes


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
    Family("container_gpu_busy_seconds_total", C, CONTAINER,
           "Time in which processes of the container used the compute engine, including exited ones.",
           SAMPLES, at("busy_ns", 1e9), unit="seconds"),
    Family("gpu_owner_info", I, OWNER, "Properties of a container on a GPU; join on container_id.",
           RUNTIME, series=info("runtime", "image", "workload_kind", "workload_name"),
           labels=("runtime", "image", "workload_kind", "workload_name")),
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
