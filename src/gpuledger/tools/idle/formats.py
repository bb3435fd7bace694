"""Idle allocations and pairs, as tables for terminals and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpuledger.config import durations
from gpuledger.model.owners import Owner
from gpuledger.tools.idle.pairs import Pair
from gpuledger.tools.idle.rows import OWNER, OWNER_LABELS, IdleRow
from gpuledger.tools.prices import Prices
from gpuledger.tools.text import BOLD, UNKNOWN, aligned, fixed, moment, percent, short_name, span


def idle_table(
    rows: Sequence[IdleRow], prices: Prices, *, nodes: bool, colour: bool, min_s: float = 0.0, others: int = 0
) -> str:
    """One line per allocation with the command that would free it, or the idle time after which there is one.

    `others` are idle, too, but for less than `min_s`.
    """
    least = durations.show(min_s)
    more = f"{others} more {'is' if others == 1 else 'are'} idle for less than {least}: --min 0s\n" if others else ""
    if not rows:
        return f"no allocation is idle{f' for {least}' if min_s else ''}\n{more}"
    has_cost = any(row.cost is not None for row in rows)
    cost_head = f"cost {prices.currency}".rstrip()
    lines = []
    for row in rows:
        gpu = row.gpu if row.shared_by == 1 else f"{row.gpu} (1/{row.shared_by})"
        about = [short_name(row.owner.display_name), gpu, row.state, moment(row.idle_since), span(row.idle_seconds)]
        lines.append([row.node, *about, *_sums([row]), _advice(row)])
    head = ["node", "owner", "GPU", "state", "idle since", "idle for", "GPU-h", "kWh", cost_head, "would be freed by"]
    total = ["total", *[""] * 5, *_sums(rows), ""]
    if not nodes:
        total[1] = total[0]
    shown = [n for n, name in enumerate(head) if (nodes or name != "node") and (has_cost or name != cost_head)]
    texts = [[line[n] for n in shown] for line in (head, *lines, total)]
    return _text(texts, {"GPU-h", "kWh", cost_head, "idle for"}, colour=colour) + more


def _advice(row: IdleRow) -> str:
    is_early = row.idle_seconds < row.advice_after_s
    return f"(shown after {durations.show(row.advice_after_s)})" if is_early else row.command or UNKNOWN


def _sums(rows: Sequence[IdleRow]) -> list[str]:
    """GPU-hours, energy and cost."""
    hours, kwh, cost = (_sum(getattr(row, name) for row in rows) for name in ("gpu_hours", "kwh", "cost"))
    return [fixed(hours, 2), fixed(kwh, 3), fixed(cost, 2)]


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def idle_json(rows: Sequence[IdleRow], prices: Prices, now_s: float, min_s: float, others: int) -> str:
    """One object with the number of others, which are idle for a shorter time; unknown values are null."""
    listed = [idle_object(row) for row in rows]
    return _json({"time": now_s, "prices": asdict(prices), "min_seconds": min_s, "more": others, "allocations": listed})


def idle_object(row: IdleRow) -> dict[str, Any]:
    """One allocation as JSON."""
    names = (
        "gpu", "uuid", "state", "shared_by", "idle_since", "idle_seconds", "gpu_hours", "kwh", "cost", "command",
    )  # fmt: skip
    return {"node": row.node, **_owner(row.owner, OWNER), **{name: getattr(row, name) for name in names}}


def _owner(owner: Owner, names: Iterable[str]) -> dict[str, str]:
    return {"owner": owner.display_name, **{name: getattr(owner, name) for name in names}}


def pairs_table(pairs: Sequence[Pair], queries: Mapping[str, str], *, colour: bool) -> str:
    """One line per pair, and the queries behind them."""
    lines = [["first", "second", "GPU", "memory p95", "activity p95", "observed"]]
    for pair in pairs:
        first, second = pair.first, pair.second
        lines.append([
            short_name(first.owner.display_name),
            short_name(second.owner.display_name),
            first.place[1],
            f"{percent(first.memory)}% + {percent(second.memory)}% = {percent(pair.memory)}%",
            f"{percent(first.activity)}% + {percent(second.activity)}% = {percent(pair.activity)}%",
            span(min(first.observed_seconds, second.observed_seconds)),
        ])  # fmt: skip
    text = _text(lines, (), colour=colour) if pairs else "no two workloads would fit on one GPU\n"
    shown = "".join(f"  {name}: {promql}\n" for name, promql in queries.items())
    return f"{text}\nqueries:\n{shown}"


def pairs_json(pairs: Sequence[Pair], queries: Mapping[str, str]) -> str:
    """One object with the pairs and the queries behind them."""
    names = (*OWNER_LABELS, "container_id")
    tree = [
        {
            "model": pair.first.place[1],
            "memory_ratio": pair.memory,
            "activity_ratio": pair.activity,
            "workloads": [
                {
                    **_owner(workload.owner, names),
                    "uuid": workload.uuid,
                    "memory_ratio": workload.memory,
                    "activity_ratio": workload.activity,
                    "observed_seconds": workload.observed_seconds,
                }
                for workload in (pair.first, pair.second)
            ],
        }
        for pair in pairs
    ]
    return _json({"queries": dict(queries), "pairs": tree})


def _json(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _text(lines: Sequence[Sequence[str]], right: Iterable[str], *, colour: bool) -> str:
    return "\n".join(aligned(lines, set(right), [BOLD] if colour else [])) + "\n"
