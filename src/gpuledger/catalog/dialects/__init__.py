"""Dialects: the same tick under the metric names of other exporters, so that their dashboards and alerts keep working.

Each dialect is a table of families. `gpuledger.model.holders` decides which container holds a device, and
`gpuledger.catalog.dialects.division` divides the device's values among its containers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

from gpuledger.catalog import OPTIONAL, families_in, groups_with
from gpuledger.catalog.dialects.counters import Counter
from gpuledger.catalog.dialects.dcgmnames import BOTH
from gpuledger.catalog.family import Family

DEVICE, DIVIDE, COPY = "device", "divide", "copy"
SHARED = (DEVICE, DIVIDE, COPY)
"""What the dcgm dialects show for a shared GPU: the whole GPU once, the part of each pod, or the whole GPU per pod."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Options of the dialects."""

    hostname: str = ""
    pod_uid: bool = False
    counters: tuple[Counter, ...] | None = None
    """Families of the dcgm dialect, in this order; None for the default ones."""
    prefix: str = "gpu_process"
    shared: str = DEVICE
    """One of SHARED."""
    names: str = BOTH
    """One of dcgmnames.NAMES."""
    created: bool = False
    """Whether OpenMetrics has the time at which counters were created."""
    optional: tuple[str, ...] = OPTIONAL
    """Optional groups of native metrics to expose."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A set of metric names. Its module is imported on first use."""

    name: str
    path: str
    """The path that always serves it; empty if it must be requested."""
    about: str

    def families(self, choices: Choices) -> tuple[Family, ...]:
        """The metrics, in the order they are written."""
        if self.name == "native":
            return families_in(groups_with(choices.optional))
        families: tuple[Family, ...] = import_module(f"{__name__}.{self.name}").families(choices)
        return families


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("native", "", "gpuledger's own names, in docs/metrics.md"),
        Dialect("dcgm", "/dcgm/metrics", "NVIDIA's dcgm-exporter, 2.0 to 4.9"),
        Dialect("dcgm1", "/gpu/metrics", "the pod exporter of dcgm-exporter 1.x"),
        Dialect("inference", "/inference/metrics", "exporters that infer containers' memory"),
        Dialect("process", "/process/metrics", "exporters of energy by process"),
        Dialect("jobstats", "/jobstats/metrics", "Princeton's jobstats: nvidia_gpu_prometheus_exporter"),
    )
}


def families_of(names: Iterable[str], choices: Choices) -> tuple[Family, ...]:
    """The families of these dialects in sequence; of two families with the same name, the first."""
    families: dict[str, Family] = {}
    for name in names:
        for family in DIALECTS[name].families(choices):
            families.setdefault(family.name, family)
    return tuple(families.values())
