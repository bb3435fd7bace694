"""Names of exporters that infer which container holds memory that no listed process has."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.catalog.dialects import Choices
from gpuledger.catalog.family import Family, G, Kind, Series, Thing, at
from gpuledger.catalog.gpu import has_unknown_memory
from gpuledger.catalog.kinds import ACCESS
from gpuledger.model import Tick

METHODS = ("nvidia-smi", "inference")


def _containers(tick: Tick) -> list[Thing]:
    """Bytes by method of each container, summed over the MIG instances of a GPU."""
    containers: dict[tuple[str, str, str], dict[str, int]] = {}
    for use in tick.containers:
        by_method = containers.setdefault((use.owner.container, use.owner.container_id, str(use.device.index)), {})
        for method, amount in zip(METHODS, (use.memory_bytes, use.inferred_bytes), strict=True):
            if amount is not None:
                by_method[method] = by_method.get(method, 0) + amount
    return list(containers.items())


def _gpus(tick: Tick) -> list[Thing]:
    return [((str(r.device.index),), r) for r in tick.readings if not r.device.parent_uuid]


def _gpu_memory(tick: Tick) -> list[Thing]:
    return [(labels, tick.memory[r.device.uuid]) for labels, r in _gpus(tick) if r.device.uuid in tick.memory]


def _memory(by_method: Mapping[str, int]) -> Series:
    return [((method,), by_method[method]) for method in METHODS if method in by_method]


def _access(tick: Tick) -> list[Thing]:
    """Every container that is or may be on a GPU, as in the native metrics."""
    wanted = [ACCESS.labels.index(label) for label in ("container", "container_id", "gpu")]
    return [(tuple(labels[i] for i in wanted), None) for labels, _ in ACCESS.things(tick)]


CONTAINERS = Kind(("container_name", "container_id", "gpu"), _containers)
DETECTED = Kind(CONTAINERS.labels, _access)
GPUS = Kind(("gpu",), _gpus)
GPU_MEMORY = Kind(("gpu",), _gpu_memory)

FAMILIES: tuple[Family, ...] = (
    Family("container_gpu_memory_bytes", G, CONTAINERS, "GPU memory of the container, listed or inferred.",
           "container_gpu_memory_bytes", series=_memory, labels=("method",), unit="bytes"),
    Family("container_gpu_detected", G, DETECTED, "1 for each container that is or may be on the GPU.",
           "container_gpu_detected", lambda _: 1),
    Family("gpu_memory_total_bytes", G, GPUS, "Total memory of the GPU.", "gpu_memory_total_bytes",
           at("memory_total_bytes"), unit="bytes"),
    Family("gpu_memory_used_bytes", G, GPUS, "Used memory of the GPU.", "gpu_memory_used_bytes",
           at("memory_used_bytes"), unit="bytes"),
    Family("gpu_memory_free_bytes", G, GPUS, "Free memory of the GPU.", "gpu_memory_free_bytes",
           at("memory_free_bytes"), unit="bytes"),
    Family("gpu_memory_known_bytes", G, GPU_MEMORY, "Memory of listed processes.", "gpu_memory_known_bytes",
           at("known_bytes"), unit="bytes"),
    Family("gpu_memory_unknown_bytes", G, GPU_MEMORY, "Used memory that no listed process holds.",
           "gpu_memory_unknown_bytes", at("unknown_bytes"), unit="bytes"),
    Family("gpu_inference_active", G, GPU_MEMORY, "1 if used memory exceeds what the listed processes hold.",
           "gpu_inference_active", has_unknown_memory),
    Family("gpu_inference_candidates", G, GPU_MEMORY, "Containers that may hold the unknown memory.",
           "gpu_inference_candidates", at("candidates")),
)  # fmt: skip


def families(_: Choices) -> tuple[Family, ...]:
    """All families of the dialect."""
    return FAMILIES
