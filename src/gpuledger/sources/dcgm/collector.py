"""Asks DCGM about the processes of the last tick, in a thread of its own.

A tick takes what is known and never waits. A call that does not return costs DCGM's numbers, and nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.model import DcgmHealth, DcgmStats, ProcessUse, Tick
from gpuledger.net.poller import Backoff
from gpuledger.problem import Problem
from gpuledger.said import Said
from gpuledger.sources.dcgm import answers
from gpuledger.sources.dcgm.library import ACCOUNTING, NO_PERMISSION, NOT_WATCHED, REQUIRES_ROOT, DcgmError, Library
from gpuledger.sources.dcgm.session import Session

log = logging.getLogger(__name__)

HANGS_S = 10.0
"""Starting an engine on a large node takes seconds; nothing takes longer."""
GOODBYE_S = 0.5
"""How long the end of the program may wait for DCGM to be left in order."""
PATIENCE = 5
"""Rounds without a number of any process before it is said: a process is known one period after its start."""
SLACK_MS = 2000
"""Start times come from the driver's clock and from the kernel's count since boot."""
REMEDIABLE = frozenset({NOT_WATCHED, NO_PERMISSION, REQUIRES_ROOT})
"""The connection is good, and need not be made anew to try again."""

Answers = Mapping[tuple[int, str], DcgmStats]
"""By pid and the GPU's uuid."""


@dataclass(frozen=True, slots=True)
class Known:
    """All that was known after a round; swapped whole, so that a tick needs no lock."""

    health: DcgmHealth
    answers: Answers = field(default_factory=dict)


class DcgmCollector:
    """Puts DCGM's numbers beside ours in each tick, after the books are written."""

    name = "dcgm"

    def __init__(
        self,
        *,
        period_s: float = 1.0,
        hostengine: str = "",
        library: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._period_s = period_s
        self._hostengine = hostengine
        self._path = library
        self._monotonic = monotonic
        self._backoff = Backoff(monotonic)
        self._library: Library | None = None
        self._session: Session | None = None
        self._watching = False
        self._wanted: frozenset[int] | None = None
        """Pids of the last tick; None before the first."""
        self._answered = False
        self._advice = ""
        self._empty_rounds = 0
        self._began: float | None = None
        """When the round in progress made its last call."""
        mode = "hostengine" if hostengine else "embedded"
        self._known = Known(DcgmHealth(up=False, problem=Problem("not asked yet"), mode=mode))
        self._said = Said(log)
        self._said.assume("dcgm", self._known.health.reason)
        self._stop = False
        self._news = threading.Event()
        """The first tick is there, or it is time to stop."""
        self._thread = threading.Thread(target=self._run, name="dcgm", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that hangs in the library ends with the process."""
        self._stop = True
        self._news.set()
        if self._thread.is_alive() and not self._hangs():
            self._thread.join(GOODBYE_S)

    def attach(self, tick: Tick) -> Tick:
        """The tick with what DCGM said last; its processes are those to ask about next. Never waits."""
        before, self._wanted = self._wanted, frozenset(use.resident.pid for use in tick.processes if use.active)
        self._advice = _advice(tick)
        if before is None:
            self._news.set()
        known = self._known
        if self._hangs():
            call = self._library.current if self._library is not None else ""
            reason = f"{call or 'loading the library'} does not return"
            self._say(reason)
            known = Known(replace(known.health, up=False, problem=Problem(reason)))
        if not known.answers:
            return replace(tick, dcgm=known.health)
        processes = tuple(_beside(use, known.answers) for use in tick.processes)
        return replace(tick, processes=processes, dcgm=known.health)

    def answered(self) -> bool:
        """Whether DCGM was asked about the processes of a tick, or cannot be."""
        return self._answered

    def round(self) -> None:
        """Ask about everybody once, or try to get to where that is possible. Public for tests."""
        if self._known.health.reason and not self._backoff.due():
            return
        self._began = self._monotonic()
        wanted = self._wanted
        try:
            found = self._ask(wanted or frozenset())
        except DcgmError as error:
            self._fail(str(error), keep=error.code in REMEDIABLE)
        except Exception as error:  # a bug of ours must not end the thread
            log.debug("dcgm", exc_info=True)
            self._fail(f"{type(error).__name__}: {error}", keep=False)
        else:
            self._backoff.reset()
            self._publish("", found)
            self._answered = wanted is not None
            self._note_silence(asked=len(wanted or ()), answered=len(found))
        finally:
            self._began = None

    def leave(self) -> None:
        """Let go of DCGM. Public for tests."""
        session, self._session, self._watching = self._session, None, False
        if session is not None:
            session.close()

    # -- in the thread

    def _run(self) -> None:
        while not self._stop:
            self.round()
            self._news.wait(self._period_s)
            self._news.clear()
        self._began = self._monotonic()
        self.leave()

    def _ask(self, wanted: frozenset[int]) -> Answers:
        if self._library is None:
            self._library = Library(self._path)
        if self._session is None:
            self._session = Session(self._library, self._hostengine)
        session = self._session
        if not self._watching:
            session.watch(self._period_s)
            self._watching = True
        found: dict[tuple[int, str], DcgmStats] = {}
        for pid in sorted(wanted):
            if self._stop:
                break
            self._began = self._monotonic()
            info = session.process(pid)
            for gpu_id, stats in () if info is None else answers.by_gpu(info):
                if uuid := session.uuid(gpu_id):
                    found[pid, uuid] = stats
        return found

    def _fail(self, reason: str, *, keep: bool) -> None:
        self._watching = False
        if not keep:
            self.leave()
        self._backoff.failed()
        self._publish(reason, {})
        self._answered = True

    def _publish(self, reason: str, found: Answers) -> None:
        library = self._library.name if self._library is not None else ""
        version = self._session.version if self._session is not None else ""
        health = DcgmHealth(
            up=not reason,
            problem=Problem(reason) if reason else None,
            version=version,
            library=library,
            mode=self._known.health.mode,
        )
        self._known = Known(health, found)
        self._say(reason)

    def _say(self, reason: str) -> None:
        health = self._known.health
        back = f"DCGM {health.version} answers ({health.mode}, {health.library})"
        self._said.change("dcgm", reason, f"DCGM's numbers are missing: {reason}", back)

    def _note_silence(self, *, asked: int, answered: int) -> None:
        """DCGM is well, but has nothing to say: nearly always accounting mode."""
        self._empty_rounds = self._empty_rounds + 1 if asked and not answered else 0
        if answered or self._empty_rounds >= PATIENCE:
            advice = "" if answered else self._advice
            problem = f"DCGM has no data (-14) of any of {asked} processes: {advice}"
            self._said.change("dcgm data", advice, problem, "DCGM has data of processes")

    def _hangs(self) -> bool:
        began = self._began
        return began is not None and self._monotonic() - began > HANGS_S


def _beside(use: ProcessUse, found: Answers) -> ProcessUse:
    stats = found.get((use.resident.pid, use.device.uuid))
    if stats is None or not use.active or _of_another(use, stats):
        return use
    return replace(use, dcgm=stats)


def _of_another(use: ProcessUse, stats: DcgmStats) -> bool:
    """Whether it speaks of a process that had this pid before: DCGM knows the new one only after its next sample."""
    if use.facts is None or stats.start_us is None:
        return False
    return stats.start_us // 1000 < use.facts.start_time_ms - SLACK_MS


def _advice(tick: Tick) -> str:
    """Why there may be nothing to say, as far as the driver tells."""
    gpus = [reading for reading in tick.readings if not reading.device.parent_uuid]
    if any(gpu.mig_enabled for gpu in gpus):
        return "a GPU is in MIG mode, in which the driver keeps no accounts of processes, and DCGM of none at all"
    if any(gpu.accounting_enabled is False for gpu in gpus):
        return f"accounting mode is off; {ACCOUNTING}"
    return "they may have begun before accounting mode was turned on; processes that start now will be known"
