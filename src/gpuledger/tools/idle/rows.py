"""Idle allocations of one node, from its snapshot, or of all nodes, from a Prometheus; ranked by cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuledger.catalog import metrics
from gpuledger.model import ADVICE_AFTER_S, IDLE_REASONS
from gpuledger.model.owners import Owner
from gpuledger.tools.prices import Prices
from gpuledger.tools.prometheus.answer import Series, label, node_of
from gpuledger.tools.prometheus.expression import series
from gpuledger.tools.text import JOULES_PER_KWH
from gpuledger.web.snapshot.build import free_command
from gpuledger.web.snapshot.schema import Snapshot

QUERIES = {
    "idle_since": series(metrics.gpu_allocation_idle_since_timestamp_seconds).text,
    "gpu_seconds": series(metrics.gpu_allocation_idle_period_gpu_seconds).text,
    "joules": series(metrics.gpu_allocation_idle_period_energy_joules).text,
    "shared_by": series(metrics.gpu_allocation_shared_by).text,
    "state": series(metrics.gpu_allocation_state).where("state", "=~", "|".join(IDLE_REASONS)).op("==", 1).text,
}
"""PromQL of each value of an idle allocation."""
OWNER_LABELS = ("namespace", "pod", "container")
OWNER = (*OWNER_LABELS, "container_id", "job")
"""Fields of an owner that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRow:
    """An allocation that is idle now. Hours and energy are those since it was last busy."""

    node: str
    gpu: str
    uuid: str
    owner: Owner
    state: str
    idle_since: float
    """Unix time."""
    now_s: float
    gpu_seconds: float
    joules: float | None
    prices: Prices
    shared_by: int
    advice_after_s: float = ADVICE_AFTER_S
    """Idle time from which there is a command."""

    @property
    def idle_seconds(self) -> float:
        """How long it is idle."""
        return max(0.0, self.now_s - self.idle_since)

    @property
    def gpu_hours(self) -> float:
        """Idle hours, as a part of the whole GPU."""
        return self.gpu_seconds / 3600

    @property
    def kwh(self) -> float | None:
        """Energy while it was idle."""
        return None if self.joules is None else self.joules / JOULES_PER_KWH

    @property
    def cost(self) -> float | None:
        """The cost of hours and energy."""
        return self.prices.cost(self.gpu_hours, self.kwh)

    @property
    def command(self) -> str:
        """The command that would free the device. Built here: an exporter is not trusted with a shell command."""
        if self.idle_seconds < self.advice_after_s:
            return ""
        return free_command(self.owner.namespace, self.owner.pod, self.owner.container, self.owner.job)


def rows_of_node(snapshot: Snapshot, prices: Prices) -> list[IdleRow]:
    """The idle allocations of one exporter."""
    return [
        IdleRow(
            node=snapshot.node,
            gpu=str(row.gpu),
            uuid=row.uuid,
            owner=Owner(**{name: getattr(row, name) for name in OWNER}),
            state=row.state,
            idle_since=row.idle_since,
            now_s=snapshot.time,
            gpu_seconds=row.period_gpu_seconds,
            joules=row.period_joules,
            prices=prices,
            shared_by=row.shared_by or 1,
        )
        for row in snapshot.allocations
        if row.idle_since is not None and row.state in IDLE_REASONS
    ]


def rows_of_fleet(answers: Mapping[str, Iterable[Series]], now_s: float, prices: Prices) -> list[IdleRow]:
    """The idle allocations of all exporters; `answers` has the results of QUERIES.

    An exporter that is scraped twice counts once.
    """
    values = {name: {_key(labels): value for labels, value in answer} for name, answer in answers.items()}
    labels = {_key(labels): labels for labels, _ in answers["idle_since"]}
    states = {_key(labels): labels["state"] for labels, _ in answers["state"]}
    return [
        IdleRow(
            node=node_of(labels[key]),
            gpu=labels[key].get("gpu", ""),
            uuid=labels[key].get("uuid", ""),
            owner=allocation_owner(labels[key]),
            state=state,
            idle_since=values["idle_since"][key],
            now_s=now_s,
            gpu_seconds=values["gpu_seconds"][key],
            joules=values["joules"].get(key),
            prices=prices,
            shared_by=round(values["shared_by"].get(key, 1)),
        )
        for key, state in states.items()
        if key in values["idle_since"] and key in values["gpu_seconds"]
    ]


def ranked(rows: Iterable[IdleRow], min_s: float) -> list[IdleRow]:
    """Those idle for so long, with the command; with 0 all, as yet without it. The most expensive first, or longest."""
    long = [replace(row, advice_after_s=min_s or row.advice_after_s) for row in rows if row.idle_seconds >= min_s]
    return sorted(
        long, key=lambda row: (-(row.cost or 0.0), -row.gpu_hours, row.node, row.uuid, row.owner.display_name)
    )


def _key(labels: Mapping[str, str]) -> tuple[str, ...]:
    names = (label(labels, name) for name in OWNER_LABELS)
    others = (labels.get(name, "") for name in ("cluster", "uuid", "container_id", "batch_job"))
    return (*others, *names)


def allocation_owner(labels: Mapping[str, str]) -> Owner:
    """The owner of an allocation. Of a container or job, these labels are those of the scraped exporter."""
    if job := labels.get("batch_job", ""):
        return Owner(job=job)
    if container_id := labels.get("container_id", ""):
        return Owner(container=label(labels, "container"), container_id=container_id)
    return pod_owner(labels)


def pod_owner(labels: Mapping[str, str], container_id: str = "") -> Owner:
    """The owner as the labels name it."""
    namespace, pod, container = (label(labels, name) for name in OWNER_LABELS)
    return Owner(namespace=namespace, pod=pod, container=container, container_id=container_id)
