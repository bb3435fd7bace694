"""The tick: read, resolve, book, publish. The whole story of gpuledger in one screen."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gpuledger.books.processes import ProcessBook
from gpuledger.model import Facts, Health, Stage, Tick
from gpuledger.said import Said
from gpuledger.sources.source import Source

log = logging.getLogger(__name__)

ReadFacts = Callable[[set[int]], dict[int, Facts]]
ReadHealth = Callable[[Health], Health]


class Loop:
    """Makes a tick every `interval_s` and keeps the last one for whoever asks. A stage that fails costs its part."""

    def __init__(
        self,
        source: Source,
        facts: ReadFacts | None,
        *,
        interval_s: float,
        health: ReadHealth = lambda health: health,
        on_tick: Callable[[Tick], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._facts = facts
        self._interval_s = interval_s
        self._health = health
        self._on_tick = on_tick
        self._book = ProcessBook()
        self._said = Said(log)
        self._stop = threading.Event()
        self._ticks = 0
        self._missed = 0
        self._published_at: float = 0.0
        self.tick: Tick | None = None
        """The last finished tick: one reference, swapped whole, so that readers need no lock."""

    def age_s(self) -> float | None:
        """How old the last tick is; None before the first."""
        return None if self.tick is None else time.monotonic() - self._published_at

    def once(self) -> Tick:
        """One tick through all stages."""
        started = time.perf_counter_ns()
        stages: list[Stage] = []
        tick = self._source.read()
        stages.append(Stage("read", time.perf_counter_ns() - started, tick.driver.up))
        tick = self._run("resolve", stages, self._resolve, tick)
        tick = self._run("book", stages, self._book.book, tick)
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
        self._published_at = time.monotonic()
        self.tick = tick
        self._on_tick(tick)
        return tick

    def run(self) -> None:
        """Tick until stopped, at multiples of the interval; a tick that takes too long lets the next ones fall out."""
        due = time.monotonic()
        while not self._stop.is_set():
            try:
                self.once()
            except Exception:  # the loop is the exporter's heart: it does not stop for a bug
                log.exception("a tick failed")
            due += self._interval_s
            late = int((time.monotonic() - due) // self._interval_s) + 1
            if late > 0:
                self._missed += late
                due += late * self._interval_s
            self._stop.wait(max(0.0, due - time.monotonic()))

    def stop(self) -> None:
        """End `run` and let go of the source."""
        self._stop.set()
        self._source.close()

    def _resolve(self, tick: Tick) -> Tick:
        if self._facts is None:  # a recording brings its facts along
            return tick
        pids = {resident.pid for reading in tick.readings for resident in reading.residents or ()}
        return replace(tick, facts=self._facts(pids))

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
