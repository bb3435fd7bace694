"""What a job used of its devices on all nodes, also after its end, from a Prometheus.

The counters of an allocation begin at 0 with the job. A requeued job, or an exporter that restarts without a journal,
begins again at 0: each run adds its last value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Protocol

from gpuledger.tools.idle.rows import node_of
from gpuledger.tools.job.use import NO_ALLOCATION, DeviceUse, JobUse
from gpuledger.tools.prometheus.answer import Answer, RangeSeries, RangeVector, Series

CELLS = 1000
"""Steps of a range query: enough to see each restart, and far below the limit of Prometheus."""
MARGIN_S = 60
START = "gpu_allocation_start_timestamp_seconds"
SECONDS = "gpu_allocation_seconds_total"
COUNTERS = {
    "busy": "gpu_allocation_busy_seconds_total",
    "idle": "gpu_allocation_idle_seconds_total",
    "unknown": "gpu_allocation_unknown_seconds_total",
    "busy_joules": "gpu_allocation_busy_energy_joules_total",
    "idle_joules": "gpu_allocation_idle_energy_joules_total",
    "unknown_joules": "gpu_allocation_unknown_energy_joules_total",
}
LAST = {
    "idle_since": "gpu_allocation_idle_since_timestamp_seconds",
    "last_busy": "gpu_allocation_last_busy_timestamp_seconds",
    "last_start": START,
    "last_seconds": SECONDS,
}
PROCESS = "uuid, pid, process_name"


class Server(Protocol):
    """The queries of `fleet.prometheus.Prometheus`."""

    def query(self, promql: str, at_s: float | None = None) -> Answer:
        """An instant query."""

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
        """A range query."""


class _Warned:
    """A server whose warnings are collected: a partial answer makes totals too low."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.warnings: dict[str, None] = {}

    def query(self, promql: str, at_s: float | None = None) -> Answer:
        answer = self._server.query(promql, at_s)
        self.warnings |= dict.fromkeys(answer.warnings)
        return answer

    def query_range(self, promql: str, first_s: float, last_s: float, step_s: float) -> RangeVector:
        cells = self._server.query_range(promql, first_s, last_s, step_s)
        self.warnings |= dict.fromkeys(cells.warnings)
        return cells


def of_prometheus(server: Server, job: str, now_s: float, since_s: float) -> JobUse | None:
    """The job in the last `since_s` seconds; None if there is no series of it. Raises PrometheusError."""
    server = warned = _Warned(server)
    selector = f'batch_job="{job}"'
    allocations = server.query(f"min_over_time({START}{{{selector}}}[{since_s:.0f}s])", now_s).series
    starts, labels = _values(allocations), {labels.get("uuid", ""): labels for labels, _ in allocations}
    if not starts:
        return _of_processes(server, job, now_s, since_s)
    last_starts = _values(server.query(f"max_over_time({START}{{{selector}}}[{since_s:.0f}s])", now_s).series)
    longest = _values(server.query(f"max_over_time({SECONDS}{{{selector}}}[{since_s:.0f}s])", now_s).series)
    first_s = min(starts.values())
    end_s = min(now_s, max(last_starts.values()) + max(longest.values(), default=0.0) + MARGIN_S)
    range_s = max(end_s - first_s, 1.0) + MARGIN_S
    totals = {name: _totals(server, f"{series}{{{selector}}}", end_s, range_s) for name, series in COUNTERS.items()}
    last = {
        name: _values(server.query(f"last_over_time({series}{{{selector}}}[{range_s:.0f}s])", end_s).series)
        for name, series in LAST.items()
    }
    peak = _values([one for promql in _peaks(job, starts, range_s) for one in server.query(promql, end_s).series])
    devices = []
    for uuid, start in sorted(starts.items(), key=lambda item: (node_of(labels[item[0]]), item[0])):
        end = last["last_start"].get(uuid, start) + last["last_seconds"].get(uuid, 0.0)
        devices.append(
            DeviceUse(
                node=node_of(labels[uuid]),
                gpu=labels[uuid].get("gpu", ""),
                uuid=uuid,
                start=start,
                end=end,
                busy_s=totals["busy"].get(uuid),
                idle_s=totals["idle"].get(uuid),
                unknown_s=totals["unknown"].get(uuid),
                joules=_joules(totals, uuid),
                memory_bytes=None if uuid not in peak else round(peak[uuid]),
                idle_since=_idle_since(last["idle_since"].get(uuid), last["last_busy"].get(uuid)),
            )
        )
    notes = tuple(f"Prometheus warns: {warning}" for warning in warned.warnings)
    return JobUse(job, "prometheus", tuple(devices), has_peak=True, notes=notes)


def _of_processes(server: Server, job: str, now_s: float, since_s: float) -> JobUse | None:
    """The energy of the job's processes, if no prolog recorded its devices."""
    window = f"[{since_s:.0f}s]"
    info = f"max by ({PROCESS}, gpu, instance, node) (max_over_time({_process_info(job)}{window}))"
    processes = server.query(info, now_s).series
    if not processes:
        return None
    labels = {series.labels["uuid"]: series.labels for series in processes if "uuid" in series.labels}
    counters = f"gpu_process_energy_joules_total{_on_devices(labels)}"
    # Of an exporter that is scraped twice, one counts.
    energy = f"sum by ({PROCESS}) (max by ({PROCESS}, method) (max_over_time({counters}{window})))"
    joules = _values(server.query(f"sum by (uuid) ({energy} and on ({PROCESS}) {info})", now_s).series)
    devices = [
        DeviceUse(node=node_of(found), gpu=found.get("gpu", ""), uuid=uuid, end=now_s, joules=joules.get(uuid))
        for uuid, found in sorted(labels.items())
    ]
    return JobUse(job, "prometheus", tuple(devices), notes=(NO_ALLOCATION,))


def _totals(server: Server, series: str, end_s: float, range_s: float) -> dict[str, float]:
    """The increase of counters that begin at 0, by uuid."""
    step_ms = max(1000, round(1000 * range_s / CELLS))
    first_s = end_s - ceil(1000 * range_s / step_ms) * step_ms / 1000
    # Of an exporter that is scraped twice, one counts.
    promql = f"max by (uuid, reason) (max_over_time({series}[{step_ms}ms]))"
    totals: dict[str, float] = {}
    for counter in server.query_range(promql, first_s, end_s, step_ms / 1000).series:
        uuid = counter.labels.get("uuid", "")
        totals[uuid] = totals.get(uuid, 0.0) + run_total(counter)
    return totals


def _joules(totals: Mapping[str, Mapping[str, float]], uuid: str) -> float | None:
    parts = [totals[name][uuid] for name in COUNTERS if name.endswith("joules") and uuid in totals[name]]
    return sum(parts) if parts else None


def run_total(counter: RangeSeries) -> float:
    """The sum of the last values of all runs: a value below the previous one begins a new run."""
    total = previous = 0.0
    for _, value in counter.points:
        if value < previous:
            total += previous
        previous = value
    return total + previous


def _peaks(job: str, uuids: Iterable[str], range_s: float) -> Iterator[str]:
    """The peak of each single process, from all samples; the peak of all processes together, at up to 1000 moments."""
    memory = f"gpu_process_memory_used_bytes{_on_devices(uuids)}"
    ever = f"max by ({PROCESS}) (max_over_time({_process_info(job)}[{range_s:.0f}s]))"
    yield f"max by (uuid) (max by ({PROCESS}) (max_over_time({memory}[{range_s:.0f}s])) and on ({PROCESS}) {ever})"
    step_s = max(1, round(range_s / CELLS))
    now = f"max by ({PROCESS}) ({memory}) and on ({PROCESS}) max by ({PROCESS}) ({_process_info(job)})"
    yield f"max_over_time((sum by (uuid) ({now}))[{range_s:.0f}s:{step_s}s])"


def _on_devices(uuids: Iterable[str]) -> str:
    """A selector, so that the processes of other GPUs are not read."""
    return f'{{uuid=~"{"|".join(map(_quoted, uuids))}"}}'


def _quoted(text: str) -> str:
    """A text as a part of a regular expression in PromQL."""
    return re.escape(text).replace("\\", "\\\\").replace('"', '\\"')


def _process_info(job: str) -> str:
    return f'gpu_process_info{{batch_job=~"([a-z-]+/)?{_quoted(job)}"}}'


def _idle_since(idle_since: float | None, last_busy: float | None) -> float | None:
    """The beginning of the last idle period, unless the device was busy after it."""
    if idle_since is None or (last_busy is not None and last_busy > idle_since + 1):
        return None
    return idle_since


def _values(series: Sequence[Series]) -> Mapping[str, float]:
    """The largest value by uuid: an exporter may be scraped twice."""
    values: dict[str, float] = {}
    for labels, value in series:
        uuid = labels.get("uuid", "")
        values[uuid] = max(value, values.get(uuid, value))
    return values
