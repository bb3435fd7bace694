"""The names of exporters that infer which container holds memory that no listed process has."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.catalog.dialects.table import Choices
from gpuledger.catalog.family import Family, G, Kind, Series, Thing, Value, at
from gpuledger.model import MemoryAccount, Tick


@dataclass(slots=True)
class Held:
    """Memory of one container on one GPU, its MIG instances taken together."""

    told_bytes: int | None = None
    inferred_bytes: int | None = None
    processes: int = 0


def _containers(tick: Tick) -> list[Thing]:
    found: dict[tuple[str, ...], Held] = {}
    for use in tick.containers:
        held = found.setdefault((use.owner.container, use.owner.container_id, str(use.device.index)), Held())
        held.processes += use.processes
        if use.memory_bytes is not None:
            held.told_bytes = (held.told_bytes or 0) + use.memory_bytes
        if use.inferred_bytes is not None:
            held.inferred_bytes = (held.inferred_bytes or 0) + use.inferred_bytes
    return list(found.items())


def _gpus(tick: Tick) -> list[Thing]:
    return [((str(r.device.index),), r) for r in tick.readings if not r.device.parent_uuid]


def _gpu_memory(tick: Tick) -> list[Thing]:
    return [(labels, tick.memory[r.device.uuid]) for labels, r in _gpus(tick) if r.device.uuid in tick.memory]


def _memory(held: Held) -> Series:
    told = [("nvidia-smi", held.told_bytes), ("inference", held.inferred_bytes)]
    return [((method,), held_bytes) for method, held_bytes in told if held_bytes is not None]


def _detected(held: Held) -> Value | None:
    return 1 if held.processes or held.inferred_bytes else None


def _active(memory: MemoryAccount) -> Value | None:
    return int(memory.inferred_bytes > 0)


CONTAINERS = Kind(("container_name", "container_id", "gpu"), _containers)
GPUS = Kind(("gpu",), _gpus)
GPU_MEMORY = Kind(("gpu",), _gpu_memory)

FAMILIES: tuple[Family, ...] = (
    Family("container_gpu_memory_bytes", G, CONTAINERS, "GPU memory of the container: told by the driver, or inferred.",
           "container_gpu_memory_bytes", series=_memory, labels=("method",), unit="bytes"),
    Family("container_gpu_detected", G, CONTAINERS, "1 for a container that uses the GPU.", "container_gpu_processes",
           _detected),
    Family("gpu_memory_total_bytes", G, GPUS, "Memory of the GPU.", "gpu_memory_total_bytes",
           at("memory_total_bytes"), unit="bytes"),
    Family("gpu_memory_used_bytes", G, GPUS, "Memory in use.", "gpu_memory_used_bytes",
           at("memory_used_bytes"), unit="bytes"),
    Family("gpu_memory_free_bytes", G, GPUS, "Memory nobody holds.", "gpu_memory_free_bytes",
           at("memory_free_bytes"), unit="bytes"),
    Family("gpu_memory_known_bytes", G, GPU_MEMORY, "Memory of listed processes.", "gpu_memory_known_bytes",
           at("known_bytes"), unit="bytes"),
    Family("gpu_memory_unknown_bytes", G, GPU_MEMORY, "Used memory that no listed process holds.",
           "gpu_memory_unknown_bytes", at("unknown_bytes"), unit="bytes"),
    Family("gpu_inference_active", G, GPU_MEMORY, "1 while some of the unknown memory is inferred to containers.",
           "gpu_inference_active", _active),
    Family("gpu_inference_candidates", G, GPU_MEMORY, "Containers that may hold the unknown memory.",
           "gpu_inference_candidates", at("candidates")),
)  # fmt: skip


def families(_: Choices) -> tuple[Family, ...]:
    """All of them."""
    return FAMILIES
