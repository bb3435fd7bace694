"""What to ask a Prometheus, for gpuledger's own metrics, for dcgm-exporter's, and for any other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuledger import durations
from gpuledger.catalog import CATALOG
from gpuledger.fleet.in_use import SOURCES, Key

ABOUT_HOLDERS = frozenset((
    "namespace", "pod", "container", "pod_uid", "container_id", "batch_job",
    "exported_namespace", "exported_pod", "exported_container",
))  # fmt: skip
"""Labels that say who holds a GPU. On series that have none of their own they are those of the exporter's pod."""
ALLOCATIONS = "gpu_pod_allocation_info or gpu_container_allocation_info or gpu_job_allocation_info"
ON_IT = 'container_gpu_detected{evidence="process"}'
KNOWN = 'max(gpuledger_provider_up{provider=~"podresources|docker|podman|hpcdir"})'
"""Above 0 where somebody would say what was given to whom, so that nothing said is nothing given."""
DCGM = "DCGM_FI_DEV_GPU_UTIL"
ABOUT_GPUS = frozenset(label for family in CATALOG if family.name == "gpu_info" for label in family.labels)


@dataclass(frozen=True, slots=True)
class Queries:
    """PromQL by what it answers; nothing is asked where it is empty."""

    utilization: str
    memory: str = ""
    allocated: str = ""
    resident: str = ""
    residents: str = ""
    """Who is on the GPUs, with the labels of holders."""
    info: str = ""
    """More labels of the GPUs."""
    newest: str = ""
    """One number: Unix time of the newest sample of utilization."""
    known: str = ""
    """One number: above 0 where it would be known if a GPU was allocated."""

    def asked(self) -> list[tuple[str, str]]:
        """Those that are not empty, by name; the last two are not of single GPUs."""
        return [(name, text) for name in self.__slots__[:-2] if (text := getattr(self, name))]


def native(groupings: Iterable[Key], window_s: float = 0.0) -> Queries:
    """Of gpuledger: what is now or, over a time, busy seconds over in-use seconds."""
    labels = _sources(groupings)
    own = tuple(label for label in labels if label not in ABOUT_HOLDERS)
    held = tuple(label for label in labels if label in ABOUT_HOLDERS)
    described = tuple(label for label in labels if label in ABOUT_GPUS)
    window = f"[{durations.show(window_s)}]" if window_s else ""
    return Queries(
        utilization=_max(own, f"rate(gpu_busy_seconds_total{window})" if window else "gpu_utilization_ratio"),
        memory=_max((), f"avg_over_time(gpu_memory_utilization_ratio{window})" if window
                    else "gpu_memory_utilization_ratio"),
        allocated=_max(held, ALLOCATIONS),
        resident=_max((), f"rate(gpu_in_use_seconds_total{window})" if window else "gpu_in_use"),
        residents=_max(held, ON_IT) if held else "",
        info=_max(described, "gpu_info") if described else "",
        newest=f"max(timestamp({'gpu_busy_seconds_total' if window else 'gpu_utilization_ratio'}))",
        known=KNOWN,
    )  # fmt: skip


def dcgm(groupings: Iterable[Key]) -> Queries:
    """Of dcgm-exporter, which knows no processes. It repeats a shared GPU for each of its pods."""
    labels = ("GPU_I_ID", *_sources(groupings))
    return Queries(
        utilization=_max(labels, DCGM, "UUID"),
        memory=_max(labels, "DCGM_FI_DEV_MEM_COPY_UTIL", "UUID"),
        allocated=_max(labels, f'{DCGM}{{pod!=""}}', "UUID"),
        newest=f"max(timestamp({DCGM}))",
    )


def _sources(groupings: Iterable[Key]) -> tuple[str, ...]:
    names = [source for grouping in groupings for name in grouping for source in SOURCES.get(name, (name,))]
    return tuple(dict.fromkeys(names))


def _max(labels: tuple[str, ...], query: str, gpu: str = "uuid") -> str:
    """One series a GPU and what is asked of it, however many scrape it: also a tenth of the bytes."""
    wanted = ", ".join(dict.fromkeys((gpu, *labels)))
    return f"max by ({wanted}) ({query})"
