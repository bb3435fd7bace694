"""Names of OpenTelemetry's semantic conventions for hardware, processes, containers and Kubernetes.

A metric that the conventions lack keeps its own name, with the labels below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Convention:
    """The name of a metric in the conventions."""

    name: str
    attributes: tuple[tuple[str, str], ...] = ()
    """Attributes that all its series have."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Attributes instead of labels, beside LABELS."""


def _task(name: str) -> Convention:
    return Convention("hw.gpu.utilization", (("hw.gpu.task", name),))


def _io(direction: str) -> Convention:
    return Convention("hw.gpu.io", (("network.io.direction", direction),))


CONVENTIONS: Mapping[str, Convention] = {
    "gpu_up": Convention("hw.status", (("hw.state", "ok"),)),
    "gpu_memory_used_bytes": Convention("hw.gpu.memory.usage"),
    "gpu_memory_total_bytes": Convention("hw.gpu.memory.limit"),
    "gpu_mig_memory_used_bytes": Convention("hw.gpu.memory.usage"),
    "gpu_mig_memory_total_bytes": Convention("hw.gpu.memory.limit"),
    "gpu_utilization_ratio": _task("general"),
    "gpu_encoder_utilization_ratio": _task("encoder"),
    "gpu_decoder_utilization_ratio": _task("decoder"),
    "gpu_nvlink_transmit_bytes_total": _io("transmit"),
    "gpu_nvlink_receive_bytes_total": _io("receive"),
    "gpu_energy_joules_total": Convention("hw.energy"),
    "gpu_power_watts": Convention("hw.power"),
    "gpu_temperature_celsius": Convention("hw.temperature", labels={"sensor": "hw.sensor_location"}),
    "gpu_ecc_errors_total": Convention("hw.errors", labels={"error": "error.type"}),
    "gpu_process_memory_used_bytes": Convention("process.gpu.memory.usage"),
    "gpu_process_sm_utilization_ratio": Convention("process.gpu.utilization"),
}
"""Conventions by native name. MIG instances have `hw.parent`, so that a sum over GPUs can leave them out."""

LABELS: Mapping[str, str] = {
    "uuid": "hw.id",
    "parent_uuid": "hw.parent",
    "pid": "process.pid",
    "process_name": "process.executable.name",
    "container_id": "container.id",
    "namespace": "k8s.namespace.name",
    "pod": "k8s.pod.name",
    "pod_uid": "k8s.pod.uid",
}
"""Attributes instead of labels. A container is `k8s.container.name` in a pod, else `container.name`."""

UNITS: Mapping[str, str] = {
    "joules": "J", "bytes": "By", "seconds": "s", "ratio": "1", "watts": "W", "celsius": "Cel", "hertz": "Hz",
}  # fmt: skip
"""Units in the notation of UCUM."""
