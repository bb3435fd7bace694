"""Reads the metrics of a dcgm-exporter in the background and adds pod labels.

The metrics are read every `interval_s`. The holders of devices are compared every second; if they have changed, the
last response is labelled again. The last response is served until it is too old, even if the dcgm-exporter is down.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.errors import UpstreamError
from gpuledger.integrations.dcgmexporter.enrich import Enriched, enrich
from gpuledger.integrations.exposition import ScrapedFamily
from gpuledger.integrations.scrape import Source
from gpuledger.model import Tick, Upstream
from gpuledger.model.holders import DevicePods, device_pods
from gpuledger.model.owners import PROVIDERS
from gpuledger.model.problem import Problem
from gpuledger.runtime.poller import Poller
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

COMPARE_S = 1.0
PROVIDERS_NS = 10 * 10**9
"""How long to wait for the first names from providers: a series without its pod would be a different series."""
NAME = "dcgm-exporter"
DUPLICATES, PODS = "duplicates", "pods"
PODS_FIX = "mount /var/lib/kubelet/pod-resources, run as uid 0, and set --environment=kubernetes"
NOT_READ = Problem("not read yet", kind="starting")


@dataclass(frozen=True, slots=True)
class Polling:
    """How often to read, how long to serve a response, and whether to copy the series of shared devices to each pod."""

    interval_s: float = 15.0
    max_age_s: float = 60.0
    copied: bool = False


class Poll:
    """Polls one source. `latest` returns the last tick, from which the holders of devices are taken."""

    def __init__(
        self,
        source: Source,
        latest: Callable[[], Tick | None],
        polling: Polling,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._source, self._latest, self._polling = source, latest, polling
        self._monotonic, self._now_ns = monotonic, now_ns
        self._state_log = StateLog(log)
        self._families: list[ScrapedFamily] = []
        self._held: DevicePods | None = None
        self._served: Enriched | None = None
        self._read_at: float | None = None
        self._due = monotonic()
        self._problem: Problem | None = NOT_READ
        self._pods_problem: Problem | None = None
        self._last_success_ns = self._duration_ns = self._duplicates = 0
        self._failures: Counter[str] = Counter()
        self._poller = Poller(NAME, self._guarded_step, lambda: COMPARE_S)

    def start(self) -> None:
        """Start polling."""
        self._poller.start()

    def stop(self) -> None:
        """Stop polling; does not wait for a read in progress."""
        self._poller.stop()

    @property
    def served(self) -> Enriched | None:
        """The last response with pod labels; None if it is too old."""
        read_at = self._read_at
        if read_at is None or self._monotonic() - read_at > self._polling.max_age_s:
            return None
        return self._served

    @property
    def state(self) -> Upstream:
        """Health, for the tick."""
        served = self.served
        return Upstream(
            up=self._problem is None and served is not None,
            problem=self._problem,
            pods_problem=self._pods_problem,
            last_success_ns=self._last_success_ns,
            duration_ns=self._duration_ns,
            series=served.series if served else 0,
            with_pod=served.with_pod if served else 0,
            duplicates=self._duplicates,
            failures=tuple(sorted(self._failures.items())),
        )

    def step(self) -> None:
        """Read if the interval is over; add labels if the response or the holders have changed."""
        tick = self._latest()
        if tick is None or not _is_resolved(tick):
            return
        started = self._monotonic()
        families = None
        if started >= self._due:
            self._due = started + self._polling.interval_s
            families = self._read()
        held = device_pods(tick)
        if self._held is not None and not held.devices:
            held = self._held  # a driver that is down lists no devices, but pods still hold them
        self._report_pods(tick)
        if families is not None:
            self._families = families
            self._label(held)
            self._count_duplicates(self._served.duplicates if self._served else 0)
            self._duration_ns = int((self._monotonic() - started) * 1e9)
        elif self._families and held != self._held:
            self._label(held)
        if self.served is None:  # free its memory
            self._families, self._served = [], None

    def _guarded_step(self) -> bool:
        try:
            self.step()
        except Exception as error:  # a bug must not end the thread
            log.debug(NAME, exc_info=True)
            self._fail(Problem(f"{type(error).__name__}: {error}", kind="bug"))
        return True  # holders are compared every second, also while the dcgm-exporter is down

    def _label(self, held: DevicePods) -> None:
        self._held = held
        self._served = enrich(self._families, held, copied=self._polling.copied)

    def _report_pods(self, tick: Tick) -> None:
        self._pods_problem = _pods_problem(tick)
        text = "" if self._pods_problem is None else f"{NAME}: {self._pods_problem}"
        self._state_log.change(PODS, text, text, f"{NAME}: the kubelet lists pods again")

    def _count_duplicates(self, count: int) -> None:
        self._duplicates += count
        problem = f"{NAME}: {count} series with duplicate labels are dropped"
        self._state_log.change(DUPLICATES, "some" if count else "", problem, f"{NAME}: no more duplicate series")

    def _read(self) -> list[ScrapedFamily] | None:
        try:
            answer = self._source.read()
        except UpstreamError as error:
            self._fail(error.problem)
            return None
        self._read_at = self._monotonic() - max(0.0, answer.age_s)
        self._last_success_ns = self._now_ns()
        self._problem = None
        self._state_log.change(NAME, "", "", f"{NAME} responds again")
        return answer.families

    def _fail(self, problem: Problem) -> None:
        """Count a failure. It is logged when its kind changes, because the text may differ every time."""
        self._failures[problem.kind] += 1
        self._problem = problem
        self._state_log.change(NAME, problem.kind, f"{NAME}: {problem}", "")


def _pods_problem(tick: Tick) -> Problem | None:
    """Why no series can get a pod; None if a provider reports to which pods devices are allocated."""
    kubelets = [health for health in tick.owners.providers if health.kind == PROVIDERS["podresources"]]
    if any(health.up for health in kubelets) or any(a.owner.pod for a in tick.owners.allocations):
        return None
    return Problem("its series get no pods, because the kubelet is not read", PODS_FIX, "pods")


def _is_resolved(tick: Tick) -> bool:
    """Whether each name provider has responded or failed once, or has had ten seconds to respond."""
    providers = tick.owners.providers
    return all(health.fetches or tick.time_ns - health.since_ns > PROVIDERS_NS for health in providers)
