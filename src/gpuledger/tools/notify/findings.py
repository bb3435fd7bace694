"""What the rules find in Prometheus: allocations that are idle, or used far below what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuledger.catalog import metrics
from gpuledger.config import durations
from gpuledger.model.owners import Owner
from gpuledger.tools.idle.rows import QUERIES, allocation_owner, rows_of_fleet
from gpuledger.tools.notify.config import NotifyConfig
from gpuledger.tools.prometheus.answer import Series, node_of
from gpuledger.tools.prometheus.expression import series
from gpuledger.tools.text import fixed, moment, percent, span

POINTS = 1440
"""Points of a window at most: one each minute of a day. A window counts if 95 % of them have a value."""
COVERED = 0.95
Answers = Mapping[str, Iterable[Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One allocation whose owner should know."""

    reason: str
    """GpuIdle or GpuBelowEntitlement, for programs."""
    about: str
    owner: Owner
    node: str
    gpu: str
    uuid: str
    lines: tuple[str, ...]
    """What was found: since when, GPU-hours, cost."""
    command: str = ""
    """The command that would free the device."""
    since_s: float
    user: str = ""
    """The Unix user of a batch job, if it is known."""
    account: str = ""

    @property
    def key(self) -> str:
        """The identity of the allocation."""
        owner = self.owner
        return "\n".join((self.uuid, owner.namespace, owner.pod, owner.container_id or owner.container, owner.job))


def queries(config: NotifyConfig) -> dict[str, str]:
    """PromQL by name."""
    processes = series(metrics.gpu_process_info).where("batch_job", "!=", "").where("user", "!=", "root")
    named = {
        **(QUERIES if config.idle_s is not None else {}),
        "users": processes.over("last_over_time", "1d").max_by("batch_job", "user").text,
        "accounts": series(metrics.gpu_job_allocation_info).max_by("batch_job", "batch_account").text,
    }
    if config.below is not None:
        used, window_s = series(metrics.gpu_entitlement_compute_used_ratio), round(config.below_for_s)
        window, step = durations.show(window_s), durations.show(_step_s(config))
        asked = series(metrics.gpu_entitlement_compute_ratio).aggregate("max", without=("source",))
        named["used"] = used.sampled("avg_over_time", window, step).op("<", config.below).text
        named |= {"asked": asked.text, "points": used.sampled("count_over_time", window, step).text}
    return named


def _step_s(config: NotifyConfig) -> int:
    return max(1, -(-round(config.below_for_s) // POINTS))


def findings(config: NotifyConfig, answers: Answers, now_s: float) -> list[Finding]:
    """The findings, one for each allocation: that it is idle says more than that it is used too little."""
    users = {labels.get("batch_job"): labels.get("user", "") for labels, _ in answers["users"]}
    accounts = {labels.get("batch_job"): labels.get("batch_account", "") for labels, _ in answers["accounts"]}
    by_key: dict[str, Finding] = {}
    for finding in (*_idle(config, answers, now_s), *_below(config, answers, now_s)):
        job = finding.owner.job
        known = replace(finding, user=users.get(job, ""), account=accounts.get(job, ""))
        by_key.setdefault(finding.key, known)
    return list(by_key.values())


def _idle(config: NotifyConfig, answers: Answers, now_s: float) -> Iterator[Finding]:
    if config.idle_s is None:
        return
    for row in rows_of_fleet(answers, now_s, config.prices):
        if row.idle_seconds >= config.idle_s:
            state = row.state.replace("_", " ")
            since = f"not used since {moment(row.idle_since)}, for {span(row.idle_seconds)} ({state})"
            yield Finding(
                reason="GpuIdle", about="is allocated and not used", owner=row.owner, node=row.node, gpu=row.gpu,
                uuid=row.uuid, lines=(since, _bill(row.gpu_hours, row.kwh, row.cost, row.prices.currency)),
                command=replace(row, advice_after_s=config.idle_s).command, since_s=row.idle_since,
            )  # fmt: skip


def _bill(gpu_hours: float, kwh: float | None, cost: float | None, currency: str) -> str:
    parts = [f"{gpu_hours:.2f} GPU-hours"]
    parts += [f"{fixed(kwh, 3)} kWh"] if kwh is not None else []
    parts += [f"{fixed(cost, 2)} {currency}".rstrip()] if cost is not None else []
    return f"in that time: {', '.join(parts)}"


def _below(config: NotifyConfig, answers: Answers, now_s: float) -> Iterator[Finding]:
    if config.below is None:
        return
    points, asked = ({_sorted(labels): value for labels, value in answers[name]} for name in ("points", "asked"))
    window_s, prices = config.below_for_s, config.prices
    for labels, used in answers["used"]:
        key = _sorted(labels)
        # An allocation that has ended is no longer asked for, and still has most of its points.
        if key not in asked or points.get(key, 0) < COVERED * window_s / _step_s(config):
            continue
        hours = window_s / 3600 * asked[key]
        yield Finding(
            reason="GpuBelowEntitlement", about="is used far below what was asked for", owner=allocation_owner(labels),
            node=node_of(labels), gpu=labels.get("gpu", ""), uuid=labels.get("uuid", ""), since_s=now_s - window_s,
            lines=(f"used {percent(used)} % of what was asked for, in the last {span(window_s)}",
                   _bill(hours, None, prices.cost(hours, None), prices.currency)),
        )  # fmt: skip


def _sorted(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "__name__"))
