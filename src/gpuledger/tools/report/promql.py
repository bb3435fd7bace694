"""PromQL for the increase of counters and the time integral of gauges in one cell of a report. Pure.

`increase` extrapolates before the first and after the last sample, and ignores the first value of a new series. Here
each cell, from one step ago to now, uses the values at its two ends and the maximum and minimum in between, and adds
nothing to what was scraped. The increase is the sum of several terms. Each term is 0 or more, and no joule is in two
terms:

    continued     the maximum minus the value at the start
    reset         the value is below that at the start: the whole value, because the counter restarted at 0
    born          the series is new but its GPU is not: the whole value
    returned      for series that may be hidden for a while: the value minus their last value
    appeared      series and GPU are new: the increase since the first sample
    bridged       appeared after a gap: its first value minus its last value before the gap
    born in gap   appeared after a gap in which only its GPU existed before: its first value

A hardware counter does not start at 0 when it is first scraped: its first value does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DEVICES = '{__name__=~"gpu_up|gpu_mig_info"}'
"""Exists for each GPU and each MIG instance in every scrape."""
TICK = "gpuledger_tick_timestamp_seconds"
TARGET = ("instance", "job")
MIG_SLICES = (1, 2, 3, 4, 7)
"""Profiles are named after their compute slices, such as 3g.71gb; those of compute instances as 1c.3g.71gb."""
LOOKBACK_S = 300
"""Age up to which Prometheus returns a sample as the current value."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A family of counters, and the labels that identify one of them even if its other labels change."""

    series: str
    ids: tuple[str, ...]
    of_hardware: bool = False
    may_hide: bool = False
    """Whether the exporter may omit series for a while: it exposes at most --process.max processes."""

    def increases(self, step: str, gap: str) -> Iterator[str]:
        """The terms of the increase in the step that ends now."""
        on, highest, now, start = self._on, self._highest(step), self._now, self._at_start(step)
        yield f"clamp_min({highest} - on ({on}) group_left () {start}, 0)"
        if self.of_hardware:
            yield f"({now} < on ({on}) group_left () {start}) - on ({on}) group_left () {self._lowest(step)}"
            yield f"({now} unless on ({on}) {start}) - on ({on}) group_left () {self._lowest(step)}"
        else:
            yield f"{now} < on ({on}) group_left () {start}"
            new, gpu_known = f"{highest} unless on ({on}) {start}", f"and on (uuid) {_devices_at_start(step)}"
            if not self.may_hide:
                yield f"({new}) {gpu_known}"
                return
            yield f"({new} unless on ({on}) {self._before_gap(step, gap)}) {gpu_known}"
            yield f"clamp_min(({new}) - on ({on}) group_left () {self._before_gap(step, gap)}, 0) {gpu_known}"

    def increases_on_new_devices(self, step: str, gap: str) -> Iterator[str]:
        """The terms for GPUs that had no series at the start: they are new, or were absent for at most `gap`."""
        on = self._on
        first = f"{self._highest(step)} * 0 + on ({on}) group_left () {self._lowest(step)}"
        absent = f"({first}) unless on ({on}) {self._at_start(step)}"
        earlier = self._before_gap(step, gap)
        if self.of_hardware:
            yield f"clamp_min(({absent}) - on ({on}) group_left () {earlier}, 0)"
            return
        gpu_new = f"unless on (uuid) {_devices_at_start(step)}"
        gpu_before_gap = f"max by (uuid) (last_over_time({DEVICES}[{gap}] offset {step}))"
        now = f"{self._now} unless on ({on}) {self._at_start(step)} {gpu_new}"
        yield f"({now}) - on ({on}) group_left () {self._lowest(step)}"
        yield f"clamp_min(({absent} {gpu_new}) - on ({on}) group_left () {earlier}, 0)"
        yield f"({absent} {gpu_new} unless on ({on}) {earlier}) and on (uuid) {gpu_before_gap}"

    @property
    def _on(self) -> str:
        return ", ".join(self.ids)

    @property
    def _now(self) -> str:
        """One series per counter with all its labels, even if two Prometheus jobs scrape it."""
        return f"topk by ({self._on}) (1, {self.series})"

    def _highest(self, step: str) -> str:
        """With the latest labels: a container whose pod was unknown at first has a lower value under that name."""
        return f"topk by ({self._on}) (1, max_over_time({self.series}[{step}]))"

    def _lowest(self, step: str) -> str:
        return f"min by ({self._on}) (min_over_time({self.series}[{step}]))"

    def _before_gap(self, step: str, gap: str) -> str:
        return f"max by ({self._on}) (last_over_time({self.series}[{gap}] offset {step}))"

    def _at_start(self, step: str) -> str:
        return f"max by ({self._on}) ({self.series} offset {step})"


def devices(step: str) -> str:
    """The number of GPUs and MIG instances in the step."""
    return f"count(max by (uuid) (count_over_time({DEVICES}[{step}])))"


def new_devices(step: str) -> str:
    """The number of GPUs and MIG instances without a series at the start of the step."""
    return f"count(max by (uuid) (count_over_time({DEVICES}[{step}])) unless on (uuid) {_devices_at_start(step)})"


def overwritten_namespaces(step: str) -> str:
    """Namespaces that Prometheus has replaced by the exporter's, because `honor_labels` is not set."""
    series = 'container_gpu_energy_joules_total{exported_namespace!=""}'
    return f"count by (exported_namespace) (count_over_time({series}[{step}]))"


def _devices_at_start(step: str) -> str:
    return f"max by (uuid) ({DEVICES} offset {step})"


# -- Gauges. A sample represents the time since the previous sample of its target, so that cells have no gaps, even if
# -- scrapes were missed.


def integral(series: str, step_ms: int, ids: tuple[str, ...]) -> str:
    """Value times seconds. Each series counts once, even if several jobs scrape it."""
    return f"topk by ({', '.join(ids)}) (1, {_mean(series, step_ms)} * {_on_target()} {_covered(step_ms)})"


def presence(series: str, step_ms: int, ids: tuple[str, ...], aggregate: str = "sum_over_time") -> str:
    """The share of its target's scrapes in which a series is 1; with count_over_time, in which it exists."""
    return f"topk by ({', '.join((*TARGET, *ids))}) (1, {_mean(series, step_ms, aggregate)})"


def gpu_seconds(presence: str, group: tuple[str, ...], step_ms: int) -> str:
    """GPU-seconds. A GPU counts once per group, however many members of the group are on it."""
    by = tuple(dict.fromkeys(("uuid", *group)))
    share = f"clamp_max(sum by ({', '.join(dict.fromkeys((*TARGET, *by)))}) ({presence}), 1)"
    return f"max by ({', '.join(by)}) ({share} * {_on_target()} {_covered(step_ms)})"


def held(presences: Sequence[str], group: tuple[str, ...]) -> str:
    """Per device and group, the largest presence: the device was allocated to the group, or in use by it."""
    by = ", ".join(dict.fromkeys(("uuid", *group)))
    vectors = [f"clamp_max(sum by ({', '.join(TARGET)}, {by}) ({presence}), 1)" for presence in presences]
    # A label keeps vectors apart: `or` drops series of the right side that have the labels of one on the left.
    apart = [f'label_replace({vector}, "presence", "{n}", "", "")' for n, vector in enumerate(vectors)]
    return f"max by ({by}) ({' or '.join(apart)})"


def apportioned(holders: str, all_holders: str, group: tuple[str, ...], step_ms: int) -> str:
    """GPU-seconds of the holders of each device, whose shares of a device add up to at most 1.

    With the presences p of the holders of a device, a holder gets p / max(1, sum p) of the device. A MIG instance is
    its part of the slices of all instances on its GPU.
    """
    shares = f"{holders} / on (uuid) group_left () clamp_min(sum by (uuid) ({all_holders}), 1)"
    on_gpus = f"({shares}) * on (uuid) group_left (gpu_uuid) {_parts_of_gpus(f'{step_ms}ms')}"
    by_gpu = f"sum by ({', '.join(('gpu_uuid', *group))}) ({on_gpus})"
    observed = gpu_seconds(presence("gpu_up", step_ms, ("uuid",), "count_over_time"), (), step_ms)
    return f'label_replace({by_gpu}, "uuid", "$1", "gpu_uuid", "(.+)") * on (uuid) group_left () {observed}'


def _parts_of_gpus(window: str) -> str:
    """The part of its GPU that each device is: 1 for a GPU, and for a MIG instance its part of the slices."""
    by = "max by (uuid, parent_uuid) (max_over_time(gpu_mig_info"
    slices = " or ".join(f'{by}{{profile=~"{n}[cg].*"}}[{window}])) * {n}' for n in MIG_SLICES)
    instances = f"({slices} or {by}[{window}])))"
    parts = f"{instances} / on (parent_uuid) group_left () sum by (parent_uuid) ({instances})"
    gpus = f'label_replace(max by (uuid) (max_over_time(gpu_up[{window}])) ^ 0, "gpu_uuid", "$1", "uuid", "(.+)")'
    return f'({gpus} or label_replace({parts}, "gpu_uuid", "$1", "parent_uuid", "(.+)"))'


def _mean(series: str, step_ms: int, aggregate: str = "sum_over_time") -> str:
    """The mean over the scrapes of the target in the cell; a missing sample counts as 0."""
    scrapes = f"max by ({', '.join(TARGET)}) (count_over_time({TICK}[{_window(step_ms)}]))"
    return f"{aggregate}({series}[{_window(step_ms)}]) / {_on_target()} {scrapes}"


def _covered(step_ms: int) -> str:
    """The seconds that the scrapes of each target in the cell represent, by the clock of its exporter."""
    by, window = ", ".join(TARGET), _window(step_ms)
    start = f"max by ({by}) ({TICK} offset {step_ms}ms) or min by ({by}) (min_over_time({TICK}[{window}]))"
    elapsed = f"max by ({by}) (max_over_time({TICK}[{window}])) - ({start})"
    return f"clamp_max(clamp_min({elapsed}, 0), {step_ms / 1000 + LOOKBACK_S:.3f})"  # the clock may have been set


def _on_target() -> str:
    return f"on ({', '.join(TARGET)}) group_left ()"


def _window(step_ms: int) -> str:
    """One millisecond less than the step: in Prometheus 2, both ends of a window belong to it."""
    return f"{max(1, step_ms - 1)}ms"
