"""Pairs of workloads that would fit on one GPU, from the 95th percentiles of their memory and activity. Pure.

Percentiles of two workloads do not add up exactly: peaks at different times need less than the sum. The sum is the
cautious estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger.config import durations
from gpuledger.model.owners import Owner
from gpuledger.tools.idle.rows import pod_owner
from gpuledger.tools.prometheus.answer import Series

HEADROOM = 0.9
"""Part of the memory of a GPU that a pair may use."""
POINTS = 2016
"""Points of a subquery: one every five minutes of a week."""
SHORTEST_STEP_S = 15.0
BY = "cluster, namespace, exported_namespace, pod, exported_pod, container, exported_container, container_id, uuid"
MEASURES = {
    "memory": "container_gpu_memory_bytes",
    "activity": "container_gpu_sm_utilization_ratio",
}


def queries(window_s: float) -> dict[str, str]:
    """PromQL of each value: percentiles and observed time of containers, and size and model of GPUs."""
    step_s = max(SHORTEST_STEP_S, window_s / POINTS)
    span = f"[{durations.show(round(window_s))}:{durations.show(round(step_s))}]"
    each = {name: f"max by ({BY}, method) ({metric})" for name, metric in MEASURES.items()}
    sums = {name: f"sum by ({BY}) ({series})" for name, series in each.items()}
    now = f"and on (container_id, uuid) max by (container_id, uuid) ({MEASURES['memory']})"
    return {
        **{name: f"quantile_over_time(0.95, ({series}){span}) {now}" for name, series in sums.items()},
        "observed": f"count_over_time(({sums['memory']}){span}) * {round(step_s)} {now}",
        "size": "max by (cluster, uuid) (gpu_memory_total_bytes)",
        "model": "max by (cluster, uuid, name) (gpu_info)",
    }


@dataclass(frozen=True, slots=True)
class Workload:
    """A container that has a whole GPU to itself."""

    owner: Owner
    uuid: str
    place: tuple[str, str]
    """Cluster and model of the GPU."""
    memory: float
    """95th percentile as a part of the memory of the GPU."""
    activity: float
    """95th percentile of the SM time, from 0 to 1."""
    observed_seconds: float

    @property
    def need(self) -> float:
        """The larger of both."""
        return max(self.memory, self.activity)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two workloads that would fit on one GPU."""

    first: Workload
    second: Workload

    @property
    def memory(self) -> float:
        """Sum of both percentiles."""
        return self.first.memory + self.second.memory

    @property
    def activity(self) -> float:
        """Sum of both percentiles."""
        return self.first.activity + self.second.activity


def workloads(answers: Mapping[str, Iterable[Series]]) -> list[Workload]:
    """Containers that are alone on one GPU now; MIG instances and workloads on several GPUs are left out."""
    sizes = {_device(series.labels): series.value for series in answers["size"]}
    models = {_device(series.labels): series.labels.get("name", "") for series in answers["model"]}
    activity = {_place(series.labels): series.value for series in answers["activity"]}
    observed = {_place(series.labels): series.value for series in answers["observed"]}
    memory = {_place(series.labels): series for series in answers["memory"]}
    gpus_of = Counter(container for _, _, container in memory)
    users_of = Counter((cluster, uuid) for cluster, uuid, _ in memory)
    return [
        Workload(
            owner=pod_owner(series.labels, container),
            uuid=uuid,
            place=(cluster, models[cluster, uuid]),
            memory=series.value / sizes[cluster, uuid],
            activity=activity[cluster, uuid, container],
            observed_seconds=observed.get((cluster, uuid, container), 0.0),
        )
        for (cluster, uuid, container), series in memory.items()
        if gpus_of[container] == users_of[cluster, uuid] == 1
        and (cluster, uuid, container) in activity
        and sizes.get((cluster, uuid))
        and (cluster, uuid) in models
    ]


def find_pairs(candidates: Iterable[Workload]) -> list[Pair]:
    """Pairs on the same model of GPU; each workload is in one pair at most.

    The most demanding workload is paired with the most demanding one that fits, so that small ones are left for others.
    """
    left = sorted(candidates, key=lambda workload: (-workload.need, workload.uuid))
    pairs = []
    while left:
        first = left.pop(0)
        for second in left:
            pair = Pair(first, second)
            if first.place == second.place and pair.memory <= HEADROOM and pair.activity <= 1.0:
                pairs.append(pair)
                left.remove(second)
                break
    return pairs


def _device(labels: Mapping[str, str]) -> tuple[str, str]:
    return labels.get("cluster", ""), labels.get("uuid", "")


def _place(labels: Mapping[str, str]) -> tuple[str, str, str]:
    return (*_device(labels), labels.get("container_id", ""))
