"""Reads DCGM's statistics of the processes of the last tick, in a thread of its own.

A tick uses the latest statistics without waiting. If a call hangs, only DCGM's numbers are missing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuledger.errors import DcgmError
from gpuledger.integrations.dcgm.library import ACCOUNTING, NOT_WATCHED, PERMISSION, REQUIRES_ROOT, Library
from gpuledger.integrations.dcgm.session import Session
from gpuledger.model import DcgmHealth, DcgmStats, ProcessUse, Tick
from gpuledger.model.problem import REPORT, Problem
from gpuledger.runtime.poller import Backoff
from gpuledger.runtime.statelog import StateLog

log = logging.getLogger(__name__)

HANGS_S = 10.0
"""A longer call counts as hung. The slowest one, starting an engine on a large node, takes seconds."""
CLOSE_TIMEOUT_S = 0.5
"""How long the exporter waits for the connection to be closed when it stops."""
SILENT_ROUNDS = 5
"""Rounds without any statistics before a warning; DCGM has those of a process one period after its start."""
SLACK_MS = 2000
"""Tolerance between start times, which come from the driver's clock and from the kernel's time since boot."""
RETRY_CONNECTED = frozenset({NOT_WATCHED, PERMISSION, REQUIRES_ROOT})
"""Kinds of errors after which the connection is kept."""

RESTART = "restart nv-hostengine, or gpuledger if DCGM runs inside it"

Statistics = Mapping[tuple[int, str], DcgmStats]
"""Statistics by pid and uuid of the GPU."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a round; replaced as a whole, so that a tick needs no lock."""

    health: DcgmHealth
    statistics: Statistics = field(default_factory=dict)


class DcgmCollector:
    """Adds DCGM's statistics to each tick, after the books."""

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
        self._pids: frozenset[int] | None = None
        """The processes of the last tick; None before the first."""
        self._answered = False
        self._advice = ""
        self._empty_rounds = 0
        self._began: float | None = None
        """When the last call of the current round began."""
        mode = "hostengine" if hostengine else "embedded"
        self._result = Result(DcgmHealth(up=False, problem=Problem("not polled yet", kind="starting"), mode=mode))
        self._state_log = StateLog(log)
        self._state_log.assume("dcgm", self._result.health.reason)
        self._stop = False
        self._wake = threading.Event()
        """Set by the first tick and by `close`."""
        self._thread = threading.Thread(target=self._run, name="dcgm", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; one that hangs in a call ends with the process."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive() and not self._hangs():
            self._thread.join(CLOSE_TIMEOUT_S)

    def attach(self, tick: Tick) -> Tick:
        """The tick with the latest statistics. The next round reads those of its processes."""
        previous, self._pids = self._pids, frozenset(use.resident.pid for use in tick.processes if use.active)
        self._advice = _advice(tick)
        if previous is None:
            self._wake.set()
        result = self._result
        if self._hangs():
            call = self._library.current if self._library is not None else ""
            problem = Problem(f"{call or 'loading the library'} does not return", RESTART, "hang")
            self._log(problem)
            result = Result(replace(result.health, up=False, problem=problem))
        if not result.statistics:
            return replace(tick, dcgm=result.health)
        processes = tuple(_with_statistics(use, result.statistics) for use in tick.processes)
        return replace(tick, processes=processes, dcgm=result.health)

    def answered(self) -> bool:
        """Whether the statistics of a tick were read, or reading them failed."""
        return self._answered

    def round(self) -> None:
        """Connect if necessary, and read the statistics of all processes once. Public for tests."""
        if self._result.health.problem is not None and not self._backoff.due():
            return
        self._began = self._monotonic()
        pids = self._pids
        try:
            statistics = self._read(pids or frozenset())
        except DcgmError as error:
            self._fail(error.problem, keep=error.kind in RETRY_CONNECTED)
        except Exception as error:  # a bug must not end the thread
            log.debug("dcgm", exc_info=True)
            self._fail(Problem(f"{type(error).__name__}: {error}", REPORT, "bug"), keep=False)
        else:
            self._backoff.reset()
            self._publish(None, statistics)
            self._answered = pids is not None
            self._note_silence(processes=len(pids or ()), answered=len(statistics))
        finally:
            self._began = None

    def leave(self) -> None:
        """Close the connection. Public for tests."""
        session, self._session, self._watching = self._session, None, False
        if session is not None:
            session.close()

    # -- in the thread

    def _run(self) -> None:
        while not self._stop:
            self.round()
            self._wake.wait(self._period_s)
            self._wake.clear()
        self._began = self._monotonic()
        self.leave()

    def _read(self, pids: frozenset[int]) -> Statistics:
        if self._library is None:
            self._library = Library(self._path)
        if self._session is None:
            self._session = Session(self._library, self._hostengine)
        session = self._session
        if not self._watching:
            session.watch(self._period_s)
            self._watching = True
        statistics: dict[tuple[int, str], DcgmStats] = {}
        for pid in sorted(pids):
            if self._stop:
                break
            self._began = self._monotonic()
            statistics.update(((pid, uuid), stats) for uuid, stats in session.process(pid))
        return statistics

    def _fail(self, problem: Problem, *, keep: bool) -> None:
        self._watching = False
        if not keep:
            self.leave()
        self._backoff.failed()
        self._publish(problem, {})
        self._answered = True

    def _publish(self, problem: Problem | None, statistics: Statistics) -> None:
        library = self._library.name if self._library is not None else ""
        version = self._session.version if self._session is not None else ""
        health = DcgmHealth(
            up=problem is None, problem=problem, version=version, library=library, mode=self._result.health.mode
        )
        self._result = Result(health, statistics)
        self._log(problem)

    def _log(self, problem: Problem | None) -> None:
        health, reason = self._result.health, str(problem or "")
        recovery = f"DCGM {health.version} answers ({health.mode}, {health.library})"
        self._state_log.change("dcgm", reason, f"DCGM statistics are missing: {reason}", recovery)

    def _note_silence(self, *, processes: int, answered: int) -> None:
        """Warn if DCGM answers without statistics; the usual cause is accounting mode."""
        self._empty_rounds = self._empty_rounds + 1 if processes and not answered else 0
        if answered or self._empty_rounds >= SILENT_ROUNDS:
            advice = "" if answered else self._advice
            problem = f"DCGM has no data (-14) of any of {processes} processes: {advice}"
            self._state_log.change("dcgm data", advice, problem, "DCGM has data of processes")

    def _hangs(self) -> bool:
        began = self._began
        return began is not None and self._monotonic() - began > HANGS_S


def _with_statistics(use: ProcessUse, statistics: Statistics) -> ProcessUse:
    stats = statistics.get((use.resident.pid, use.device.uuid))
    if stats is None or not use.active or _is_earlier_process(use, stats):
        return use
    return replace(use, dcgm=stats)


def _is_earlier_process(use: ProcessUse, stats: DcgmStats) -> bool:
    """Whether the statistics belong to an earlier process with this pid: DCGM finds the new one a sample later."""
    if use.facts is None or stats.start_us is None:
        return False
    return stats.start_us // 1000 < use.facts.start_time_ms - SLACK_MS


def _advice(tick: Tick) -> str:
    """The probable reason why DCGM has no statistics."""
    gpus = [reading for reading in tick.readings if not reading.device.parent_uuid]
    if any(gpu.mig_enabled for gpu in gpus):
        return "with a GPU in MIG mode the driver has no accounting, and DCGM no statistics of any GPU"
    if any(gpu.accounting_enabled is False for gpu in gpus):
        return f"accounting mode is off; {ACCOUNTING}"
    return "the processes may have started before accounting mode was turned on; new processes will have statistics"
