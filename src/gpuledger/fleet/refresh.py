"""The values that `fleet` shows, refreshed from Prometheus in the background. No scrape waits for a refresh."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gpuledger.errors import PrometheusError
from gpuledger.fleet.answer import Answer
from gpuledger.fleet.in_use import Gpu, Join, Key, Usage, sources_of, summarize
from gpuledger.fleet.pages import Shown
from gpuledger.fleet.queries import Queries
from gpuledger.fleet.stream import Found, Take
from gpuledger.net.poller import Poller
from gpuledger.statelog import StateLog

log = logging.getLogger(__name__)

NAME = "prometheus"


class Server(Protocol):
    """A server that answers queries."""

    def query(self, promql: str, at_s: float | None, take: Take) -> Answer:
        """The values now or at that time, with the series going to `take`; raises PrometheusError."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The queries, how to aggregate their values, how often to refresh, and how long values are shown."""

    queries: Queries
    rule: str = "busy"
    groupings: tuple[Key, ...] = ()
    percent: bool = False
    refresh_s: float = 15.0
    max_age_s: float = 60.0


class Refresh:
    """Keeps the values that are shown."""

    def __init__(self, prometheus: Server, plan: Plan, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._prometheus, self._plan, self._monotonic = prometheus, plan, monotonic
        self._state_log = StateLog(log)
        self._failures: Counter[str] = Counter()
        self._shown = Shown(percent=plan.percent)
        self._good_at = self._tried_at = monotonic()
        self._took_s = 0.0
        self._poller = Poller(NAME, self._poll, lambda: max(0.0, plan.refresh_s - self._took_s))

    def start(self) -> None:
        """Start refreshing."""
        self._poller.start()

    def stop(self) -> None:
        """Stop soon; does not wait for a server that hangs."""
        self._poller.stop()

    @property
    def shown(self) -> Shown:
        """The values; none if they are too old."""
        shown = self._shown
        if shown.usages and self._monotonic() - self._good_at > self._plan.max_age_s:
            expired = replace(shown, usages=(), asked_s=None, series=(), warnings=())
            if shown is self._shown:
                self._shown = expired
            return expired
        return shown

    @property
    def tried_s_ago(self) -> float:
        """How long ago the last refresh ended, with or without success."""
        return self._monotonic() - self._tried_at

    def step(self) -> None:
        """Refresh once."""
        started = self._monotonic()
        count = self._shown.refreshes + 1
        try:
            shown = self._query()
        except PrometheusError as error:
            self._failures[error.kind] += 1
            failures = tuple(sorted(self._failures.items()))
            self._shown = replace(self.shown, success=False, reason=str(error), refreshes=count, failures=failures)
            self._state_log.change(NAME, error.kind, str(error), "")
        else:
            self._good_at = started  # the values are as old as the query
            self._shown = replace(
                shown,
                refreshes=count,
                failures=self._shown.failures,
                duration_ns=int((self._monotonic() - started) * 1e9),
            )
            self._state_log.change(NAME, "", "", "Prometheus answers again")
            warnings = "; ".join(shown.warnings)
            self._state_log.change("warnings", warnings, f"Prometheus warns: {warnings}", "Prometheus warns no more")
        self._tried_at = self._monotonic()
        self._took_s = self._tried_at - started

    def _poll(self) -> bool:
        self.step()
        return True  # also after a failure the next refresh is due after the same interval

    def _query(self) -> Shown:
        plan = self._plan
        join = Join(name for grouping in plan.groupings for names in sources_of(grouping) for name in names)
        counts: dict[str, int] = {}
        warnings: dict[str, None] = {}
        dropped, time_s = 0, None
        for name, query in plan.queries.per_gpu():
            answer = self._prometheus.query(query, time_s, partial(join.add, name))
            if name == "utilization":
                if not answer.count:
                    raise _no_values(query, answer)
                time_s = answer.time_s  # of all other queries too
                self._check_age(time_s)
            counts[name] = answer.count
            warnings.update(dict.fromkeys(answer.warnings))
            dropped += answer.dropped
        gpus, held = tuple(join.gpus), join.held
        del join  # and all UUIDs, before groups are made
        if not plan.percent and _is_percent(gpus):
            warnings["the query gives values over 1, so they are no ratios; is it --unit percent?"] = None
        try:
            usages: Iterable[Usage] = tuple(summarize(gpus, plan.rule, plan.groupings, held))
        except OverflowError:
            raise PrometheusError(
                "the query gives values too large to be added up", "is it the right one?", "query"
            ) from None
        if not counts.get("allocated") and self._number(plan.queries.known, time_s) == 0:
            if plan.rule == "allocated":
                what = "no exporter reports the allocation of GPUs, so none is in use by the rule allocated"
                raise PrometheusError(what, "take --in-use busy, or see docs/fleet.md", "empty")
            usages = (replace(usage, allocated=None) for usage in usages)
        return Shown(
            usages=tuple(usages),
            percent=plan.percent,
            success=True,
            reason="",
            asked_s=time_s,
            series=tuple(counts.items()),
            dropped=dropped,
            warnings=tuple(warnings),
        )

    def _check_age(self, time_s: float | None) -> None:
        """Prometheus answers with a sample of up to five minutes ago if there is no newer one."""
        newest_s = self._number(self._plan.queries.newest, time_s)
        if newest_s is not None and time_s is not None and time_s - newest_s > self._plan.max_age_s:
            what = "no sample of a GPU is newer than --max-age"
            raise PrometheusError(what, "does Prometheus still scrape the exporters?", "stale")

    def _number(self, query: str, time_s: float | None) -> float | None:
        """The value of a query for one number, 0 if it gives none; None without a query."""
        if not query:
            return None
        series: list[Found] = []
        self._prometheus.query(query, time_s, series.extend)
        return series[0][2] if series else 0.0


def _is_percent(gpus: Iterable[Gpu]) -> bool:
    return any(gpu.utilization > 1.5 for gpu in gpus)


def _no_values(query: str, answer: Answer) -> PrometheusError:
    if answer.dropped:
        what = f"the query {query!r} gives {answer.dropped} series, and none of them has a number"
        return PrometheusError(what, "does it divide by zero?", "empty")
    return PrometheusError(
        f"the query {query!r} gives nothing", "is there such a metric, and are the exporters scraped?", "empty"
    )
