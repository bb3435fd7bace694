"""The thread that keeps a dcgm-exporter's metrics at hand, with pods on them. No scrape and no tick waits for it.

It reads every so often, and looks every second whether somebody else holds a device now: then the answer it has gets
new labels. What was read last is served until it is too old, whatever happens to the dcgm-exporter.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.holders import DevicePods, device_pods
from gpuledger.model import Tick, Upstream
from gpuledger.problem import Problem
from gpuledger.said import Said
from gpuledger.upstream.enrich import Enriched, enrich
from gpuledger.upstream.exposition import Family
from gpuledger.upstream.failure import UpstreamError
from gpuledger.upstream.source import Source

log = logging.getLogger(__name__)

LOOK_S = 1.0
PATIENCE_NS = 10 * 10**9
"""How long whoever knows names may take for a first answer; series without pods would be other series."""
NAME = "dcgm-exporter"
DUPLICATES = "duplicates"


@dataclass(frozen=True, slots=True)
class Polling:
    """How often to read, how long an answer is good, and what to do with shared devices."""

    interval_s: float = 15.0
    max_age_s: float = 60.0
    copied: bool = False


class Poll:
    """Reads one source. `latest` gives the last tick, from which it takes who holds what."""

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
        self._said = Said(log)
        self._stop = threading.Event()
        self._families: list[Family] = []
        self._held: DevicePods | None = None
        self._served: Enriched | None = None
        self._good_at: float | None = None
        self._due = monotonic()
        self._reason = "not read yet"
        self._last_success_ns = self._duration_ns = self._duplicates = 0
        self._failures: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name=NAME, daemon=True).start()

    def stop(self) -> None:
        """End soon; does not wait for a server that hangs."""
        self._stop.set()

    @property
    def served(self) -> Enriched | None:
        """The last good answer; None when it is too old."""
        good_at = self._good_at
        if good_at is None or self._monotonic() - good_at > self._polling.max_age_s:
            return None
        return self._served

    @property
    def state(self) -> Upstream:
        """How it is, for the tick."""
        served = self.served
        return Upstream(
            up=not self._reason and served is not None,
            problem=Problem(self._reason) if self._reason else None,
            last_success_ns=self._last_success_ns,
            duration_ns=self._duration_ns,
            series=served.series if served else 0,
            with_pod=served.with_pod if served else 0,
            duplicates=self._duplicates,
            failures=tuple(sorted(self._failures.items())),
        )

    def step(self) -> None:
        """Read if it is time to, and label if anything changed. Public for tests."""
        tick = self._latest()
        if tick is None or not _is_resolved(tick):
            return
        started = self._monotonic()
        families = None
        if started >= self._due:
            self._due = started + self._polling.interval_s
            families = self._read()
        # A driver that is down lists no devices, which does not mean that nobody holds them.
        held = self._held if self._held is not None and not tick.driver.up else device_pods(tick)
        if families is not None:
            self._families = families
            self._label(held)
            self._count_duplicates(self._served.duplicates if self._served else 0)
            self._duration_ns = int((self._monotonic() - started) * 1e9)
        elif self._families and held != self._held:
            self._label(held)
        if self.served is None:  # its memory is better free
            self._families, self._served = [], None

    def _label(self, held: DevicePods) -> None:
        self._held = held
        self._served = enrich(self._families, held, copied=self._polling.copied)

    def _count_duplicates(self, count: int) -> None:
        self._duplicates += count
        problem = f"{NAME}: {count} of its series have the labels of one before them, and are left out"
        self._said.change(DUPLICATES, "some" if count else "", problem, f"{NAME} has every series once again")

    def _read(self) -> list[Family] | None:
        try:
            answer = self._source.read()
        except UpstreamError as error:
            self._fail(error.reason, str(error))
            return None
        self._good_at = self._monotonic() - max(0.0, answer.age_s)
        self._last_success_ns = self._now_ns()
        self._reason = ""
        self._said.change(NAME, "", "", f"{NAME} answers again")
        return answer.families

    def _fail(self, kind: str, reason: str) -> None:
        """Logged when the kind changes: the lines of a broken answer may differ each time."""
        self._failures[kind] += 1
        self._reason = reason
        self._said.change(NAME, kind, f"{NAME}: {reason}", "")

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.step()
            except Exception as error:  # the thread goes on, and so does what it has
                log.debug(NAME, exc_info=True)
                self._fail("bug", f"{type(error).__name__}: {error}")
            self._stop.wait(LOOK_S)


def _is_resolved(tick: Tick) -> bool:
    """Whether everybody who knows names was asked once, or should have answered by now."""
    return all(one.fetches or tick.time_ns - one.since_ns > PATIENCE_NS for one in tick.owners.providers)
