"""The loop: read, resolve, book and publish a tick."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.books import Books
from gpuledger.model import Facts, Health, Stage, Tick
from gpuledger.model.problem import Problem
from gpuledger.owners.resolver import Resolver
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

ReadFacts = Callable[[Tick], dict[int, Facts]]
ReadHealth = Callable[[Health], Health]


class Source(Protocol):
    """Returns one tick per call. A failed driver or GPU is reported in the tick, not by an exception."""

    def read(self) -> Tick:
        """The current readings of all GPUs."""

    def errors(self) -> Mapping[tuple[str, str], int]:
        """Unexpected failures of driver calls since the start, by call and error."""

    def problems(self) -> tuple[Problem, ...]:
        """The same failures as problems, with their fixes."""

    def close(self) -> None:
        """Release the driver; returns at once even if a call hangs."""


class Collector(Protocol):
    """Adds values of another program to a tick after the books, so that no book can depend on them."""

    name: str
    """Name of the stage in the metrics."""

    def attach(self, tick: Tick) -> Tick:
        """The tick with the latest values; does not wait for them."""

    def answered(self) -> bool:
        """Whether values have arrived, or failed to."""

    def close(self) -> None:
        """Stop collecting; returns soon even if a call hangs."""


class Bookkeeper(Protocol):
    """`Books` or `JournaledBooks`."""

    def book(self, tick: Tick) -> Tick:
        """The tick with its processes, containers and accounts."""


class Loop:
    """Makes a tick every `interval_s` and publishes it. If a stage fails, only its values are missing."""

    def __init__(
        self,
        source: Source,
        facts: ReadFacts | None,
        *,
        interval_s: float,
        owners: Resolver | None = None,
        books: Bookkeeper | None = None,
        collectors: Sequence[Collector] = (),
        health: ReadHealth = lambda health: health,
        published: Callable[[Tick], None] = lambda _: None,
        between_ticks: threading.Event | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`between_ticks` is set while no tick is made."""
        self._source = source
        self._facts = facts
        self._interval_s = interval_s
        self._health = health
        self._published = published
        self._monotonic = monotonic
        self._owners = owners or Resolver()
        self._books: Bookkeeper = books or Books()
        self._collectors = collectors
        self._state_log = StateLog(log)
        self._between_ticks = between_ticks or threading.Event()
        self._stop = threading.Event()
        self._ticks = 0
        self._missed = 0
        self._published_at: float = 0.0
        self.tick: Tick | None = None
        """The last finished tick. Readers need no lock, because ticks are immutable."""

    def once(self) -> Tick:
        """Make one tick through all stages, and publish it."""
        started = time.perf_counter_ns()
        stages: list[Stage] = []
        tick = self._source.read()
        stages.append(Stage(name="read", duration_ns=time.perf_counter_ns() - started, success=tick.driver.up))
        tick = self._run("resolve", stages, self._resolve, tick)
        tick = self._run("book", stages, self._books.book, tick)
        for collector in self._collectors:
            tick = self._run(collector.name, stages, collector.attach, tick)
        self._ticks += 1
        health = Health(
            interval_ns=int(self._interval_s * 1e9),
            duration_ns=time.perf_counter_ns() - started,
            ticks=self._ticks,
            missed_ticks=self._missed,
            stages=tuple(stages),
            driver_errors=tuple(sorted(self._source.errors().items())),
            driver_problems=self._source.problems(),
        )
        tick = replace(tick, health=self._health(health))
        self._published_at = self._monotonic()
        self.tick = tick
        self._published(tick)
        return tick

    def run(self) -> None:
        """Tick at multiples of the interval until stopped; a tick that takes too long skips the next ones."""
        due = self._monotonic()
        while not self._stop.is_set():
            reason = ""
            self._between_ticks.clear()
            try:
                self.once()
            except Exception as error:  # a bug must not stop the exporter
                reason = f"{type(error).__name__}: {error}"
                log.debug("tick", exc_info=True)
            self._between_ticks.set()
            self._state_log.change("tick", reason, f"tick failed: {reason}", "ticks succeed again")
            due += self._interval_s
            late = math.ceil((self._monotonic() - due) / self._interval_s)
            if late > 0:
                self._missed += late
                due += late * self._interval_s
            self._stop.wait(max(0.0, due - self._monotonic()))

    def stop(self) -> None:
        """End `run`, and close the source, the providers and the collectors."""
        self._stop.set()
        self._source.close()
        self._owners.close()
        for collector in self._collectors:
            collector.close()

    def has_answers(self) -> bool:
        """Whether every provider and collector has answered at least once."""
        return self._owners.has_names() and all(collector.answered() for collector in self._collectors)

    def age_s(self) -> float | None:
        """The age of the last tick; None before the first."""
        return None if self.tick is None else self._monotonic() - self._published_at

    def _resolve(self, tick: Tick) -> Tick:
        if self._facts is not None:  # a recording contains its facts
            tick = replace(tick, facts=self._facts(tick))
        return self._owners.resolve(tick, self.tick)

    def _run(self, name: str, stages: list[Stage], stage: Callable[[Tick], Tick], tick: Tick) -> Tick:
        """Run one stage; if it fails, return the tick unchanged."""
        started = time.perf_counter_ns()
        reason = ""
        try:
            tick = stage(tick)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.debug("stage %s", name, exc_info=True)
        self._state_log.change(
            f"stage {name}", reason, f"stage {name} failed: {reason}", f"stage {name} succeeds again"
        )
        stages.append(Stage(name=name, duration_ns=time.perf_counter_ns() - started, success=not reason))
        return tick
