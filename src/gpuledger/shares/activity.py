"""The activity of each process: its part of the activity of its device.

a_iu = x_i s_iu is the estimated activity of process i in unit u: x_i is its time on the compute engine, s_iu the
activity of its program. Only the proportions are used, so that all parts add up to the measured activity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from operator import attrgetter

from gpuledger.ledger.interval import Interval
from gpuledger.ledger.rows import ActivityShare, Proportions, Row
from gpuledger.ledger.split import mps
from gpuledger.model import DIVIDED, ActivityPart, Percentages, Reading

NOTHING: Proportions = (0.0,) * len(DIVIDED)
EVERYTHING: Proportions = (1.0,) * len(DIVIDED)
NO_UNITS: Percentages = (None,) * (len(DIVIDED) - 1)

SM, INTEGER = 0, DIVIDED.index("integer_pct") - 1
"""Integer activity is divided like that of the SMs."""

_divided = attrgetter(*DIVIDED)


def proportions(
    rows: Sequence[Row], times: Sequence[float], activities: Sequence[Sequence[float]]
) -> dict[Row, Proportions]:
    """The share of each process in time and in each unit; a unit without activity is divided by time."""
    times = [max(0.0, time) for time in times]
    total = sum(times)
    if not total:
        return {}
    wholes = [sum(unit) for unit in zip(*activities, strict=True)]
    result: dict[Row, Proportions] = {}
    for row, time, units in zip(rows, times, activities, strict=True):
        own = time / total
        parts = [unit / whole if whole else own for unit, whole in zip(units, wholes, strict=True)]
        parts.insert(INTEGER, parts[SM])
        result[row] = (own, *parts)
    return result


def equal_proportions(rows: Sequence[Row]) -> dict[Row, Proportions]:
    """Equal parts."""
    return dict.fromkeys(rows, (1 / len(rows),) * len(DIVIDED))


def exact_activity(interval: Interval, at_end: frozenset[Row] | None) -> dict[Row, ActivityShare]:
    """Processes that have a GPU or a MIG instance to themselves: its activity is theirs."""
    if interval.hidden or at_end is None or interval.at_start is None:
        return {}
    by_device: dict[str, list[Row]] = {}
    for row in interval.rows:
        by_device.setdefault(row.device.uuid, []).append(row)
    return {
        row: ActivityShare("exclusive" if row in interval.at_start and row in at_end else "edge", EVERYTHING)
        for row, *others in by_device.values()
        if not others
    }


def activity_by_samples(interval: Interval) -> dict[Row, ActivityShare]:
    """By time on the compute engine: the only estimate without GPM. Empty if the driver has no samples."""
    if not interval.has_samples or interval.failed or interval.restarted:
        return {}
    servers, clients = mps(interval)
    busy_ns: dict[Row, float] = {row: ns for row, ns in interval.busy_ns.items() if row not in servers}
    served_ns = sum(interval.busy_ns.get(server, 0) for server in servers)
    for client in clients:
        busy_ns[client] = busy_ns.get(client, 0) + served_ns / len(clients)
    total_ns = sum(busy_ns.values())
    return {
        row: ActivityShare(
            "mps" if row in clients else "sm_time",
            (busy_ns.get(row, 0) / total_ns,) * len(DIVIDED) if total_ns else NOTHING,
        )
        for row in interval.rows
    }


def divisible(reading: Reading) -> Percentages | None:
    """The activity that processes share: GPM, or utilization as the only activity of older GPUs."""
    if reading.activity is not None:
        return _divided(reading.activity)
    return None if reading.utilization_pct is None else (float(reading.utilization_pct), *NO_UNITS)


def activity_part(whole: Percentages | None, share: ActivityShare | None) -> ActivityPart | None:
    """The activity of a process with this share; None if it is not known."""
    if whole is None or share is None:
        return None
    return ActivityPart(share.method, scaled(whole, share.proportions), share.error)


def scaled(whole: Percentages, proportions: Proportions) -> Percentages:
    """These proportions of an activity."""
    return tuple([None if pct is None else pct * part for pct, part in zip(whole, proportions, strict=True)])


def activity_by_method(parts: Iterable[ActivityPart | None]) -> tuple[ActivityPart, ...]:
    """The sums of several processes, by method; their errors are independent."""
    groups: dict[str, list[ActivityPart]] = {}
    for part in parts:
        if part is not None:
            groups.setdefault(part.method, []).append(part)
    return tuple(
        ActivityPart(method, total_activity([part.pct for part in group]), sqrt(sum(part.error**2 for part in group)))
        for method, group in sorted(groups.items())
    )


def total_activity(parts: Sequence[Percentages]) -> Percentages:
    """The sum of several parts of one device's activity."""
    if len(parts) == 1:
        return parts[0]
    return tuple([None if None in unit else sum(unit) for unit in zip(*parts, strict=True)])


def remaining_activity(whole: Percentages, parts: Sequence[Percentages]) -> Percentages:
    """The activity that is in none of the parts."""
    if not parts:
        return whole
    known = total_activity(parts)
    return tuple([
        None if pct is None else max(0.0, pct - (sum_ or 0.0)) for pct, sum_ in zip(whole, known, strict=True)
    ])  # fmt: skip
