"""PromQL queries for gpuledger's own metrics and for those of dcgm-exporter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger.catalog import CATALOG
from gpuledger.config import durations
from gpuledger.model.in_use import ALLOCATION_PROVIDERS, provider_pattern
from gpuledger.tools.fleet.in_use import HOLDER_LABELS, SOURCES, Key

ALLOCATIONS = "gpu_pod_allocation_info or gpu_container_allocation_info or gpu_job_allocation_info"
RESIDENTS = 'container_gpu_detected{evidence="process"}'
ALLOCATIONS_KNOWN = f'max(gpuledger_provider_up{{provider=~"{provider_pattern(ALLOCATION_PROVIDERS)}"}})'
"""Above 0 if a provider reports allocations, so that no allocation means that nothing is allocated."""
DCGM = "DCGM_FI_DEV_GPU_UTIL"
GPU_LABELS = frozenset(label for family in CATALOG if family.name == "gpu_info" for label in family.labels)


@dataclass(frozen=True, slots=True)
class Queries:
    """PromQL by purpose; an empty query is not run."""

    utilization: str
    memory: str = ""
    allocated: str = ""
    resident: str = ""
    residents: str = ""
    """Processes on the GPUs, with holder labels."""
    info: str = ""
    """Additional labels of the GPUs."""
    newest: str = ""
    """One value: Unix time of the newest utilization sample."""
    known: str = ""
    """One value: above 0 if allocations are reported."""

    def per_gpu(self) -> list[tuple[str, str]]:
        """The queries that return series per GPU and are not empty, by name."""
        names = ("utilization", "memory", "allocated", "resident", "residents", "info")
        return [(name, text) for name in names if (text := getattr(self, name))]


def native(groupings: Iterable[Key], window_s: float = 0.0) -> Queries:
    """Queries for gpuledger: current values or, over a window, busy seconds divided by in-use seconds."""
    labels = _sources(groupings)
    own = tuple(label for label in labels if label not in HOLDER_LABELS)
    held = tuple(label for label in labels if label in HOLDER_LABELS)
    described = tuple(label for label in labels if label in GPU_LABELS)
    window = f"[{durations.show(window_s)}]" if window_s else ""
    return Queries(
        utilization=_max(own, f"rate(gpu_busy_seconds_total{window})" if window else "gpu_utilization_ratio"),
        memory=_max((), f"avg_over_time(gpu_memory_utilization_ratio{window})" if window
                    else "gpu_memory_utilization_ratio"),
        allocated=_max(held, ALLOCATIONS),
        resident=_max((), f"rate(gpu_in_use_seconds_total{window})" if window else "gpu_in_use"),
        residents=_max(held, RESIDENTS) if held else "",
        info=_max(described, "gpu_info") if described else "",
        newest=f"max(timestamp({'gpu_busy_seconds_total' if window else 'gpu_utilization_ratio'}))",
        known=ALLOCATIONS_KNOWN,
    )  # fmt: skip


def dcgm(groupings: Iterable[Key]) -> Queries:
    """Queries for dcgm-exporter, which reports no processes and repeats the series of a shared GPU for each pod.

    `gpu_sharing_info` names the pods of a shared GPU in gpuledger's dcgm dialect.
    """
    labels = ("GPU_I_ID", *_sources(groupings))
    return Queries(
        utilization=_max(labels, DCGM, "UUID"),
        memory=_max(labels, "DCGM_FI_DEV_MEM_COPY_UTIL", "UUID"),
        allocated=_max(labels, f'{DCGM}{{pod!=""}} >= bool 0 or gpu_sharing_info', "UUID"),
        newest=f"max(timestamp({DCGM}))",
    )


def _sources(groupings: Iterable[Key]) -> tuple[str, ...]:
    names = [source for grouping in groupings for name in grouping for source in SOURCES.get(name, (name,))]
    return tuple(dict.fromkeys(names))


def _max(labels: tuple[str, ...], query: str, gpu: str = "uuid") -> str:
    """One series per GPU and label set, even if several jobs scrape it; a tenth of the bytes."""
    wanted = ", ".join(dict.fromkeys((gpu, *labels)))
    return f"max by ({wanted}) ({query})"
