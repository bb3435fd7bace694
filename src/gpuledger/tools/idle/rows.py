"""Idle allocations of one node, from its snapshot, or of all nodes, from a Prometheus; ranked by cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuledger.catalog import metrics
from gpuledger.model import IDLE_REASONS
from gpuledger.model.owners import Owner
from gpuledger.tools.prometheus.answer import Series
from gpuledger.tools.prometheus.expression import series
from gpuledger.web.snapshot.build import free_command
from gpuledger.web.snapshot.schema import Snapshot

JOULES_PER_KWH = 3.6e6
QUERIES = {
    "idle_since": metrics.gpu_allocation_idle_since_timestamp_seconds,
    "gpu_seconds": metrics.gpu_allocation_idle_period_gpu_seconds,
    "joules": metrics.gpu_allocation_idle_period_energy_joules,
    "shared_by": metrics.gpu_allocation_shared_by,
    "state": series(metrics.gpu_allocation_state).where("state", "=~", "|".join(IDLE_REASONS)).op("==", 1).text,
}
"""PromQL of each value of an idle allocation."""
OWNER_LABELS = ("namespace", "pod", "container")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a kWh and of a GPU-hour; None if not given."""

    kwh: float | None = None
    gpu_hour: float | None = None
    currency: str = ""

    def cost(self, gpu_hours: float, kwh: float | None) -> float | None:
        """The cost of idle hours and energy; None without prices, or if the energy is priced and unknown."""
        if (self.kwh is None and self.gpu_hour is None) or (self.kwh is not None and kwh is None):
            return None
        return (self.kwh or 0.0) * (kwh or 0.0) + (self.gpu_hour or 0.0) * gpu_hours


@dataclass(frozen=True, slots=True)
class IdleRow:
    """An allocation that is idle now. Hours and energy are those since it was last busy."""

    node: str
    gpu: str
    uuid: str
    owner: Owner
    state: str
    idle_since: float
    """Unix time."""
    idle_seconds: float
    gpu_hours: float
    kwh: float | None
    cost: float | None
    shared_by: int

    @property
    def command(self) -> str:
        """The command that would free the device. Built here: an exporter is not trusted with a shell command."""
        return free_command(self.owner.namespace, self.owner.pod, self.owner.container, self.owner.job)


def rows_of_node(snapshot: Snapshot, prices: Prices) -> list[IdleRow]:
    """The idle allocations of one exporter."""
    rows = []
    for row in snapshot.allocations:
        if row.idle_since is None or row.state not in IDLE_REASONS:
            continue
        hours, kwh = row.period_gpu_seconds / 3600, _kwh(row.period_joules)
        rows.append(
            IdleRow(
                node=snapshot.node,
                gpu=str(row.gpu),
                uuid=row.uuid,
                owner=Owner(
                    namespace=row.namespace,
                    pod=row.pod,
                    container=row.container,
                    container_id=row.container_id,
                    job=row.job,
                ),
                state=row.state,
                idle_since=row.idle_since,
                idle_seconds=max(0.0, snapshot.time - row.idle_since),
                gpu_hours=hours,
                kwh=kwh,
                cost=prices.cost(hours, kwh),
                shared_by=row.shared_by,
            )
        )
    return rows


def rows_of_fleet(answers: Mapping[str, Iterable[Series]], now_s: float, prices: Prices) -> list[IdleRow]:
    """The idle allocations of all exporters; `answers` has the results of QUERIES.

    An exporter that is scraped twice counts once.
    """
    values = {name: {_key(entry.labels): entry for entry in answer} for name, answer in answers.items()}
    rows = []
    for key, state in values["state"].items():
        since, seconds = values["idle_since"].get(key), values["gpu_seconds"].get(key)
        if since is None or seconds is None:
            continue
        joules, shared_by = values["joules"].get(key), values["shared_by"].get(key)
        hours, kwh = seconds.value / 3600, _kwh(None if joules is None else joules.value)
        rows.append(
            IdleRow(
                node=node_of(since.labels),
                gpu=since.labels.get("gpu", ""),
                uuid=since.labels.get("uuid", ""),
                owner=_owner(since.labels),
                state=state.labels["state"],
                idle_since=since.value,
                idle_seconds=max(0.0, now_s - since.value),
                gpu_hours=hours,
                kwh=kwh,
                cost=prices.cost(hours, kwh),
                shared_by=1 if shared_by is None else round(shared_by.value),
            )
        )
    return rows


def ranked(rows: Iterable[IdleRow], min_s: float) -> list[IdleRow]:
    """The allocations that are idle for at least `min_s`; the most expensive first, without prices by GPU-hours."""
    long = [row for row in rows if row.idle_seconds >= min_s]
    return sorted(
        long, key=lambda row: (-(row.cost or 0.0), -row.gpu_hours, row.node, row.uuid, row.owner.display_name)
    )


def _kwh(joules: float | None) -> float | None:
    return None if joules is None else joules / JOULES_PER_KWH


def label(labels: Mapping[str, str], name: str) -> str:
    """A label of the exporter; a Prometheus without honor_labels renames it to exported_..."""
    return labels.get(f"exported_{name}", labels.get(name, ""))


def _key(labels: Mapping[str, str]) -> tuple[str, ...]:
    names = (label(labels, name) for name in OWNER_LABELS)
    others = (labels.get(name, "") for name in ("cluster", "uuid", "container_id", "batch_job"))
    return (*others, *names)


def _owner(labels: Mapping[str, str]) -> Owner:
    """The owner. Namespace and pod of a container or job, which has none, are those of the scraped exporter."""
    if job := labels.get("batch_job", ""):
        return Owner(job=job)
    if container_id := labels.get("container_id", ""):
        return Owner(container=label(labels, "container"), container_id=container_id)
    return pod_owner(labels)


def pod_owner(labels: Mapping[str, str], container_id: str = "") -> Owner:
    """The owner as the labels name it."""
    namespace, pod, container = (label(labels, name) for name in OWNER_LABELS)
    return Owner(namespace=namespace, pod=pod, container=container, container_id=container_id)


def node_of(labels: Mapping[str, str]) -> str:
    """The node, or the host of the scraped address."""
    instance = labels.get("instance", "")
    host, _, port = instance.rpartition(":")
    return labels.get("node") or (host if host and port.isdecimal() else instance)
