"""Refreshes the metrics of `fleet` from Prometheus in the background. No scrape waits for a refresh."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from gpuledger.errors import PrometheusError
from gpuledger.model.in_use import ALLOCATED, BUSY
from gpuledger.runtime.poller import Poller
from gpuledger.runtime.statelog import StateLog
from gpuledger.tools.fleet.pages import FleetState
from gpuledger.tools.fleet.queries import FleetQueries
from gpuledger.tools.fleet.usage import Gpu, GpuJoin, Key, Usage, sources_of, summarize
from gpuledger.tools.prometheus.answer import Answer
from gpuledger.tools.prometheus.stream import GpuSample, Sink

log = logging.getLogger(__name__)

NAME = "prometheus"

RunQuery = Callable[[str, float | None, Sink], Answer]
"""Runs an instant query at a time and passes its samples to the sink, as `Prometheus.query` does."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The queries, how to aggregate their values, how often to refresh, and how long to expose the values."""

    queries: FleetQueries
    rule: str = BUSY
    groupings: tuple[Key, ...] = ()
    percent: bool = False
    refresh_s: float = 15.0
    max_age_s: float = 60.0


class Refresh:
    """Keeps the state that is exposed."""

    def __init__(self, query: RunQuery, plan: Plan, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._run_query, self._plan, self._monotonic = query, plan, monotonic
        self._state_log = StateLog(log)
        self._failures: Counter[str] = Counter()
        self._state = FleetState(percent=plan.percent)
        self._good_at = self._tried_at = monotonic()
        self._took_s = 0.0
        self.poller = Poller(NAME, self._poll, lambda: max(0.0, plan.refresh_s - self._took_s))

    @property
    def state(self) -> FleetState:
        """The current state, without values if they are too old."""
        state = self._state
        if state.usages and self._monotonic() - self._good_at > self._plan.max_age_s:
            expired = replace(state, usages=(), data_time_s=None, series=(), warnings=())
            if state is self._state:
                self._state = expired
            return expired
        return state

    @property
    def since_refresh_s(self) -> float:
        """Seconds since the last refresh ended, successful or not."""
        return self._monotonic() - self._tried_at

    def step(self) -> None:
        """Refresh once."""
        started = self._monotonic()
        count = self._state.refreshes + 1
        try:
            state = self._query()
        except PrometheusError as error:
            self._failures[error.kind] += 1
            failures = tuple(sorted(self._failures.items()))
            self._state = replace(self.state, success=False, reason=str(error), refreshes=count, failures=failures)
            self._state_log.change(NAME, error.kind, str(error), "")
        else:
            self._good_at = started  # when the values were queried
            self._state = replace(
                state,
                refreshes=count,
                failures=self._state.failures,
                duration_ns=int((self._monotonic() - started) * 1e9),
            )
            self._state_log.change(NAME, "", "", "Prometheus responds again")
            warnings = "; ".join(state.warnings)
            self._state_log.change(
                "warnings", warnings, f"Prometheus warns: {warnings}", "Prometheus no longer returns warnings"
            )
        self._tried_at = self._monotonic()
        self._took_s = self._tried_at - started

    def _poll(self) -> bool:
        self.step()
        return True  # no backoff

    def _query(self) -> FleetState:
        plan = self._plan
        join = GpuJoin(name for grouping in plan.groupings for names in sources_of(grouping) for name in names)
        counts: dict[str, int] = {}
        warnings: dict[str, None] = {}
        dropped, time_s = 0, None
        for name, query in plan.queries.per_gpu():
            answer = self._run_query(query, time_s, partial(join.add, name))
            if name == "utilization":
                if not answer.count:
                    raise _no_values(query, answer)
                time_s = answer.time_s  # also for all other queries
                self._check_age(time_s)
            counts[name] = answer.count
            warnings.update(dict.fromkeys(answer.warnings))
            dropped += answer.dropped
        gpus, held = tuple(join.gpus), join.held
        del join  # frees all UUIDs before grouping
        if not plan.percent and _is_percent(gpus):
            warnings["the query returns values above 1; set --unit percent if they are percentages"] = None
        try:
            usages: Iterable[Usage] = tuple(summarize(gpus, plan.rule, plan.groupings, held))
        except OverflowError:
            raise PrometheusError("the query returns values that are too large", "check the query", "query") from None
        if not counts.get("allocated") and self._number(plan.queries.known, time_s) == 0:
            if plan.rule == ALLOCATED:
                what = "no exporter reports allocations, so no GPU is in use by the rule allocated"
                raise PrometheusError(what, "use --in-use busy, or see docs/fleet.md", "empty")
            usages = (replace(usage, allocated=None) for usage in usages)
        return FleetState(
            usages=tuple(usages),
            percent=plan.percent,
            success=True,
            reason="",
            data_time_s=time_s,
            series=tuple(counts.items()),
            dropped=dropped,
            warnings=tuple(warnings),
        )

    def _check_age(self, time_s: float | None) -> None:
        """Raise PrometheusError if all samples are too old: Prometheus returns samples of up to five minutes ago."""
        newest_s = self._number(self._plan.queries.newest, time_s)
        if newest_s is not None and time_s is not None and time_s - newest_s > self._plan.max_age_s:
            what = "no sample of a GPU is newer than --max-age"
            raise PrometheusError(what, "check whether Prometheus scrapes the exporters", "stale")

    def _number(self, query: str, time_s: float | None) -> float | None:
        """The value of a query for one number, 0 if it returns none; None without a query."""
        if not query:
            return None
        series: list[GpuSample] = []
        self._run_query(query, time_s, series.extend)
        return series[0][2] if series else 0.0


def _is_percent(gpus: Iterable[Gpu]) -> bool:
    return any(gpu.utilization > 1.5 for gpu in gpus)


def _no_values(query: str, answer: Answer) -> PrometheusError:
    if answer.dropped:
        what = f"the query {query!r} returns {answer.dropped} series, none with a finite value"
        return PrometheusError(what, "check whether it divides by zero", "empty")
    fix = "check that the metric exists and that the exporters are scraped"
    return PrometheusError(f"the query {query!r} returns nothing", fix, "empty")
