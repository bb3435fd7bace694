"""How busy each process was lately, and how long each process and GPU was busy in all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuledger.books.rows import Present, Row, Rows
from gpuledger.model import Accounting, Facts, Reading, Sample, Tick

WINDOW_US = 1_500_000
"""How long a row of the driver speaks for its process: rows come about every 0.2 s while it works."""


Recent = tuple[Sample, int | None]
"""With when its process started, if that is known: a pid alone may by now be another's."""


class RecentSamples:
    """The newest utilization row of each process on each device.

    The driver gives each row once. With ticks shorter than its sampling a busy process has no new row in most ticks;
    its last one counts until the window has passed without another.
    """

    def __init__(self) -> None:
        self._rows: dict[str, dict[int, Recent]] = {}

    def update(self, reading: Reading, facts: Mapping[int, Facts], now_us: int) -> dict[int, Sample] | None:
        """Rows by pid that still count; None when this device does not tell utilization by process."""
        uuid = reading.device.uuid
        before = self._rows.pop(uuid, {})
        if reading.samples is None:
            return None
        rows = {
            pid: (row, start)
            for pid, (row, start) in before.items()
            if abs(now_us - row.timestamp_us) < WINDOW_US  # also when the clock was set back
            and (start is None or _start(facts, pid) in (None, start))
        }
        rows.update((row.pid, (row, _start(facts, row.pid))) for row in reading.samples)
        self._rows[uuid] = rows
        return {pid: row for pid, (row, _) in rows.items()}


def _start(facts: Mapping[int, Facts], pid: int) -> int | None:
    known = facts.get(pid)
    return None if known is None else known.start_ticks


SAMPLE_US = 200_000
"""The driver's sample period, about."""
LATE_NS = 1_000_000_000
"""How long after a process has left a sample of it may still come."""
BUFFER_NS = 10_000_000_000
"""How far back the driver's samples reach; what was before is lost."""


@dataclass(slots=True)
class Work:
    """Who worked on a GPU in one tick: nanoseconds of the compute engine."""

    told: bool = False
    """Whether the driver says so at all."""
    by_row: dict[Row, int] = field(default_factory=dict)
    glimpsed: set[Row] = field(default_factory=set)
    """Those of them that are not listed: they came and went between two ticks, or are hidden from us."""
    hidden: bool = False
    """Whether memory says that somebody is there who is not listed."""


@dataclass(slots=True)
class GpuTime:
    """How long a GPU was busy and in use."""

    busy_ns: int | None = None
    in_use: bool | None = None
    in_use_ns: int = 0


class TimeBook:
    """Busy time of processes and GPUs, each of the driver's rows used once.

    The driver is asked for what came after the newest row it gave before, and each row is the mean over all samples
    from there to the newest: so that is the window of every row of the answer, whatever time the row itself carries.
    """

    def __init__(self, longest_ns: int = BUFFER_NS) -> None:
        self._longest_ns = longest_ns
        self._newest_us: dict[str, int] = {}
        self._before_ns: int | None = None
        self.gpus: dict[str, GpuTime] = {}

    def book(self, tick: Tick, rows: Rows, present: Present, hidden: frozenset[str] = frozenset()) -> dict[str, Work]:
        """Add up this tick's times; what each GPU did in it. `hidden` are those with somebody who is not listed."""
        elapsed_ns = 0 if self._before_ns is None else tick.time_ns - self._before_ns
        counts = 0 < elapsed_ns <= self._longest_ns
        work: dict[str, Work] = {}
        for reading in tick.readings:
            if not reading.device.parent_uuid:
                uuid = reading.device.uuid
                work[uuid] = self._processes(tick, reading, rows, elapsed_ns if counts else 0)
                work[uuid].hidden = uuid in hidden
                here = present.get(uuid)
                used = None if here is None else bool(here) or uuid in hidden
                self._gpu(reading, elapsed_ns if counts else 0, in_use=used)
        self._before_ns = tick.time_ns
        return work

    def _processes(self, tick: Tick, reading: Reading, rows: Rows, elapsed_ns: int) -> Work:
        uuid, now_ns = reading.device.uuid, tick.time_ns
        if not reading.up or reading.samples is None:
            return Work()
        work = Work(told=True)
        for resident in reading.residents or ():
            row = rows.newest(uuid, resident.pid)
            if row is not None and row.busy_ns is None:
                row.busy_ns = 0
        window_us = self._window_us(reading.samples, uuid, now_ns, elapsed_ns)
        busy = {sample.pid: min(max(sample.sm_pct, 0), 100) * window_us * 10 for sample in reading.samples}
        for account in _ended(reading) if elapsed_ns else ():
            if rows.newest(uuid, account.pid) is None:  # else its samples were booked
                busy.setdefault(account.pid, min(account.busy_ns, (account.gpu_pct or 0) * elapsed_ns // 100))
        for pid, busy_ns in busy.items():
            row = rows.newest(uuid, pid)
            if busy_ns:
                row = rows.glimpse(tick, reading, pid, now_ns - 2 * elapsed_ns - LATE_NS)
                work.by_row[row] = busy_ns
                if row.unlisted:
                    work.glimpsed.add(row)
            if row is not None:
                row.busy_ns = (row.busy_ns or 0) + busy_ns
        return work

    def _window_us(self, samples: Sequence[Sample], uuid: str, now_ns: int, elapsed_ns: int) -> int:
        newest_us = max((sample.timestamp_us for sample in samples), default=0)
        if not newest_us:
            return 0
        earliest_us = (now_ns - elapsed_ns) // 1000 - SAMPLE_US
        latest_us = now_ns // 1000 + SAMPLE_US
        window_us = min(newest_us, latest_us) - max(self._newest_us.get(uuid, earliest_us), earliest_us)
        self._newest_us[uuid] = newest_us
        return max(0, min(window_us, elapsed_ns // 1000 + SAMPLE_US, BUFFER_NS // 1000)) if elapsed_ns else 0

    def _gpu(self, reading: Reading, elapsed_ns: int, *, in_use: bool | None) -> None:
        gpu = self.gpus.setdefault(reading.device.uuid, GpuTime())
        if reading.up and reading.utilization_pct is not None:
            gpu.busy_ns = (gpu.busy_ns or 0) + min(reading.utilization_pct, 100) * elapsed_ns // 100
        if gpu.in_use and in_use is not None:  # from the tick that found it in use to the one that does not
            gpu.in_use_ns += elapsed_ns
        gpu.in_use = in_use


def _ended(reading: Reading) -> Iterator[Accounting]:
    """Where accounting mode is on: processes that ended since the reading before and were in no list."""
    listed = {resident.pid for resident in reading.residents or ()}
    return (account for account in reading.accounting if not account.running and account.pid not in listed)
