"""Pairs of workloads that would fit on one GPU, from the 95th percentiles of their memory and activity. Pure.

Percentiles of two workloads do not add up exactly: peaks at different times need less than the sum. The sum is the
cautious estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger.catalog import metrics
from gpuledger.config import durations
from gpuledger.model.owners import Owner
from gpuledger.tools.idle.rows import pod_owner
from gpuledger.tools.prometheus.answer import Series
from gpuledger.tools.prometheus.expression import series

HEADROOM = 0.9
"""Part of the memory of a GPU that a pair may use."""
POINTS = 2016
"""Points of a subquery: one every five minutes of a week."""
SHORTEST_STEP_S = 15.0
CONTAINER = (
    "cluster", "namespace", "exported_namespace", "pod", "exported_pod", "container", "exported_container",
    "container_id", "uuid",
)  # fmt: skip
MEMORY, ACTIVITY = series(metrics.container_gpu_memory_bytes), series(metrics.container_gpu_sm_utilization_ratio)


def queries(window_s: float) -> dict[str, str]:
    """PromQL of each value: percentiles and observed time of containers, and size and model of GPUs."""
    step_s = round(max(SHORTEST_STEP_S, window_s / POINTS))
    window, step = durations.show(round(window_s)), durations.show(step_s)
    place = ("container_id", "uuid")
    now = MEMORY.max_by(*place)
    memory, activity = (gauge.max_by(*CONTAINER, "method").sum_by(*CONTAINER) for gauge in (MEMORY, ACTIVITY))
    observed = memory.sampled("count_over_time", window, step).op("*", step_s)
    expressions = {
        "memory": memory.sampled("quantile_over_time", window, step, 0.95).op("and", now, place),
        "activity": activity.sampled("quantile_over_time", window, step, 0.95).op("and", now, place),
        "observed": observed.op("and", now, place),
        "size": series(metrics.gpu_memory_total_bytes).max_by("cluster", "uuid"),
        "model": series(metrics.gpu_info).max_by("cluster", "uuid", "name"),
    }
    return {name: expression.text for name, expression in expressions.items()}


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
    sizes = {_device(labels): value for labels, value in answers["size"]}
    models = {_device(labels): labels.get("name", "") for labels, _ in answers["model"]}
    activity = {_place(labels): value for labels, value in answers["activity"]}
    observed = {_place(labels): value for labels, value in answers["observed"]}
    memory = {_place(labels): (labels, value) for labels, value in answers["memory"]}
    gpus_of = Counter(container for _, _, container in memory)
    users_of = Counter((cluster, uuid) for cluster, uuid, _ in memory)
    return [
        Workload(
            owner=pod_owner(labels, container),
            uuid=uuid,
            place=(cluster, models[cluster, uuid]),
            memory=value / sizes[cluster, uuid],
            activity=activity[cluster, uuid, container],
            observed_seconds=observed.get((cluster, uuid, container), 0.0),
        )
        for (cluster, uuid, container), (labels, value) in memory.items()
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
