"""The tick: read, resolve, book, publish. The whole story of gpuledger in one screen."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from gpuledger.books.book import Books
from gpuledger.model import Facts, Health, Stage, Tick
from gpuledger.owners.resolver import Resolver
from gpuledger.said import Said
from gpuledger.sources.source import Collector, Source

log = logging.getLogger(__name__)

ReadFacts = Callable[[Tick], dict[int, Facts]]
ReadHealth = Callable[[Health], Health]


class Bookkeeper(Protocol):
    """Books, or books with a journal."""

    def book(self, tick: Tick) -> Tick:
        """The tick with its processes, containers and accounts."""


class Loop:
    """Makes a tick every `interval_s` and keeps the last one for whoever asks. A stage that fails costs its part."""

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
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._facts = facts
        self._interval_s = interval_s
        self._health = health
        self._published = published
        self._monotonic = monotonic
        self._owners = owners or Resolver()
        self._books: Bookkeeper = books or Books()
        self._collectors = collectors
        self._said = Said(log)
        self._stop = threading.Event()
        self._ticks = 0
        self._missed = 0
        self._published_at: float = 0.0
        self.tick: Tick | None = None
        """The last finished tick: one reference, swapped whole, so that readers need no lock."""

    def has_answers(self) -> bool:
        """Whether everybody who is asked in the background has answered at least once."""
        return self._owners.has_names() and all(collector.answered() for collector in self._collectors)

    def age_s(self) -> float | None:
        """How old the last tick is; None before the first."""
        return None if self.tick is None else self._monotonic() - self._published_at

    def once(self) -> Tick:
        """One tick through all stages."""
        started = time.perf_counter_ns()
        stages: list[Stage] = []
        tick = self._source.read()
        stages.append(Stage("read", time.perf_counter_ns() - started, tick.driver.up))
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
        )
        tick = replace(tick, health=self._health(health))
        self._published_at = self._monotonic()
        self.tick = tick
        self._published(tick)
        return tick

    def run(self) -> None:
        """Tick until stopped, at multiples of the interval; a tick that takes too long lets the next ones fall out."""
        due = self._monotonic()
        while not self._stop.is_set():
            reason = ""
            try:
                self.once()
            except Exception as error:  # the loop is the exporter's heart: it does not stop for a bug
                reason = f"{type(error).__name__}: {error}"
                log.debug("tick", exc_info=True)
            self._said.change("tick", reason, f"no tick is finished: {reason}", "ticks are finished again")
            due += self._interval_s
            late = math.ceil((self._monotonic() - due) / self._interval_s)
            if late > 0:
                self._missed += late
                due += late * self._interval_s
            self._stop.wait(max(0.0, due - self._monotonic()))

    def stop(self) -> None:
        """End `run`, let go of the source and ask nobody for anything any more."""
        self._stop.set()
        self._source.close()
        self._owners.close()
        for collector in self._collectors:
            collector.close()

    def _resolve(self, tick: Tick) -> Tick:
        if self._facts is not None:  # a recording brings its facts along
            tick = replace(tick, facts=self._facts(tick))
        return self._owners.resolve(tick, self.tick)

    def _run(self, name: str, stages: list[Stage], stage: Callable[[Tick], Tick], tick: Tick) -> Tick:
        started = time.perf_counter_ns()
        reason = ""
        try:
            tick = stage(tick)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.debug("stage %s", name, exc_info=True)
        self._said.change(f"stage {name}", reason, f"stage {name} fails: {reason}", f"stage {name} works again")
        stages.append(Stage(name, time.perf_counter_ns() - started, not reason))
        return tick
