"""What the rules find in Prometheus: allocations that are idle, or used far below what was asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger.catalog import metrics
from gpuledger.config import durations
from gpuledger.model.owners import Owner
from gpuledger.tools.idle.rows import QUERIES, IdleRow, allocation_owner, rows_of_fleet
from gpuledger.tools.notify.config import NotifyConfig
from gpuledger.tools.prometheus.answer import Series, node_of
from gpuledger.tools.prometheus.expression import series
from gpuledger.tools.text import fixed, moment, percent, span

IDLE, BELOW = "idle", "below_entitlement"
POINTS = 1440
"""Points of a window: one each minute of a day. A window counts if 95 % of them have a value."""
COVERED = 0.95
Answers = Mapping[str, Iterable[Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One allocation whose owner should know."""

    rule: str
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
    named = dict(QUERIES) if config.idle_s is not None else {}
    users = series(metrics.gpu_process_info).where("batch_job", "!=", "").over("last_over_time", "1d")
    named["users"] = users.max_by("batch_job", "user").text
    named["accounts"] = series(metrics.gpu_job_allocation_info).max_by("batch_job", "batch_account").text
    if config.below is not None:
        used = series(metrics.gpu_entitlement_compute_used_ratio)
        window, step = (
            durations.show(round(config.below_for_s)),
            durations.show(max(1, round(config.below_for_s / POINTS))),
        )
        named["used"] = used.sampled("avg_over_time", window, step).op("<", config.below).text
        asked = series(metrics.gpu_entitlement_compute_ratio)
        named["asked"] = asked.aggregate("max", without=("source",)).text
        named["points"] = used.sampled("count_over_time", window, step).text
    return named


def findings(config: NotifyConfig, answers: Answers, now_s: float) -> list[Finding]:
    """The findings, one for each allocation: that it is idle says more than that it is used too little."""
    users = {labels["batch_job"]: labels.get("user", "") for labels, _ in answers["users"]}
    accounts = {labels["batch_job"]: labels.get("batch_account", "") for labels, _ in answers["accounts"]}
    by_key: dict[str, Finding] = {}
    for finding in (*_idle(config, answers, now_s, users, accounts), *_below(config, answers, now_s, users, accounts)):
        by_key.setdefault(finding.key, finding)
    return list(by_key.values())


def _idle(
    config: NotifyConfig, answers: Answers, now_s: float, users: Mapping[str, str], accounts: Mapping[str, str]
) -> Iterator[Finding]:
    if config.idle_s is None:
        return
    for row in rows_of_fleet(answers, now_s, config.prices):
        if row.idle_seconds >= config.idle_s:
            yield Finding(
                rule=IDLE, owner=row.owner, node=row.node, gpu=row.gpu, uuid=row.uuid, lines=tuple(_idle_lines(row)),
                command=replace(row, advice_after_s=config.idle_s).command, since_s=row.idle_since,
                user=users.get(row.owner.job, ""), account=accounts.get(row.owner.job, ""),
            )  # fmt: skip


def _idle_lines(row: IdleRow) -> Iterator[str]:
    yield f"not used since {moment(row.idle_since)}, for {span(row.idle_seconds)} ({row.state.replace('_', ' ')})"
    yield _bill(row.gpu_hours, row.kwh, row.cost, row.prices.currency)


def _bill(gpu_hours: float, kwh: float | None, cost: float | None, currency: str) -> str:
    parts = [f"{gpu_hours:.2f} GPU-hours"]
    parts += [f"{fixed(kwh, 3)} kWh"] if kwh is not None else []
    parts += [f"{fixed(cost, 2)} {currency}".rstrip()] if cost is not None else []
    return f"in that time: {', '.join(parts)}"


def _below(
    config: NotifyConfig, answers: Answers, now_s: float, users: Mapping[str, str], accounts: Mapping[str, str]
) -> Iterator[Finding]:
    if config.below is None:
        return
    points, asked = ({_sorted(labels): value for labels, value in answers[name]} for name in ("points", "asked"))
    for labels, used in answers["used"]:
        if points.get(_sorted(labels), 0) < COVERED * POINTS:
            continue
        owner, window = allocation_owner(labels), config.below_for_s
        hours = window / 3600 * asked.get(_sorted(labels), 1.0)
        yield Finding(
            rule=BELOW, owner=owner, node=node_of(labels), gpu=labels.get("gpu", ""), uuid=labels.get("uuid", ""),
            lines=(f"used {percent(used)} % of what was asked for, in the last {span(window)}",
                   _bill(hours, None, config.prices.cost(hours, None), config.prices.currency)),
            since_s=now_s - window, user=users.get(owner.job, ""), account=accounts.get(owner.job, ""),
        )  # fmt: skip


def _sorted(labels: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "__name__"))
