"""What a job used of its devices on all nodes, also after its end, from a Prometheus.

The counters of an allocation begin at 0 with the job. A requeued job, or an exporter that restarts without a journal,
begins again at 0: each run adds its last value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import ceil

from gpuledger.catalog import metrics
from gpuledger.tools.job.use import NO_ALLOCATION, DeviceUse, JobUse
from gpuledger.tools.prometheus.answer import RangeSeries, Series, node_of
from gpuledger.tools.prometheus.client import Prometheus
from gpuledger.tools.prometheus.expression import Expression, Selector, series

CELLS = 1000
"""Steps of a range query: enough to see each restart, and far below the limit of Prometheus."""
MARGIN_S = 60
START = series(metrics.gpu_allocation_start_timestamp_seconds)
SECONDS = series(metrics.gpu_allocation_seconds_total)
TIMES = {
    "busy": series(metrics.gpu_allocation_busy_seconds_total),
    "idle": series(metrics.gpu_allocation_idle_seconds_total),
    "unknown": series(metrics.gpu_allocation_unknown_seconds_total),
}
ENERGIES = (
    series(metrics.gpu_allocation_busy_energy_joules_total),
    series(metrics.gpu_allocation_idle_energy_joules_total),
    series(metrics.gpu_allocation_unknown_energy_joules_total),
)
IDLE_SINCE = series(metrics.gpu_allocation_idle_since_timestamp_seconds)
LAST_BUSY = series(metrics.gpu_allocation_last_busy_timestamp_seconds)
PROCESS = ("uuid", "pid", "process_name")


def of_prometheus(server: Prometheus, job: str, now_s: float, since_s: float) -> JobUse | None:
    """The job in the last `since_s` seconds; None if there is no series of it. Raises PrometheusError."""
    history = _History(server, job)
    window = f"{since_s:.0f}s"
    allocations = history.query(history.over("min_over_time", START, window), now_s)
    if not allocations:
        return history.of_processes(now_s, window)
    starts, labels = _values(allocations), {labels.get("uuid", ""): labels for labels, _ in allocations}
    last_starts = history.values(history.over("max_over_time", START, window), now_s)
    longest = history.values(history.over("max_over_time", SECONDS, window), now_s)
    end_s = min(now_s, max(last_starts.values()) + max(longest.values(), default=0.0) + MARGIN_S)
    range_s = max(end_s - min(starts.values()), 1.0) + MARGIN_S
    times = {name: history.totals(counter, end_s, range_s) for name, counter in TIMES.items()}
    energies = [history.totals(counter, end_s, range_s) for counter in ENERGIES]
    idle_since, last_busy, last_start, last_seconds = (
        history.values(history.over("last_over_time", gauge, f"{range_s:.0f}s"), end_s)
        for gauge in (IDLE_SINCE, LAST_BUSY, START, SECONDS)
    )
    peak = history.peaks(starts, end_s, range_s)
    devices = []
    for uuid, start in sorted(starts.items(), key=lambda item: (node_of(labels[item[0]]), item[0])):
        joules = [by_uuid[uuid] for by_uuid in energies if uuid in by_uuid]
        devices.append(
            DeviceUse(
                node=node_of(labels[uuid]),
                gpu=labels[uuid].get("gpu", ""),
                uuid=uuid,
                start=start,
                end=last_start.get(uuid, start) + last_seconds.get(uuid, 0.0),
                busy_s=times["busy"].get(uuid),
                idle_s=times["idle"].get(uuid),
                unknown_s=times["unknown"].get(uuid),
                joules=sum(joules) if joules else None,
                memory_bytes=None if uuid not in peak else round(peak[uuid]),
                idle_since=_idle_since(idle_since.get(uuid), last_busy.get(uuid)),
            )
        )
    notes = tuple(f"Prometheus warns: {warning}" for warning in history.warnings)
    return JobUse(job, "prometheus", tuple(devices), has_peak=True, notes=notes)


class _History:
    """The queries for one job, and the warnings in the answers: a partial answer makes totals too low."""

    def __init__(self, server: Prometheus, job: str) -> None:
        self._server, self._job = server, job
        self._info = series(metrics.gpu_process_info).where("batch_job", "=~", f"([a-z-]+/)?{re.escape(job)}")
        self.warnings: dict[str, None] = {}

    def over(self, function: str, allocations: Selector, window: str) -> Expression:
        """A function of the samples of the job's allocations."""
        return allocations.where("batch_job", "=", self._job).over(function, window)

    def query(self, query: Expression, at_s: float) -> Sequence[Series]:
        """The series of an instant query."""
        answer = self._server.query(query.text, at_s)
        self.warnings |= dict.fromkeys(answer.warnings)
        return answer.series

    def values(self, query: Expression, at_s: float) -> dict[str, float]:
        """The values of an instant query by uuid."""
        return _values(self.query(query, at_s))

    def totals(self, counter: Selector, end_s: float, range_s: float) -> dict[str, float]:
        """The increase of counters that begin at 0, by uuid."""
        step_ms = max(1000, round(1000 * range_s / CELLS))
        first_s = end_s - ceil(1000 * range_s / step_ms) * step_ms / 1000
        # Of an exporter that is scraped twice, one counts.
        promql = self.over("max_over_time", counter, f"{step_ms}ms").max_by("uuid", "reason")
        answer = self._server.query_range(promql.text, first_s, end_s, step_ms / 1000)
        self.warnings |= dict.fromkeys(answer.warnings)
        totals: dict[str, float] = {}
        for run in answer.series:
            uuid = run.labels.get("uuid", "")
            totals[uuid] = totals.get(uuid, 0.0) + run_total(run)
        return totals

    def peaks(self, uuids: Iterable[str], end_s: float, range_s: float) -> dict[str, float]:
        """The peak of each single process, from all samples, or of all together, at up to 1000 moments."""
        memory, window = _on_devices(metrics.gpu_process_memory_used_bytes, uuids), f"{range_s:.0f}s"
        single = memory.over("max_over_time", window).max_by(*PROCESS)
        ever = self._info.over("max_over_time", window).max_by(*PROCESS)
        together = memory.max_by(*PROCESS).op("and", self._info.max_by(*PROCESS), PROCESS).sum_by("uuid")
        queries = (
            single.op("and", ever, PROCESS).max_by("uuid"),
            together.sampled("max_over_time", window, f"{max(1, round(range_s / CELLS))}s"),
        )
        return _values([entry for query in queries for entry in self.query(query, end_s)])

    def of_processes(self, now_s: float, window: str) -> JobUse | None:
        """The energy of the job's processes, if no prolog recorded its devices."""
        info = self._info.over("max_over_time", window).max_by(*PROCESS, "gpu", "instance", "node")
        processes = self.query(info, now_s)
        if not processes:
            return None
        labels = {entry.labels["uuid"]: entry.labels for entry in processes if "uuid" in entry.labels}
        counters = _on_devices(metrics.gpu_process_energy_joules_total, labels)
        # Of an exporter that is scraped twice, one counts.
        energy = counters.over("max_over_time", window).max_by(*PROCESS, "method").sum_by(*PROCESS)
        joules = self.values(energy.op("and", info, PROCESS).sum_by("uuid"), now_s)
        devices = [
            DeviceUse(node=node_of(found), gpu=found.get("gpu", ""), uuid=uuid, end=now_s, joules=joules.get(uuid))
            for uuid, found in sorted(labels.items())
        ]
        return JobUse(self._job, "prometheus", tuple(devices), notes=(NO_ALLOCATION,))


def run_total(counter: RangeSeries) -> float:
    """The sum of the last values of all runs: a value below the previous one begins a new run."""
    total = previous = 0.0
    for _, value in counter.points:
        if value < previous:
            total += previous
        previous = value
    return total + previous


def _on_devices(metric: str, uuids: Iterable[str]) -> Selector:
    """The series of these GPUs, so that the processes of others are not read."""
    return series(metric).where("uuid", "=~", "|".join(map(re.escape, uuids)))


def _idle_since(idle_since: float | None, last_busy: float | None) -> float | None:
    """The beginning of the last idle period, unless the device was busy after it."""
    if idle_since is None or (last_busy is not None and last_busy > idle_since + 1):
        return None
    return idle_since


def _values(found: Sequence[Series]) -> dict[str, float]:
    """The largest value by uuid: an exporter may be scraped twice."""
    values: dict[str, float] = {}
    for labels, value in found:
        uuid = labels.get("uuid", "")
        values[uuid] = max(value, values.get(uuid, value))
    return values
