"""PromQL for the increase of counters, the time integral of gauges and the tokens in one cell of a report. Pure.

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
from dataclasses import dataclass, replace
from typing import TypeVar

from gpuledger.catalog import metrics
from gpuledger.catalog.others import DYNAMO_REQUESTS, ENGINES, MODEL_LABELS, Engine
from gpuledger.tools.prometheus.expression import Expression, Selector, either, series, union

DEVICES = series(metrics.gpu_up, metrics.gpu_mig_info)
"""Exists for each GPU and each MIG instance in every scrape."""
TICK = series(metrics.gpuledger_tick_timestamp_seconds)
TARGET = ("instance", "job")
UUID = ("uuid",)
MIG_SLICES = (1, 2, 3, 4, 7)
"""Profiles are named after their compute slices, such as 3g.71gb; those of compute instances as 1c.3g.71gb."""
LOOKBACK_S = 300
"""Age up to which Prometheus returns a sample as the current value: a shorter gap between samples is no gap."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A family of counters, and the labels that identify one of them even if its other labels change."""

    series: Selector
    ids: tuple[str, ...]
    of_hardware: bool = False
    may_hide: bool = False
    """Whether the exporter may omit series for a while: it exposes at most --process.max processes."""

    def increases(self, step: str, gap: str) -> Iterator[Expression]:
        """The terms of the increase in the step that ends now."""
        ids, highest, now, start = self.ids, self._highest(step), self._now, self._at_start(step)
        yield highest.op("-", start, ids).call("clamp_min", 0)
        if self.of_hardware:
            yield now.op("<", start, ids).op("-", self._lowest(step), ids)
            yield now.op("unless", start, ids).op("-", self._lowest(step), ids)
            return
        yield now.op("<", start, ids)
        new, known_devices = highest.op("unless", start, ids), _devices_at_start(step)
        if not self.may_hide:
            yield new.op("and", known_devices, UUID)
            return
        earlier = self._before_gap(step, gap)
        yield new.op("unless", earlier, ids).op("and", known_devices, UUID)
        yield new.op("-", earlier, ids).call("clamp_min", 0).op("and", known_devices, UUID)

    def increases_on_new_devices(self, step: str, gap: str) -> Iterator[Expression]:
        """The terms for GPUs that had no series at the start: they are new, or were absent for at most `gap`."""
        ids, start, lowest, earlier = self.ids, self._at_start(step), self._lowest(step), self._before_gap(step, gap)
        first = self._highest(step).op("*", 0).op("+", lowest, ids)
        absent = first.op("unless", start, ids)
        if self.of_hardware:
            yield absent.op("-", earlier, ids).call("clamp_min", 0)
            return
        known_devices = _devices_at_start(step)
        yield self._now.op("unless", start, ids).op("unless", known_devices, UUID).op("-", lowest, ids)
        absent = absent.op("unless", known_devices, UUID)
        yield absent.op("-", earlier, ids).call("clamp_min", 0)
        before_gap = DEVICES.over("last_over_time", gap, step).max_by("uuid")
        yield absent.op("unless", earlier, ids).op("and", before_gap, UUID)

    @property
    def _now(self) -> Expression:
        """One series per counter with all its labels, even if two Prometheus jobs scrape it."""
        return self.series.largest_by(*self.ids)

    def _highest(self, step: str) -> Expression:
        """The maximum, with the latest labels: a container whose pod was unknown at first has a lower value."""
        return self.series.over("max_over_time", step).largest_by(*self.ids)

    def _lowest(self, step: str) -> Expression:
        return self.series.over("min_over_time", step).aggregate("min", self.ids)

    def _before_gap(self, step: str, gap: str) -> Expression:
        return self.series.over("last_over_time", gap, step).max_by(*self.ids)

    def _at_start(self, step: str) -> Expression:
        return self.series.ago(step).max_by(*self.ids)


Family = TypeVar("Family", "Counter", "Gauge")


def devices(step: str) -> Expression:
    """The number of GPUs and MIG instances in the step."""
    return DEVICES.over("count_over_time", step).max_by("uuid").aggregate("count")


def new_devices(step: str) -> Expression:
    """The number of GPUs and MIG instances without a series at the start of the step."""
    known = DEVICES.over("count_over_time", step).max_by("uuid")
    return known.op("unless", _devices_at_start(step), UUID).aggregate("count")


def overwritten_namespaces(step: str) -> Expression:
    """Namespaces that Prometheus has replaced by the exporter's, because `honor_labels` is not set."""
    overwritten = series(metrics.container_gpu_energy_joules_total).where("exported_namespace", "!=", "")
    return overwritten.over("count_over_time", step).aggregate("count", ("exported_namespace",))


def _devices_at_start(step: str) -> Expression:
    return DEVICES.ago(step).max_by("uuid")


# Gauges. A sample represents the time since the previous sample of its target, so that cells have no gaps, even if
# scrapes were missed.


@dataclass(frozen=True, slots=True)
class Gauge:
    """A family of gauges, and the labels that identify one of them."""

    series: Selector
    ids: tuple[str, ...]


def outside(processes: Family) -> Family:
    """The series of processes in no container."""
    return replace(processes, series=processes.series.where("container_id", "=", ""))


def integral(gauge: Gauge, step_ms: int) -> Expression:
    """Value times seconds. Each series counts once, even if several jobs scrape it."""
    return _mean(gauge.series, step_ms).op("*", _covered(step_ms), TARGET).largest_by(*gauge.ids)


def presence(gauge: Gauge, step_ms: int, aggregate: str = "sum_over_time") -> Expression:
    """The share of its target's scrapes in which a series is 1; with count_over_time, in which it exists."""
    return _mean(gauge.series, step_ms, aggregate).largest_by(*TARGET, *gauge.ids)


def observed_seconds(step_ms: int) -> Expression:
    """The seconds of each GPU in which it was scraped."""
    return gpu_seconds(presence(Gauge(series(metrics.gpu_up), UUID), step_ms, "count_over_time"), (), step_ms)


def gpu_seconds(presence: Expression, group: tuple[str, ...], step_ms: int) -> Expression:
    """GPU-seconds. A GPU counts once per group, however many members of the group are on it."""
    share = presence.sum_by(*TARGET, "uuid", *group).call("clamp_max", 1)
    return share.op("*", _covered(step_ms), TARGET).max_by("uuid", *group)


def held(presences: Sequence[Expression], group: tuple[str, ...]) -> Expression:
    """Per device and group, the largest presence: the device was allocated to the group, or in use by it."""
    shares = [presence.sum_by(*TARGET, "uuid", *group).call("clamp_max", 1) for presence in presences]
    return either(shares, "presence").max_by("uuid", *group)


def apportioned(holders: Expression, all_holders: Expression, group: tuple[str, ...], step_ms: int) -> Expression:
    """GPU-seconds of the holders of each device, whose shares of a device add up to at most 1.

    With the presences p of the holders of a device, a holder gets p / max(1, sum p) of the device. A MIG instance is
    its part of the slices of all instances on its GPU.
    """
    shares = holders.op("/", all_holders.sum_by("uuid").call("clamp_min", 1), UUID)
    on_gpus = shares.op("*", _parts_of_gpus(f"{step_ms}ms"), UUID, copy=("gpu_uuid",))
    by_gpu = on_gpus.sum_by("gpu_uuid", *group).relabelled("uuid", "$1", "gpu_uuid", "(.+)")
    return by_gpu.op("*", observed_seconds(step_ms), UUID)


def entitled(entitlements: Expression, group: tuple[str, ...], step_ms: int) -> Expression:
    """GPU-seconds that owners asked for, by GPU: entitlements to a MIG instance are parts of its GPU already."""
    gpu_uuid = _parts_of_gpus(f"{step_ms}ms").op("^", 0)
    by_gpu = entitlements.op("*", gpu_uuid, UUID, copy=("gpu_uuid",)).sum_by("gpu_uuid", *group)
    return by_gpu.relabelled("uuid", "$1", "gpu_uuid", "(.+)")


def _parts_of_gpus(window: str) -> Expression:
    """The part of its GPU that each device is: 1 for a GPU, and for a MIG instance its part of the slices."""

    def present(instances: Selector) -> Expression:
        return instances.over("max_over_time", window).max_by("uuid", "parent_uuid")

    info = series(metrics.gpu_mig_info)
    slices = [present(info.where("profile", "=~", f"{n}[cg].*")).op("*", n) for n in MIG_SLICES]
    instances = union([*slices, present(info)])
    parts = instances.op("/", instances.sum_by("parent_uuid"), ("parent_uuid",))
    gpus = series(metrics.gpu_up).over("max_over_time", window).max_by("uuid").op("^", 0)
    of_gpus = gpus.relabelled("gpu_uuid", "$1", "uuid", "(.+)")
    return of_gpus.op("or", parts.relabelled("gpu_uuid", "$1", "parent_uuid", "(.+)"))


def _mean(gauge: Selector, step_ms: int, aggregate: str = "sum_over_time") -> Expression:
    """The mean over the scrapes of the target in the cell; a missing sample counts as 0."""
    window = whole_window(step_ms)
    scrapes = TICK.over("count_over_time", window).max_by(*TARGET)
    return gauge.over(aggregate, window).op("/", scrapes, TARGET)


def _covered(step_ms: int) -> Expression:
    """The seconds that the scrapes of each target in the cell represent, by the clock of its exporter."""
    window = whole_window(step_ms)
    first = TICK.over("min_over_time", window).aggregate("min", TARGET)
    start = TICK.ago(f"{step_ms}ms").max_by(*TARGET).op("or", first)
    elapsed = TICK.over("max_over_time", window).max_by(*TARGET).op("-", start).call("clamp_min", 0)
    return elapsed.call("clamp_max", f"{step_ms / 1000 + LOOKBACK_S:.3f}")  # the clock may have been set


def whole_window(step_ms: int) -> str:
    """One millisecond less than the step: in Prometheus 2, both ends of a window belong to it."""
    return f"{max(1, step_ms - 1)}ms"


# Tokens of servers of language models. Servers are scraped without `honor_labels`, so that `namespace` and `pod` come
# from service discovery and no server can claim to be another pod. Each counter is aggregated before it is combined
# with others: whatever labels a server writes, no two series become equal, which would fail the query. A new series
# counts from its first sample, because a server may have run for long before it was scraped.

POD = ("namespace", "pod")
POD_MODEL = (*POD, "model_name")
ENERGY = series(metrics.container_gpu_energy_joules_total).where("pod", "!=", "")
WORKERS = series(DYNAMO_REQUESTS).where("pod", "!=", "").where("model", "!=", "")
SERVERS = tuple(engine for engine in ENGINES if not engine.is_frontend)
FRONTENDS = tuple(engine for engine in ENGINES if engine.is_frontend)
COUNTERS = series(*(name for engine in SERVERS for name in (engine.prompt, engine.output))).where("pod", "!=", "")
MOST_TOKENS = 1e15
"""Tokens of a server in a cell; more are no count."""
READ_TOKENS = {False: metrics.gpu_server_prompt_tokens_total, True: metrics.gpu_server_output_tokens_total}
"""Tokens that the exporter reads itself, by whether they are output tokens."""


def models(window: str) -> Expression:
    """By namespace, pod and model: the tokens of the model so far, 0 for a worker without counters."""
    parts = [part for engine in SERVERS for part in _by_model(engine, window)]
    parts.append(_of_pods(READ_TOKENS[True]).over("max_over_time", window).sum_by(*POD_MODEL))
    parts.append(_renamed(WORKERS.over("max_over_time", window).sum_by(*POD, "model").op("*", 0)))
    return either(parts, "term").sum_by(*POD_MODEL)


def token_increases(*, output: bool, step: str, models_of_pods: Expression) -> Iterator[Expression]:
    """Tokens by model in the step that ends now: of pods whose energy is known, and of frontends.

    The model of a pod is not repeated for each server, because VictoriaMetrics limits the length of a query.
    """
    terms = [term for engine in SERVERS for term in _terms(_tokens(engine, output), step)]
    parts = [_deduplicated(term).sum_by(*POD) for term in terms]
    has_counters = COUNTERS.over("last_over_time", step).max_by(*POD)  # keeps names, so that no two series are equal
    for term in _terms(READ_TOKENS[output], step):
        read = term.aggregate("max", without=("job", "instance")).sum_by(*POD)
        parts.append(read.op("unless", has_counters, POD))
    has_energy = ENERGY.over("max_over_time", step).max_by(*POD)
    by_pod = _counted(either(parts, "term").sum_by(*POD)).op("and", has_energy, POD)
    yield by_pod.op("*", models_of_pods, POD, copy=("model_name",))
    terms = [term for engine in FRONTENDS for term in _terms(_tokens(engine, output), step)]
    by_model = either([_deduplicated(term).sum_by("namespace", "model") for term in terms], "term")
    counted = COUNTERS.over("last_over_time", step).max_by("namespace", "model_name")
    fronts = _renamed(_counted(by_model.sum_by("namespace", "model")))
    yield fronts.op("unless", counted, ("namespace", "model_name"))


def _counted(tokens: Expression) -> Expression:
    """Without counts that are none: NaN and infinity would end the report, and negative ones lower other rows."""
    return tokens.op(">=", 0).op("<", MOST_TOKENS)


def _terms(metric: str, step: str) -> Iterator[Expression]:
    """The increase of a counter: the terms continued, reset (the whole value) and new (maximum minus minimum)."""
    now = _of_pods(metric)
    start, highest = now.ago(step), now.over("max_over_time", step)
    yield highest.op("-", start).call("clamp_min", 0)
    yield now.op("<", start).op("+", 0)  # without the name of the metric, as the others
    yield highest.op("-", now.over("min_over_time", step)).op("unless", start)


def _by_model(engine: Engine, window: str) -> Iterator[Expression]:
    """Output tokens by pod and model; the vLLM in a Triton writes the label `model`."""
    counters, (best, other) = _of_pods(engine.output), MODEL_LABELS

    def tokens(counters: Selector, *labels: str) -> Expression:
        return _deduplicated(counters.over("max_over_time", window)).sum_by(*POD, *labels)

    if not engine.model:
        yield tokens(counters).relabelled("model_name", engine.name)
        return
    if engine.model == best:
        yield tokens(counters.where(best, "!=", ""), best)
        if engine is not ENGINES[0]:
            return
    yield _renamed(tokens(counters.where(best, "=", ""), other))


def _of_pods(metric: str) -> Selector:
    return series(metric).where("pod", "!=", "")


def _tokens(engine: Engine, output: bool) -> str:
    return engine.output if output else engine.prompt


def _deduplicated(counter: Expression) -> Expression:
    """A server that two jobs scrape counts once."""
    return counter.aggregate("max", without=("job", "endpoint", "service", "container"))


def _renamed(vector: Expression) -> Expression:
    """The vector with the label `model` as `model_name`."""
    return vector.relabelled("model_name", "$1", "model", "(.*)")
