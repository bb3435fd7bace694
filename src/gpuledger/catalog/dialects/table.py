"""All dialects: what each is called, where it is served, and what it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

from gpuledger.catalog.dialects.counters import Counter
from gpuledger.catalog.family import Family


@dataclass(frozen=True, slots=True)
class Choices:
    """What a user may choose about the dialects."""

    hostname: str = ""
    pod_uid: bool = False
    counters: tuple[Counter, ...] | None = None
    """Families of dcgm, in this order; None for those it has by itself."""
    prefix: str = "gpu_process"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to name things. Its module is loaded when somebody asks for it."""

    name: str
    module: str
    path: str
    """Where it is always served; empty where it must be asked for."""
    about: str

    def families(self, choices: Choices) -> tuple[Family, ...]:
        """Its metrics, in the order they are written."""
        made: tuple[Family, ...] = import_module(self.module).families(choices)
        return made


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect("native", "gpuledger.catalog.dialects.native", "", "gpuledger's own names, in docs/metrics.md"),
        Dialect("dcgm", "gpuledger.catalog.dialects.dcgm", "/dcgm/metrics", "NVIDIA's dcgm-exporter, 2.0 and newer"),
        Dialect("dcgm1", "gpuledger.catalog.dialects.dcgm1", "/gpu/metrics", "the pod exporter before it, 1.x"),
        Dialect("inference", "gpuledger.catalog.dialects.inference", "", "containers' memory, told and inferred"),
        Dialect("process", "gpuledger.catalog.dialects.process", "", "energy exporters by process"),
    )
}


def speak(names: Iterable[str], choices: Choices) -> tuple[Family, ...]:
    """The families of these dialects one after the other; of two with one name, the first."""
    families: dict[str, Family] = {}
    for name in names:
        for family in DIALECTS[name].families(choices):
            families.setdefault(family.name, family)
    return tuple(families.values())
