"""Idle allocations and pairs, as tables for terminals and as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gpuledger.model.plaintext import plain
from gpuledger.tools.idle.pairs import Pair, Workload
from gpuledger.tools.idle.rows import IdleRow, Prices
from gpuledger.tools.top.text import ASCII, span

BOLD, END = "\x1b[1m", "\x1b[0m"
LONGEST_NAME = 60
UNKNOWN = "-"


def idle_table(rows: Sequence[IdleRow], prices: Prices, *, nodes: bool, colour: bool) -> str:
    """One line per allocation with the command that would free it."""
    if not rows:
        return "no allocation is idle\n"
    has_cost = any(row.cost is not None for row in rows)
    cost_head = f"cost {prices.currency}".rstrip()
    head = [*(["node"] if nodes else []), "owner", "GPU", "state", "idle since", "idle for", "GPU-h", "kWh"]
    head += [*([cost_head] if has_cost else []), "would be freed by"]
    lines = [head]
    for row in rows:
        gpu = row.gpu if row.shared_by == 1 else f"{row.gpu} (1/{row.shared_by})"
        line = [row.node] if nodes else []
        line += [
            _short(row.owner.display_name),
            gpu,
            row.state,
            moment(row.idle_since),
            span(row.idle_seconds, ASCII),
        ]
        line += [f"{row.gpu_hours:.2f}", number(row.kwh, 3), *([number(row.cost, 2)] if has_cost else [])]
        lines.append([*line, row.command or UNKNOWN])
    total = ["total"] + [""] * (len(head) - len(["GPU-h", "kWh", "command"]) - 1 - has_cost)
    total += [f"{sum(row.gpu_hours for row in rows):.2f}", number(_sum(row.kwh for row in rows), 3)]
    lines.append([*total, *([number(_sum(row.cost for row in rows), 2)] if has_cost else []), ""])
    right = {"GPU-h", "kWh", cost_head, "idle for"}
    return aligned(lines, right, colour=colour)


def idle_json(rows: Sequence[IdleRow], prices: Prices, now_s: float) -> str:
    """One object; unknown values are null."""
    tree = {
        "time": now_s,
        "prices": {"kwh": prices.kwh, "gpu_hour": prices.gpu_hour, "currency": prices.currency},
        "allocations": [_row(row) for row in rows],
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _row(row: IdleRow) -> dict[str, Any]:
    owner = row.owner
    return {
        "node": row.node,
        "owner": owner.display_name,
        "namespace": owner.namespace,
        "pod": owner.pod,
        "container": owner.container,
        "container_id": owner.container_id,
        "job": owner.job,
        "gpu": row.gpu,
        "uuid": row.uuid,
        "state": row.state,
        "shared_by": row.shared_by,
        "idle_since": row.idle_since,
        "idle_seconds": row.idle_seconds,
        "gpu_hours": row.gpu_hours,
        "kwh": row.kwh,
        "cost": row.cost,
        "command": row.command,
    }


def pairs_table(pairs: Sequence[Pair], queries: Mapping[str, str], *, colour: bool) -> str:
    """One line per pair, and the queries behind them."""
    lines = [["first", "second", "GPU", "memory p95", "activity p95", "observed"]]
    for pair in pairs:
        first, second = pair.first, pair.second
        lines.append([
            _short(first.owner.display_name),
            _short(second.owner.display_name),
            first.place[1],
            f"{_percent(first.memory)} + {_percent(second.memory)} = {_percent(pair.memory)}",
            f"{_percent(first.activity)} + {_percent(second.activity)} = {_percent(pair.activity)}",
            span(min(first.observed_seconds, second.observed_seconds), ASCII),
        ])  # fmt: skip
    text = aligned(lines, set(), colour=colour) if pairs else "no two workloads would fit on one GPU\n"
    shown = "".join(f"  {name}: {promql}\n" for name, promql in queries.items())
    return f"{text}\nqueries:\n{shown}"


def pairs_json(pairs: Sequence[Pair], queries: Mapping[str, str]) -> str:
    """One object with the pairs and the queries behind them."""
    tree = {
        "queries": dict(queries),
        "pairs": [
            {
                "model": pair.first.place[1],
                "memory_ratio": pair.memory,
                "activity_ratio": pair.activity,
                "workloads": [_workload(workload) for workload in (pair.first, pair.second)],
            }
            for pair in pairs
        ],
    }
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def _workload(workload: Workload) -> dict[str, Any]:
    owner = workload.owner
    return {
        "owner": owner.display_name,
        "namespace": owner.namespace,
        "pod": owner.pod,
        "container": owner.container,
        "container_id": owner.container_id,
        "uuid": workload.uuid,
        "memory_ratio": workload.memory,
        "activity_ratio": workload.activity,
        "observed_seconds": workload.observed_seconds,
    }


def moment(unix_s: float) -> str:
    """A Unix time in UTC; unknown if the calendar does not have it."""
    try:
        return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%MZ")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def aligned(lines: Sequence[Sequence[str]], right: set[str], *, colour: bool) -> str:
    """Lines in columns; those whose head is in `right` are right-aligned."""
    texts = [[plain(text) for text in line] for line in lines]
    widths = [max(len(line[n]) for line in texts) for n in range(len(texts[0]))]
    out = []
    for row_number, line in enumerate(texts):
        cells = [
            text.rjust(width) if head in right else text.ljust(width)
            for text, width, head in zip(line, widths, texts[0], strict=True)
        ]
        row = "  ".join(cells).rstrip()
        out.append(f"{BOLD}{row}{END}" if colour and row_number == 0 else row)
    return "\n".join(out) + "\n"


def _short(text: str) -> str:
    text = plain(text)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def number(value: float | None, digits: int) -> str:
    """A value with so many digits; unknown if it is None."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def _sum(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
