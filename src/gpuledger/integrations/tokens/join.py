"""Joins the token counts of servers with the energy of their owner: over all its GPUs, its own share of each. Pure.

Servers are read at other times than the driver. Both are interpolated to the same moments: the latest one that all
servers of the owner and the energy have reached, and a minute earlier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuledger.integrations.tokens.phases import Window, fit
from gpuledger.integrations.tokens.targets import Target
from gpuledger.model import (
    DIVIDED,
    ContainerUse,
    Owner,
    PhaseEnergy,
    ProcessUse,
    Tick,
    TokenCounts,
    TokenRates,
)
from gpuledger.model.tick import use_identity

WINDOW_S = 60.0
LEAST_WINDOW_S = 2.0
PHASE_WINDOW_S = 2.0
"""Least length of the windows that prefill and decode are fitted to; they begin and end when the server is read."""
PHASE_WINDOWS = 240
TENSOR, DRAM = DIVIDED.index("tensor_pct"), DIVIDED.index("dram_pct")
HISTORY = 600
"""Most readings that are kept of each server and of the energy."""

Use = ProcessUse | ContainerUse


class Line:
    """Readings of growing counters over time, interpolated in between."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=HISTORY)
        self._values: deque[tuple[float, ...]] = deque(maxlen=HISTORY)

    def add(self, time_s: float, value: tuple[float, ...]) -> None:
        """Add a reading. If the clock was set back, the history starts again; if a counter was, it continues."""
        if self._times and time_s <= self._times[-1]:
            self._times.clear()
            self._values.clear()
        self._times.append(time_s)
        self._values.append(value)

    @property
    def span(self) -> tuple[float, float] | None:
        """The times of the first and the last reading; None if there are less than two."""
        return (self._times[0], self._times[-1]) if len(self._times) > 1 else None

    def latest(self, time_s: float) -> float:
        """The time of the last reading that is not later than this time, which must be within the span."""
        number = bisect_left(self._times, time_s)
        return self._times[number if self._times[number] == time_s else number - 1]

    def at(self, time_s: float) -> tuple[float, ...]:
        """All values at a time within the span."""
        number = bisect_left(self._times, time_s)
        if number == 0 or self._times[number] == time_s:
            return self._values[number]
        before_s, v0, v1 = self._times[number - 1], self._values[number - 1], self._values[number]
        part = (time_s - before_s) / (self._times[number] - before_s)
        return tuple([old + part * (new - old) for old, new in zip(v0, v1, strict=True)])


@dataclass(slots=True)
class Tokens:
    """The tokens of one server over time. Its counters may restart at 0."""

    line: Line = field(default_factory=Line)
    _prompt: int = 0
    _output: int = 0
    _counts: tuple[int, int] | None = None
    _time_s: float = 0.0

    def add(self, time_s: float, counts: Iterable[TokenCounts]) -> None:
        """Add a reading of the server; does nothing if it was added before."""
        if time_s == self._time_s:
            return
        self._time_s, counts = time_s, tuple(counts)
        now = sum([c.prompt for c in counts]), sum([c.output for c in counts])
        before, self._counts = self._counts, now
        if before is not None:  # after a restart, the whole value is new
            self._prompt += now[0] - before[0] if now[0] >= before[0] else now[0]
            self._output += now[1] - before[1] if now[1] >= before[1] else now[1]
        self.line.add(time_s, (self._prompt, self._output))


class OwnerEnergy:
    """Energy above parked power, parked energy and activity of all uses of GPUs by one owner."""

    def __init__(self) -> None:
        self.work_mj = self.parked_mj = 0
        self.line = Line()
        """Work and parked energy in joules; seconds of the tensor cores and of memory, and of unknown activity."""
        self._tensor_s = self._dram_s = self._unknown_s = 0.0
        self._last_ns: int | None = None
        self._before: dict[tuple[object, ...], tuple[int, int]] = {}

    def add(self, time_s: float, now_ns: int, uses: Sequence[Use], *, deferred: bool = False) -> None:
        """Add a tick, which lacks energy if it is `deferred`.

        The first total of a process or container is a baseline: it may be of days before.
        """
        now = {use_identity(use): (sum([mj for _, mj in use.energy_mj]), use.parked_mj) for use in uses}
        for key, (total_mj, parked_mj) in now.items():
            before_mj, parked_before_mj = self._before.get(key, (total_mj, parked_mj))
            rose_mj = max(0, total_mj - before_mj)
            parked_rose_mj = min(max(0, parked_mj - parked_before_mj), rose_mj)
            self.parked_mj += parked_rose_mj
            self.work_mj += rose_mj - parked_rose_mj
        self._before = now
        self._add_activity(now_ns, uses)
        joules = self.work_mj / 1000, self.parked_mj / 1000
        if not deferred:
            self.line.add(time_s, (*joules, self._tensor_s, self._dram_s, self._unknown_s))

    def _add_activity(self, now_ns: int, uses: Sequence[Use]) -> None:
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns is None:
            return
        seconds = (now_ns - last_ns) / 1e9
        for use in uses:
            parts = use.activity if isinstance(use, ContainerUse) else (use.activity,)
            tensor = [part.pct[TENSOR] if part is not None else None for part in parts]
            dram = [part.pct[DRAM] if part is not None else None for part in parts]
            if not tensor or None in tensor or None in dram:
                self._unknown_s += seconds
                continue
            self._tensor_s += seconds * sum([pct or 0.0 for pct in tensor]) / 100
            self._dram_s += seconds * sum([pct or 0.0 for pct in dram]) / 100


class Join:
    """Tokens and energy of one owner."""

    def __init__(self) -> None:
        self.energy = OwnerEnergy()
        self.owner: Owner | None = None
        """None while the owner has no process on a GPU."""
        self.tokens: dict[str, Tokens] = {}
        """Tokens by URL."""
        self.windows: deque[Window] = deque(maxlen=PHASE_WINDOWS)
        self._window_end_s: float | None = None
        self.phases: PhaseEnergy | None = None

    def add_tokens(self, url: str, time_s: float, counts: Iterable[TokenCounts]) -> None:
        """Add the last answer of a server; does nothing if it was added before."""
        self.tokens.setdefault(url, Tokens()).add(time_s, counts)

    def add(self, tick: Tick, target: Target) -> None:
        """Add the energy of a tick."""
        if target.of_processes:
            uses: list[Use] = [use for use in tick.processes if target.has_process(use)]
        else:
            uses = [use for use in tick.containers if target.has_container(use)]
        self.owner = common_owner([use.owner for use in uses]) if uses else None
        now_ns = tick.time_ns if tick.monotonic_ns is None else tick.monotonic_ns
        gpus = {use.device.gpu_uuid for use in uses}
        deferred = any(reading.deferred for reading in tick.readings if reading.device.uuid in gpus)
        self.energy.add(tick.time_ns / 1e9, now_ns, uses, deferred=deferred)
        self._add_window()

    def rates(self) -> TokenRates | None:
        """The last minute; None until servers and energy have been read for some seconds."""
        span = self._common_span()
        if span is None:
            return None
        begin_s = max(span[0], span[1] - WINDOW_S)
        return self._between(begin_s, span[1]) if span[1] - begin_s >= LEAST_WINDOW_S else None

    def _common_span(self) -> tuple[float, float] | None:
        lines = [self.energy.line, *(tokens.line for tokens in self.tokens.values())]
        spans = [line.span for line in lines]
        if len(lines) < 2 or None in spans:
            return None
        begin_s, end_s = (max(s[0] for s in spans if s), min(s[1] for s in spans if s))
        if end_s <= begin_s:
            return None
        end_s = lines[1].latest(end_s)  # tokens come in steps, so they are interpolated as little as possible
        return (begin_s, end_s) if end_s > begin_s else None

    def _between(self, begin_s: float, end_s: float) -> TokenRates:
        (work0, parked0, *_), (work1, parked1, *_) = self.energy.line.at(begin_s), self.energy.line.at(end_s)
        prompt = output = 0.0
        for tokens in self.tokens.values():
            (prompt0, output0), (prompt1, output1) = tokens.line.at(begin_s), tokens.line.at(end_s)
            prompt, output = prompt + prompt1 - prompt0, output + output1 - output0
        return TokenRates(end_s - begin_s, prompt, output, work1 - work0, parked1 - parked0)

    def _add_window(self) -> None:
        """Close the open window of the phases if it is long enough."""
        span = self._common_span()
        if span is None:
            return
        begin_s = self._window_end_s
        if begin_s is None or not span[0] <= begin_s <= span[1]:  # the first window, or the clock was set
            self._window_end_s = span[1]
            return
        if span[1] - begin_s < PHASE_WINDOW_S:
            return
        rates = self._between(begin_s, span[1])
        *_, tensor0, dram0, unknown0 = self.energy.line.at(begin_s)
        *_, tensor1, dram1, unknown1 = self.energy.line.at(span[1])
        activity = (None, None) if unknown1 > unknown0 else (tensor1 - tensor0, dram1 - dram0)
        self.windows.append(Window(rates.work_j, rates.prompt_tokens, rates.output_tokens, *activity))
        self._window_end_s = span[1]
        self.phases = fit(self.windows)


def common_owner(owners: Sequence[Owner]) -> Owner:
    """What the owners of all uses have in common: of a pod with two containers, namespace and pod."""
    fields = ("namespace", "pod", "pod_uid", "container", "container_id", "unit", "job")
    values = {name: {getattr(owner, name) for owner in owners} for name in fields}
    return Owner(**{name: found.pop() for name, found in values.items() if len(found) == 1})
