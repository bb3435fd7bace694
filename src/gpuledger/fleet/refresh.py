"""The thread that asks Prometheus every so often. No scrape waits for it, and what it knows grows old by itself."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from gpuledger.fleet.answer import Answer
from gpuledger.fleet.failure import PrometheusError
from gpuledger.fleet.in_use import Gpu, Join, Key, Usage, sources_of, summarize
from gpuledger.fleet.pages import Shown
from gpuledger.fleet.queries import Queries
from gpuledger.fleet.stream import Found, Take
from gpuledger.said import Said

log = logging.getLogger(__name__)

NAME = "prometheus"


class Asked(Protocol):
    """Somebody who answers queries."""

    def query(self, promql: str, at_s: float | None, take: Take) -> Answer:
        """The values now or at that moment, its series to `take`; raises PrometheusError."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask, how to sum it up, how often, and how long it is good."""

    queries: Queries
    rule: str = "busy"
    groupings: tuple[Key, ...] = ()
    percent: bool = False
    refresh_s: float = 15.0
    max_age_s: float = 60.0


class Refresh:
    """Keeps what is shown."""

    def __init__(self, prometheus: Asked, plan: Plan, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._prometheus, self._plan, self._monotonic = prometheus, plan, monotonic
        self._said = Said(log)
        self._stop = threading.Event()
        self._failures: Counter[str] = Counter()
        self._shown = Shown(percent=plan.percent)
        self._good_at = self._tried_at = monotonic()

    def start(self) -> None:
        """Begin to ask."""
        threading.Thread(target=self._run, name=NAME, daemon=True).start()

    def stop(self) -> None:
        """End soon; does not wait for a server that hangs."""
        self._stop.set()

    @property
    def shown(self) -> Shown:
        """What is known now: without values when they are too old."""
        shown = self._shown
        if shown.usages and self._monotonic() - self._good_at > self._plan.max_age_s:
            expired = replace(shown, usages=(), asked_s=None, series=(), warnings=())
            if shown is self._shown:
                self._shown = expired
            return expired
        return shown

    @property
    def tried_s_ago(self) -> float:
        """How long ago the last try ended, however it did."""
        return self._monotonic() - self._tried_at

    def step(self) -> None:
        """Ask once. Public for tests and for `--once`."""
        started = self._monotonic()
        count = self._shown.refreshes + 1
        try:
            found = self._ask()
        except PrometheusError as error:
            self._failures[error.reason] += 1
            failed = tuple(sorted(self._failures.items()))
            self._shown = replace(self.shown, success=False, reason=str(error), refreshes=count, failures=failed)
            self._said.change(NAME, error.reason, str(error), "")
        else:
            self._good_at = started  # the answers are no younger than the question
            self._shown = replace(
                found,
                refreshes=count,
                failures=self._shown.failures,
                duration_ns=int((self._monotonic() - started) * 1e9),
            )
            self._said.change(NAME, "", "", "Prometheus answers again")
            warned = "; ".join(found.warnings)
            self._said.change("warnings", warned, f"Prometheus warns: {warned}", "Prometheus warns no more")
        self._tried_at = self._monotonic()

    def _ask(self) -> Shown:
        plan = self._plan
        join = Join(name for grouping in plan.groupings for names in sources_of(grouping) for name in names)
        counts: dict[str, int] = {}
        warnings: dict[str, None] = {}
        dropped, moment = 0, None
        for name, query in plan.queries.per_gpu():
            answer = self._prometheus.query(query, moment, partial(join.add, name))
            if name == "utilization":
                if not answer.count:
                    raise PrometheusError("empty", _nothing(query, answer))
                moment = answer.time_s  # all others speak of the same one
                self._check_age(moment)
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
                "query", "the query gives values too large to be added up; is it the right one?"
            ) from None
        if not counts.get("allocated") and self._number(plan.queries.known, moment) == 0:
            if plan.rule == "allocated":
                raise PrometheusError("empty", "no exporter says who was given a GPU, so none is in use by the rule "
                                      "allocated; take --in-use busy, or see docs/fleet.md")  # fmt: skip
            usages = (replace(usage, allocated=None) for usage in usages)
        return Shown(
            usages=tuple(usages),
            percent=plan.percent,
            success=True,
            reason="",
            asked_s=moment,
            series=tuple(counts.items()),
            dropped=dropped,
            warnings=tuple(warnings),
        )

    def _check_age(self, moment: float | None) -> None:
        """Prometheus answers with a sample of five minutes ago when there is no newer one."""
        newest = self._number(self._plan.queries.newest, moment)
        if newest is not None and moment is not None and moment - newest > self._plan.max_age_s:
            raise PrometheusError("stale", "no sample of a GPU is newer than --max-age; does Prometheus still scrape "
                                  "the exporters?")  # fmt: skip

    def _number(self, query: str, moment: float | None) -> float | None:
        """The one value of a query, 0 without one; None where there is no query."""
        if not query:
            return None
        found: list[Found] = []
        self._prometheus.query(query, moment, found.extend)
        return found[0][2] if found else 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            due = self._monotonic() + self._plan.refresh_s
            try:
                self.step()
            except Exception as error:  # the thread goes on; what it has grows old
                log.exception("a refresh failed: %s", type(error).__name__)
            self._stop.wait(max(0.0, due - self._monotonic()))


def _is_percent(gpus: Iterable[Gpu]) -> bool:
    return any(gpu.utilization > 1.5 for gpu in gpus)


def _nothing(query: str, answer: Answer) -> str:
    if answer.dropped:
        return f"the query {query!r} gives {answer.dropped} series, and none of them has a number"
    return f"the query {query!r} gives nothing; is there such a metric, and are the exporters scraped?"
